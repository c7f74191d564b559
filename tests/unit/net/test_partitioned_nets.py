"""The nets of the examples, made small, train under every partition as they do serially."""

import numpy as np
import pytest
from support.partitioned import assert_equal_to_serial

from singa_dask.algorithms import BP, BPTT, CD
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import LayerProto, NetProto
from singa_dask.layers import (
    GRU,
    LRN,
    BatchNorm,
    CharRNN,
    Convolution,
    Dropout,
    EuclideanLoss,
    InnerProduct,
    OneHot,
    Pooling,
    RBMHid,
    RBMVis,
    RecordInput,
    ReLU,
    RNNLabel,
    Sigmoid,
    Softmax,
    SoftmaxLoss,
    STanh,
)

STEPS = 10
UNIFORM = {"init": {"type": "kUniform", "low": -0.3, "high": 0.3}}


def data(shape, classes, rows=7, count=STEPS):
    draw = np.random.default_rng(3)
    return [{"data": (draw.standard_normal((rows, *shape)), draw.integers(0, classes, rows))} for _ in range(count)]


def mnist():
    return [
        RecordInput("data", shape=[1, 9, 9]),
        Convolution("conv1", num_filters=5, kernel=3, stride=1, param=[{"init": {"type": "kUniformSqrtFanIn"}}]),
        ReLU("relu1"),
        Pooling("pool1", pool="MAX", kernel=2, stride=2),
        Convolution("conv2", num_filters=6, kernel=2, stride=1),
        ReLU("relu2"),
        Pooling("pool2", pool="MAX", kernel=2, stride=2),
        InnerProduct("ip1", num_output=9),
        ReLU("relu3"),
        InnerProduct("ip2", num_output=5),
        SoftmaxLoss("loss"),
    ], data((9, 9, 1), 5)


def cifar10():
    return [
        RecordInput("data", shape=[3, 8, 8]),
        Convolution("conv1", num_filters=6, kernel=3, pad=1, param=[{"init": {"type": "kGaussian", "std": 0.3}}]),
        Pooling("pool1", pool="MAX", kernel=3, stride=2),
        ReLU("relu1"),
        LRN("norm1", local_size=3, alpha=0.5, beta=0.75),
        Convolution("conv2", num_filters=5, kernel=3, pad=1),
        BatchNorm("bn2"),
        ReLU("relu2"),
        Pooling("pool2", pool="AVG", kernel=3, stride=2),
        LRN("norm2", local_size=3, alpha=0.5, beta=0.75),
        Dropout("drop2", dropout_ratio=0.3),
        InnerProduct("ip1", num_output=5),
        SoftmaxLoss("loss", topk=2),
    ], data((8, 8, 3), 5)


def mlp():
    layers = [RecordInput("data", shape=[11])]
    for i, units in enumerate([13, 10, 9, 7, 5], 1):
        layers += [InnerProduct(f"fc{i}", num_output=units, param=[UNIFORM, UNIFORM])]
        layers += [STanh(f"tanh{i}"), Dropout(f"drop{i}", dropout_ratio=0.2)] if i < 5 else [SoftmaxLoss("loss")]
    return layers, data((11,), 5)


def autoencoder():
    """The weights of the decoder are the transposed ones of the encoder."""

    def decoder(i, units, source):
        tied = [{"name": f"w{i}_", "share_from": f"w{i}"}, {"name": f"v{i}"}]
        return InnerProduct(f"back{i}", source, num_output=units, transpose=True, param=tied)

    return [
        RecordInput("data", shape=[8]),
        InnerProduct("ip1", num_output=7, param=[{"name": "w1"}, {"name": "h1"}]),
        Sigmoid("sigmoid1"),
        InnerProduct("ip2", num_output=4, param=[{"name": "w2"}, {"name": "h2"}]),
        decoder(2, 7, "ip2"),
        Sigmoid("output2"),
        decoder(1, 8, "output2"),
        Sigmoid("output1"),
        EuclideanLoss("loss", ["output1", "data"]),
    ], data((8,), 5)


def attention():
    """Softmax in the middle of the net."""
    return [
        RecordInput("data", shape=[6]),
        InnerProduct("ip1", num_output=8),
        Softmax("soft"),
        InnerProduct("ip2", num_output=7),
        Softmax("parts", num_softmax_per_instance=7),
        InnerProduct("ip3", num_output=4),
        SoftmaxLoss("loss"),
    ], data((6,), 4)


def in_time(layer, **fields):
    return LayerProto(**{**{f.name: v for f, v in layer.proto.ListFields()}, **fields})


def char_rnn():
    each = {"unroll_conn_type": ["kUnrollOneToAll"]}
    draw = np.random.default_rng(5)
    batches = [{"data": (draw.integers(0, 7, (6, 5)).astype(float), None)} for _ in range(STEPS)]
    return [
        in_time(CharRNN("data", path="text", unroll_len=4, batchsize=6), unroll_len=1),
        in_time(OneHot("onehot", "data", vocab_size=7), **each),
        in_time(RNNLabel("label", "data"), **each),
        GRU("gru1", "onehot", dim_hidden=6, param=[UNIFORM] * 9).proto,
        InnerProduct("ip1", "gru1", num_output=7).proto,
        SoftmaxLoss("loss", ["ip1", "label"]).proto,
    ], batches


def rbm():
    draw = np.random.default_rng(0)
    return [
        RecordInput("data", shape=[9]),
        RBMVis("visible", ["data", "hidden"], hdim=6, param=[{"init": {"type": "kGaussian", "std": 0.1}}]),
        RBMHid("hidden", "visible", hdim=6),
    ], [{"data": (draw.random((7, 9)), None)} for _ in range(STEPS)]


# The net, its algorithm, and the layers that are split in a mixed partition.
NETS = {
    "mnist": (mnist, BP, ["conv2", "ip1"]),
    "cifar10": (cifar10, BP, ["conv1", "bn2", "ip1"]),
    "mlp": (mlp, BP, ["fc1", "fc2", "fc4"]),
    "autoencoder": (autoencoder, BP, ["ip1"]),
    "softmax": (attention, BP, ["ip1", "ip3"]),
    "char-rnn": (char_rnn, BPTT, ["gru1"]),
    "rbm": (rbm, CD, ["visible", "hidden"]),
}


def net_of(name, dim):
    build, algorithm, mixed = NETS[name]
    layers, batches = build()
    proto = NetProto(layer=layers if name == "char-rnn" else assemble(layers), partition_dim=int(dim == 1))
    if name == "char-rnn":
        proto.unroll_len = 4
    for layer in proto.layer:
        if dim == "mixed" and layer.name in mixed:
            layer.partition_dim = 1
    return proto, algorithm(), batches


@pytest.mark.parametrize("dim", [0, 1, "mixed"])
@pytest.mark.parametrize("name", NETS)
def test_ten_steps_equal_the_serial_run(name, dim):
    results = assert_equal_to_serial(*net_of(name, dim), (2, 3, 4), rtol=1e-7, atol=1e-9)
    for result in results.values():
        assert bool(result["own"]) == (dim != 0)
