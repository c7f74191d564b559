"""Batch normalisation: running statistics, evaluation, and that a group normalises as one."""

import numpy as np
import pytest

from singa_dask import layers, updaters
from singa_dask.algorithms import BP
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import BatchNorm, Context, EuclideanLoss, InnerProduct, RecordInput, Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.updaters import make_updater


def net(phase=Phase.kTrain, share=None):
    layers = [
        RecordInput("data", shape=[3], batchsize=8),
        BatchNorm("norm", "data", factor=0.8),
        InnerProduct("ip", "norm", num_output=3),
        EuclideanLoss("loss", ["ip", "data"]),
    ]
    made = Net(NetProto(layer=[layer.proto for layer in layers]), phase, get_ops("cpu", np.float64), share)
    if share is None:
        made.initialise(0)
    return made


@pytest.mark.parametrize(
    "updater",
    [updaters.SGD(lr=0.1, momentum=0.9, weight_decay=0.1, clip_low=-0.01, clip_high=0.01), updaters.Adam(lr=0.1)],
)
def test_running_statistics_follow_the_batches_whatever_the_updater(updater):
    train, draw = net(), np.random.default_rng(0)
    updater = make_updater(updater.proto, train.ops)
    updater.bind(train.flat.entries, 0, train.flat.size)
    mean, var, kept = np.zeros(3), np.ones(3), 0.8
    for number in range(5):
        x = draw.normal(2, 3, (8, 3))
        BP().train_one_batch(train, {"data": Batch(x)}, Step(number=number, total_rows=8))
        updater.update(number, train.flat.values, train.flat.grads)
        mean = kept * mean + (1 - kept) * x.mean(axis=0)
        var = kept * var + (1 - kept) * x.var(axis=0, ddof=1)
    np.testing.assert_allclose(train.named_params["norm_mean"].value, mean)
    np.testing.assert_allclose(train.named_params["norm_var"].value, var)
    test = net(Phase.kTest, train)
    x = draw.normal(2, 3, (4, 3))
    test.forward({"data": Batch(x)}, Step(Phase.kTest, total_rows=4))
    scale, bias = (train.named_params[name].value for name in ("norm_scale", "norm_bias"))
    np.testing.assert_allclose(test.output("norm"), (x - mean) / np.sqrt(var + 1e-5) * scale + bias)


@pytest.mark.parametrize(
    ("settings", "together"), [({}, True), ({"max_value": 1}, True), ({"negative_slope": 0.1}, False)]
)
def test_a_relu_behind_it_is_computed_with_it(settings, together):
    """The same numbers as where a second layer reads it, so that both compute alone."""
    chain = [
        RecordInput("data", shape=[3], batchsize=8),
        InnerProduct("below", "data", num_output=3),
        BatchNorm("norm", "below"),
        layers.ReLU("relu", "norm", **settings),
        EuclideanLoss("loss", ["relu", "data"]),
    ]
    x = np.random.default_rng(0).normal(2, 3, (8, 3))
    found = []
    for more in ([], [layers.BridgeSrc("second", "norm")]):
        proto = NetProto(layer=[layer.proto for layer in [*chain, *more]])
        made = Net(proto, Phase.kTrain, get_ops("cpu", np.float64))
        made.initialise(0)
        BP().train_one_batch(made, {"data": Batch(x)}, Step(total_rows=8))
        assert made.routing.rectified == ({"norm"} if together and not more else set())
        test = Net(proto, Phase.kTest, made.ops, made)
        test.forward({"data": Batch(x)}, Step(Phase.kTest, total_rows=8))
        outputs = [one.output(name) for one in (made, test) for name in ("norm", "relu")]
        found.append([made.flat.grads, *outputs])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)
    assert (found[0][1] < 0).any()


@pytest.mark.parametrize("cut", [False, True])
def test_statistics_are_those_of_the_rows_that_come(cut):
    """Layers below may have cut the batch, or joined two."""
    both = layers.Concate("rows", ["data", "data"], concate_dim=0)
    between = layers.Slice("rows", "data", slice_dim=0, num_slices=2) if cut else both
    norms = [BatchNorm(f"norm{i}", "rows") for i in range(1 + cut)]
    net_layers = [RecordInput("data", shape=[3], batchsize=8), between, *norms]
    made = Net(NetProto(layer=[layer.proto for layer in net_layers]), Phase.kTrain, get_ops("cpu", np.float64))
    made.initialise(0)
    made.forward({"data": Batch(np.random.default_rng(0).normal(2, 3, (8, 3)))}, Step(total_rows=8))
    for norm in norms:
        y = made.output(norm.name)
        assert len(y) == (4 if cut else 16)
        np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(y.std(axis=0), 1, rtol=1e-5)


@pytest.mark.parametrize(("mean", "outlier"), [(1e3, 0), (-1e3, 30), (0, 1e3)])
def test_the_variance_of_few_bits_is_that_of_float64(mean, outlier):
    """The first row, which sums are taken about, may be far from the others."""
    ops, rows = get_ops("cpu", np.float32), 5000
    layer = BatchNorm("norm", "x")
    layer.setup((4,))
    for param in layer.params:
        param.bind(ops.zeros(param.shape), ops.zeros(param.shape))
    x = np.random.default_rng(0).normal(mean, 1, (rows, 4)).astype(np.float32)
    x[0] += outlier
    ctx = Context(ops, Step(total_rows=rows))
    layer.forward(ctx, x)
    np.testing.assert_allclose(ctx.of.mean, x.mean(axis=0, dtype=np.float64), rtol=1e-7, atol=1e-5)
    np.testing.assert_allclose(ctx.of.var, x.var(axis=0, dtype=np.float64), rtol=1e-4)
