"""Gradients of whole nets of real layers against central differences, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    GELU,
    LRN,
    Accuracy,
    Add,
    Concate,
    Convolution,
    Dropout,
    EuclideanLoss,
    GlobalPooling,
    InnerProduct,
    Mul,
    Pooling,
    RecordInput,
    ReLU,
    Sigmoid,
    SiLU,
    Slice,
    SoftmaxLoss,
    Split,
    STanh,
)
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

ROWS, CLASSES = 5, 3


def records(*shape):
    return RecordInput("data", shape=list(shape), batchsize=ROWS)


def tied(name):
    return [{"share_from": name}]


NETS = {
    "mlp": [
        records(6),
        InnerProduct("ip1", "data", num_output=7),
        STanh("tanh", "ip1"),
        Dropout("drop", "tanh", dropout_ratio=0.3),
        InnerProduct("ip2", "drop", num_output=CLASSES),
        SoftmaxLoss("loss", ["ip2", "data"]),
        Accuracy("accuracy", ["ip2", "data"]),
    ],
    "cnn": [
        records(2, 7, 6),
        Convolution("conv", "data", num_filters=4, kernel=3, pad=1),
        Pooling("pool", "conv", pool="MAX", kernel=2, stride=2),
        LRN("lrn", "pool", local_size=3, alpha=0.5),
        Pooling("mean", "lrn", pool="AVG", kernel=2, stride=1),
        InnerProduct("ip", "mean", num_output=CLASSES),
        SoftmaxLoss("loss", ["ip", "data"]),
    ],
    "diamond": [
        records(6),
        InnerProduct("stem", "data", num_output=5),
        Sigmoid("left", "stem"),
        STanh("right", "stem"),
        ReLU("third", "stem", negative_slope=0.1),
        Concate("join", ["left", "stem", "right", "third", "left"], concate_dim=1),
        InnerProduct("ip", "join", num_output=CLASSES),
        SoftmaxLoss("loss", ["ip", "data"]),
    ],
    "tied auto-encoder": [
        records(6),
        InnerProduct("encode", "data", num_output=4),
        Sigmoid("hidden", "encode"),
        InnerProduct("decode", "hidden", num_output=6, transpose=True, param=tied("encode_weight")),
        EuclideanLoss("loss", ["decode", "data"]),
    ],
    "one weight three times": [
        records(5),
        InnerProduct("ip1", "data", num_output=5, param=[{"name": "w"}]),
        STanh("h1", "ip1"),
        InnerProduct("ip2", "h1", num_output=5, param=[{"share_from": "w"}, {"share_from": "ip1_bias"}]),
        STanh("h2", "ip2"),
        InnerProduct("ip3", "h2", num_output=5, transpose=True, param=tied("w")),
        EuclideanLoss("loss", ["ip3", "data"]),
    ],
    "several outputs": [
        records(6),
        InnerProduct("ip", "data", num_output=7),
        Slice("slice", "ip", slice_dim=1, num_slices=3),
        Sigmoid("a", "slice"),
        STanh("b", "slice"),
        Split("split", "slice", num_splits=2),
        Sigmoid("c", "split"),
        Concate("join", ["a", "b", "c", "split"], concate_dim=1),
        InnerProduct("top", "join", num_output=CLASSES),
        SoftmaxLoss("loss", ["top", "data"]),
    ],
    "residual": [
        records(2, 5, 4),
        Convolution("stem", "data", num_filters=4, kernel=3, pad=1),
        GELU("gelu", "stem"),
        Convolution("conv", "gelu", num_filters=4, kernel=3, pad=1),
        GlobalPooling("squeezed", "conv"),
        Sigmoid("gate", "squeezed"),
        Mul("gated", ["conv", "gate"]),
        Add("sum", ["gated", "stem"]),
        SiLU("silu", "sum"),
        Concate("both", ["silu", "stem"], concate_dim=1),
        GlobalPooling("pooled", "both"),
        InnerProduct("ip", "pooled", num_output=CLASSES),
        SoftmaxLoss("loss", ["ip", "data"]),
    ],
    "two losses": [
        records(6),
        InnerProduct("stem", "data", num_output=6),
        InnerProduct("ip", "stem", num_output=CLASSES),
        SoftmaxLoss("class", ["ip", "data"], scale=0.5),
        EuclideanLoss("shape", ["stem", "data"]),
    ],
}


def build(layers, phase=Phase.kTrain, share=None):
    net = Net(NetProto(layer=[layer.proto for layer in layers]), phase, get_ops("cpu", np.float64), share)
    if share is None:
        net.initialise(7)
        for param in net.params:
            param.value[...] += 0.1 * np.random.default_rng(param.size).normal(size=param.shape)
    return net


def batch_of(net, rows=ROWS):
    rng = np.random.default_rng(0)
    return Batch(rng.normal(size=(rows, *net.shapes["data"])), rng.integers(0, CLASSES, rows))


def loss_of(net, batch, step):
    net.forward({"data": batch}, step)
    return sum(m.total for name, m in net.metrics().items() if name.endswith("loss")) / step.total_rows


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_every_parameter(name):
    net = build(NETS[name])
    batch, step = batch_of(net), Step(number=3, seed=1, total_rows=ROWS)
    loss_of(net, batch, step)
    net.backward()
    got, eps = net.flat.grads.copy(), 1e-6
    assert got.any()
    for entry in net.flat.entries:
        where = np.unique(np.linspace(entry.start, entry.stop - 1, 12).astype(int))
        for i in where:
            saved = net.flat.values[i]
            net.flat.values[i] = saved + eps
            above = loss_of(net, batch, step)
            net.flat.values[i] = saved - eps
            below = loss_of(net, batch, step)
            net.flat.values[i] = saved
            assert got[i] == pytest.approx((above - below) / (2 * eps), rel=1e-5, abs=1e-7), f"{entry.name}[{i}]"


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_shares_add_up_to_the_batch(name):
    whole, part = build(NETS[name]), build(NETS[name])
    batch, step = batch_of(whole), Step(number=3, seed=1, total_rows=ROWS)
    loss = loss_of(whole, batch, step)
    whole.backward()
    losses, summed, first = 0.0, np.zeros_like(whole.flat.grads), 0
    for rows in (2, 2, 1):
        share = Batch(batch.features[first : first + rows], batch.labels[first : first + rows])
        losses += loss_of(part, share, Step(number=3, seed=1, first_row=first, total_rows=ROWS))
        part.backward()
        summed += part.flat.grads
        first += rows
    assert losses == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(summed, whole.flat.grads, rtol=1e-10, atol=1e-14)


def test_tied_weights_of_the_wrong_orientation_name_both_shapes():
    layers = list(NETS["tied auto-encoder"])
    layers[3] = InnerProduct("decode", "hidden", num_output=6, param=tied("encode_weight"))
    with pytest.raises(ConfigError) as caught:
        build(layers)
    for word in ["decode_weight", "(4, 6)", "(6, 4)", "encode_weight", "transpose"]:
        assert word in str(caught.value)


def test_test_net_shares_and_drops_nothing():
    train = build(NETS["mlp"])
    test = build(NETS["mlp"], Phase.kTest, share=train)
    batch = batch_of(train)
    step = Step(Phase.kTest, total_rows=ROWS)
    test.forward({"data": batch}, step)
    np.testing.assert_array_equal(test.output("drop"), test.output("tanh"))
    first = test.output("ip2").copy()
    train.params[0].value[...] *= 2
    test.forward({"data": batch}, step)
    assert not np.array_equal(test.output("ip2"), first)
    assert set(test.metrics()) == {"loss", "loss.accuracy", "accuracy.accuracy"}
