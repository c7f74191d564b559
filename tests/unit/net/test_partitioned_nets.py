"""The nets of the examples, made small, train under every partition as they do serially. Those over time are in
test_partition_in_time.py."""

import pytest
from support.partitioned import assert_equal_to_serial, batches, net_of

from singa_dask.algorithms import BP, CD
from singa_dask.layers import (
    LRN,
    BatchNorm,
    BridgeDst,
    BridgeSrc,
    Convolution,
    Dropout,
    EuclideanLoss,
    InnerProduct,
    Pooling,
    RBMHid,
    RBMVis,
    RecordInput,
    ReLU,
    Sigmoid,
    Softmax,
    SoftmaxLoss,
    STanh,
)

UNIFORM = {"init": {"type": "kUniform", "low": -0.3, "high": 0.3}}


def mlp():
    layers = [RecordInput("data", shape=[11])]
    for i, units in enumerate([13, 10, 9, 7, 5], 1):
        layers += [InnerProduct(f"fc{i}", num_output=units, param=[UNIFORM, UNIFORM])]
        layers += [STanh(f"tanh{i}"), Dropout(f"drop{i}", dropout_ratio=0.2)] if i < 5 else [SoftmaxLoss("loss")]
    return layers


def decoder(i, units, source):
    tied = [{"share_from": f"ip{i}_weight"}]
    return InnerProduct(f"back{i}", source, num_output=units, transpose=True, param=tied)


# The layers of a net, and those that are split in a mixed partition.
NETS = {
    "mnist": (
        [
            RecordInput("data", shape=[1, 9, 9]),
            Convolution("conv1", num_filters=5, kernel=3, stride=1, param=[{"init": {"type": "kUniformSqrtFanIn"}}]),
            ReLU("relu1"),
            Pooling("pool1", pool="MAX", kernel=2, stride=2),
            BridgeSrc("src"),
            BridgeDst("dst"),
            Convolution("conv2", num_filters=6, kernel=2, stride=1),
            ReLU("relu2"),
            Pooling("pool2", pool="MAX", kernel=2, stride=2),
            InnerProduct("ip1", num_output=9),
            ReLU("relu3"),
            InnerProduct("ip2", num_output=5),
            SoftmaxLoss("loss"),
        ],
        ["conv2", "ip1"],
    ),
    "cifar10": (
        [
            RecordInput("data", shape=[3, 8, 8]),
            Convolution("conv1", num_filters=6, kernel=3, pad=1, param=[{"init": {"type": "kGaussian", "std": 0.3}}]),
            Pooling("pool1", pool="MAX", kernel=3, stride=2),
            ReLU("relu1"),
            LRN("norm1", local_size=3, alpha=0.5, beta=0.75),
            Convolution("conv2", num_filters=5, kernel=3, pad=1, bias_term=False),
            BatchNorm("bn2"),
            ReLU("relu2"),
            Pooling("pool2", pool="AVG", kernel=3, stride=2),
            LRN("norm2", local_size=3, alpha=0.5, beta=0.75),
            Dropout("drop2", dropout_ratio=0.3),
            InnerProduct("ip1", num_output=5),
            SoftmaxLoss("loss", topk=2),
        ],
        ["conv1", "bn2", "ip1"],
    ),
    "mlp": (mlp(), ["fc1", "fc2", "fc4"]),
    "autoencoder, whose decoder has the transposed weights of the encoder": (
        [
            RecordInput("data", shape=[8]),
            InnerProduct("ip1", num_output=7),
            Sigmoid("sigmoid1"),
            InnerProduct("ip2", num_output=4),
            decoder(2, 7, "ip2"),
            Sigmoid("output2"),
            decoder(1, 8, "output2"),
            Sigmoid("output1"),
            EuclideanLoss("loss", ["output1", "data"]),
        ],
        ["ip1"],
    ),
    "softmax in the middle": (
        [
            RecordInput("data", shape=[6]),
            InnerProduct("ip1", num_output=8),
            Softmax("soft"),
            InnerProduct("ip2", num_output=7),
            Softmax("parts", num_softmax_per_instance=7),
            InnerProduct("ip3", num_output=4),
            SoftmaxLoss("loss"),
        ],
        ["ip1", "ip3"],
    ),
    "rbm": (
        [
            RecordInput("data", shape=[9]),
            RBMVis("visible", ["data", "hidden"], hdim=6, param=[{"init": {"type": "kGaussian", "std": 0.1}}]),
            RBMHid("hidden", "visible", hdim=6),
        ],
        ["visible", "hidden"],
    ),
}


@pytest.mark.parametrize("dim", [0, 1, "mixed"])
@pytest.mark.parametrize("name", NETS)
def test_a_few_steps_equal_the_serial_run(name, dim):
    layers, mixed = NETS[name]
    net = net_of(layers, partition_dim=int(dim == 1))
    for layer in net.layer:
        if dim == "mixed" and layer.name in mixed:
            layer.partition_dim = 1
    channels, *size = net.layer[0].store_conf.shape
    given = batches((*size, channels), 4, count=4)
    algorithm = CD() if name == "rbm" else BP()
    results = assert_equal_to_serial(net, algorithm, given, (2, 3, 4), rtol=1e-7, atol=1e-9)
    for result in results.values():
        split = {name.rpartition("_")[0] for name in result["own"]}
        if dim == "mixed":
            assert split == set(mixed) - {"bn2"}, "a BatchNorm goes on with the rows of its source"
        else:
            assert bool(split) == dim
