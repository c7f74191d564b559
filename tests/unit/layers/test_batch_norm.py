"""Batch normalisation: running statistics, evaluation, and that a group normalises as one."""

from __future__ import annotations

import numpy as np
import pytest
from support.topologies import run_topology

from singa_dask import layers, updaters
from singa_dask.algorithms import BP
from singa_dask.comm.threads import run_threads
from singa_dask.data import write_shards
from singa_dask.job import Job
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import BatchNorm, Context, EuclideanLoss, InnerProduct, RecordInput, Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare
from singa_dask.updaters import make_updater
from tests.support.partitioned import Member, assert_equal_to_serial


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
    mean, var, kept = np.zeros(3), np.ones(3), float(np.float32(0.8))  # as the message holds it
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


@pytest.mark.parametrize("cut", [False, True])
def test_statistics_are_those_of_the_rows_that_come(cut):
    """Layers below may have cut the batch, or joined two."""
    both = layers.Concate("rows", ["data", "data"], concate_dim=0)
    between = [layers.Slice("rows", "data", slice_dim=0, num_slices=2)] if cut else [both]
    norms = [BatchNorm(f"norm{i}", "rows") for i in range(1 + cut)]
    targets = [InnerProduct(f"ip{i}", norm.name, num_output=2) for i, norm in enumerate(norms)]
    losses = [EuclideanLoss(f"loss{i}", [ip.name, ip.name]) for i, ip in enumerate(targets)]
    net_layers = [RecordInput("data", shape=[3], batchsize=8), *between, *norms, *targets, *losses]
    made = Net(NetProto(layer=[layer.proto for layer in net_layers]), Phase.kTrain, get_ops("cpu", np.float64))
    made.initialise(0)
    BP().train_one_batch(made, {"data": Batch(np.random.default_rng(0).normal(2, 3, (8, 3)))}, Step(total_rows=8))
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
    np.testing.assert_allclose(ctx.batch_mean, x.mean(axis=0, dtype=np.float64), rtol=1e-7, atol=1e-5)
    np.testing.assert_allclose(ctx.batch_var, x.var(axis=0, dtype=np.float64), rtol=1e-4)


def between_split_layers(dim):
    layers = [
        RecordInput("data", shape=[6]),
        BatchNorm("norm1", "data"),
        InnerProduct("ip1", "norm1", num_output=7),
        BatchNorm("norm2", "ip1"),
        InnerProduct("ip2", "norm2", num_output=6),
        EuclideanLoss("loss", ["ip2", "data"]),
    ]
    return NetProto(layer=[layer.proto for layer in layers], partition_dim=dim)


def random_rows(seed, rows=8):
    return {"data": (np.random.default_rng(seed).normal(2, 3, (rows, 6)), None)}


@pytest.mark.parametrize("dim", [0, 1])
def test_a_group_trains_as_one_worker(dim):
    results = assert_equal_to_serial(between_split_layers(dim), BP(), [random_rows(i) for i in range(3)], (2, 3, 4))
    for result in results.values():
        split = {name for name in result["own"] if name.startswith("norm")}
        assert split == ({f"norm2_{role}" for role in ("scale", "bias", "mean", "var")} if dim else set())


def output_with_learned_statistics(comm, dim):
    member = Member(comm, between_split_layers(dim), phases=(Phase.kTrain, Phase.kTest))
    member.gradients(BP(), random_rows(0), 0)
    for flat in (member.net.flat, member.net.own):
        flat.values -= flat.grads
    return member.means(BP().test_one_batch(member.nets[Phase.kTest], *member.feed(random_rows(1), 0, Phase.kTest)))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_group_evaluates_as_one_worker(dim):
    (serial,) = run_threads(1, output_with_learned_statistics, dim)
    for measured in run_threads(3, output_with_learned_statistics, dim):
        assert measured == pytest.approx(serial)


JOB = """
name: "norm" train_steps: 60 checkpoint_freq: 0 test_freq: 60 test_steps: 3 seed: 5
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.5 learning_rate { type: kFixed base_lr: 0.05 } }
cluster { %(cluster)s }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "%(folder)s" batchsize: 14 std_value: 100 } }
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
  layer { name: "norm1" type: kCudnnBM srclayers: "conv" }
  layer { name: "relu" type: kReLU srclayers: "norm1" }
  layer { name: "scores" type: kInnerProduct srclayers: "relu" innerproduct_conf { num_output: 2 } }
  layer { name: "norm2" type: kBM srclayers: "scores" }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "norm2" srclayers: "data" }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "shards"
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 280)
    pictures = draw.integers(0, 200, (280, 4, 4, 2)) + 50 * labels[:, None, None, None]
    write_shards(folder, pictures.astype(np.uint8), labels)
    return folder


def run(folder, where, cluster=""):
    ran = run_topology(prepare(Job.from_text(JOB % {"folder": folder, "cluster": cluster})), where)
    return ran.reports[0]["metrics"]["test"], checkpoints.load(checkpoints.path_of(where, 60)).parameters


def test_any_number_of_workers_reaches_the_same_parameters_and_statistics(folder, tmp_path):
    measured, alone = run(folder, tmp_path / "1")
    assert np.abs(alone["norm1_mean"]).max() > 0.01
    assert measured["accuracy"] > 0.9
    for workers in (2, 3):  # of unequal shares
        together, parameters = run(folder, tmp_path / f"{workers}", f"nworkers_per_group: {workers}")
        assert together == pytest.approx(measured, rel=1e-3)
        for name, value in alone.items():
            np.testing.assert_allclose(parameters[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_asynchronous_groups_share_the_statistics(folder, tmp_path):
    cluster = "nworker_groups: 2 nworkers_per_group: 2 nservers_per_group: 2 server_worker_separate: true"
    measured, parameters = run(folder, tmp_path, cluster)
    assert measured["accuracy"] > 0.9
    assert (np.asarray(parameters["norm1_var"]) > 0).all()
