"""Gradients of whole nets against central differences, in float64."""

import numpy as np
import pytest
from support.gradients import check_gradients, loss_of
from support.user_layers import Halves, Reversed, SquaredError, Total, Weighted

from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    GELU,
    LRN,
    Accuracy,
    Add,
    BridgeSrc,
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


class Unusable(SquaredError):
    """A loss whose gradient nobody may ask for, and that has no output."""

    def forward(self, ctx, *x):
        super().forward(ctx, *x)

    def backward(self, ctx, dy):
        raise AssertionError("nothing below has parameters")


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
    "own layers read several times": [
        records(3),
        Weighted("a", "data"),
        Weighted("left", "a"),
        Weighted("right", "a"),
        Total("sum", ["left", "a", "right", "right"]),
        Weighted("top", "sum"),
        SquaredError("loss", ["top", "data"]),
    ],
    "strided views": [
        records(3),
        Weighted("a", "data"),
        Reversed("r1", "a"),
        Reversed("r2", "r1"),
        Weighted("b", "r2"),
        SquaredError("loss", ["b", "data"]),
    ],
    "a loss above no parameters": [
        records(3),
        BridgeSrc("plain", "data"),
        Weighted("a", "data"),
        Unusable("fixed", ["plain", "data"]),
        SquaredError("loss", ["a", "data"]),
    ],
    "a weight shared by way of another": [
        records(3),
        Weighted("a", "data", param=[{"name": "w"}]),
        Weighted("b", "a", param=[{"name": "v", "share_from": "u"}]),
        Weighted("c", "b", param=[{"name": "u", "share_from": "w"}]),
        SquaredError("loss", ["c", "data"]),
    ],
    "two halves and labels passed on": [
        records(5),
        BridgeSrc("again", "data"),
        Weighted("a", "again"),
        Halves("halves", "a"),
        Weighted("first", "halves"),
        Weighted("second", "halves"),
        SquaredError("loss1", ["first", "again"]),
        SquaredError("loss2", ["second", "again"]),
    ],
    "a half that no loss reads": [
        records(4),
        Weighted("a", "data"),
        Halves("halves", "a"),
        BridgeSrc("first", "halves"),
        Weighted("unused", "halves"),
        SquaredError("loss", ["first", "data"]),
    ],
}


def build(name):
    net = Net(NetProto(layer=[layer.proto for layer in NETS[name]]), Phase.kTrain, get_ops("cpu", np.float64))
    net.initialise(7)
    for param in net.params:
        param.value[...] += 0.1 * np.random.default_rng(param.size).normal(size=param.shape)
    return net


def step(first_row=0):
    return Step(number=3, seed=1, first_row=first_row, total_rows=ROWS)


def batch_of(net):
    rng = np.random.default_rng(0)
    return Batch(rng.normal(size=(ROWS, *net.shapes["data"])), rng.integers(0, CLASSES, ROWS))


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_every_parameter(name):
    net = build(name)
    feed = {"data": batch_of(net)}
    check_gradients(net, lambda: loss_of(net, feed, step()), 12)


@pytest.mark.parametrize("name", NETS)
def test_gradients_of_shares_add_up_to_the_batch(name):
    whole, part = build(name), build(name)
    batch = batch_of(whole)
    loss = loss_of(whole, {"data": batch}, step())
    whole.backward()
    losses, summed = 0.0, np.zeros_like(whole.flat.grads)
    for first, stop in ((0, 2), (2, 4), (4, 5)):
        share = Batch(batch.features[first:stop], batch.labels[first:stop])
        losses += loss_of(part, {"data": share}, step(first))
        part.backward()
        summed += part.flat.grads
    assert losses == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(summed, whole.flat.grads, rtol=1e-10, atol=1e-14)


def test_a_metric_of_several_layers_carries_their_names():
    net = build("two losses")
    loss_of(net, {"data": batch_of(net)}, step())
    assert set(net.metrics()) == {"class.loss", "accuracy", "shape.loss"}
