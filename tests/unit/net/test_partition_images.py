"""Partitioned nets of images, and nets that slice and concatenate: equal to the serial net."""

import pytest

from singa_dask.algorithms import BP
from singa_dask.layers import (
    LRN,
    BridgeDst,
    BridgeSrc,
    Concate,
    Convolution,
    InnerProduct,
    Pooling,
    RecordInput,
    ReLU,
    Sigmoid,
    Slice,
    Softmax,
    SoftmaxLoss,
    Split,
    Tanh,
)
from tests.support.partitioned import assert_equal_to_serial
from tests.unit.net.test_partition import batches, net_of

IMAGES = batches((6, 6, 3), 5, count=2)


def cnn(conv1, conv2, ip):
    return [
        RecordInput("data", shape=[3, 6, 6]),
        Convolution("conv1", num_filters=5, kernel=3, pad=1, partition_dim=conv1),
        Pooling("pool1", kernel=2, stride=2, pool="MAX"),
        ReLU("relu1"),
        BridgeSrc("src"),
        BridgeDst("dst"),
        Convolution("conv2", num_filters=4, kernel=3, pad=1, bias_term=False, partition_dim=conv2),
        Pooling("pool2", kernel=3, stride=2, pool="AVG"),
        Sigmoid("sigmoid2"),
        InnerProduct("ip", num_output=5, partition_dim=ip),
        SoftmaxLoss("loss"),
    ]


@pytest.mark.parametrize(
    ("dims", "net"),
    [((-1, -1, -1), 1), ((1, -1, -1), 0), ((-1, 1, 0), 0), ((0, 1, 1), 0), ((1, 0, 1), 1), ((0, 0, 1), 0)],
)
def test_filters(dims, net):
    results = assert_equal_to_serial(net_of(cnn(*dims), partition_dim=net), BP(), IMAGES, (2, 3))
    names = ("conv1", "conv2", "ip")
    split = {name for name, dim in zip(names, dims, strict=True) if (net if dim < 0 else dim)}
    for size, result in results.items():
        assert {name.partition("_")[0] for name in result["own"]} == split
        for name, portion in result["own"].items():
            assert portion.bounds[-1] == {"conv1": 5, "conv2": 4}.get(name.partition("_")[0], portion.bounds[-1])
            assert len(portion.bounds) == size + 1


def test_a_parameter_asks_for_its_layer_to_be_split():
    layers = cnn(-1, -1, -1)
    layers[1] = Convolution("conv1", num_filters=5, kernel=3, pad=1, param=[{"partition_dim": 3}])
    layers[-2] = InnerProduct("ip", num_output=5, param=[{"partition_dim": 0}])
    own = assert_equal_to_serial(net_of(layers), BP(), IMAGES, (2,))[2]["own"]
    assert {name: portion.axis for name, portion in own.items()} == {
        "conv1_weight": 3,
        "conv1_bias": 0,
        "ip_weight": 0,
    }


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
@pytest.mark.parametrize("net", [0, 1])
def test_slicing_and_concatenating_images(dim, net):
    data = RecordInput("data", shape=[3, 6, 6])
    pieces = Slice("slice", Convolution("conv", data, num_filters=4, kernel=3), slice_dim=dim, num_slices=2)
    joined = Concate("joined", [ReLU("relu", pieces), Tanh("tanh", pieces)], concate_dim=dim)
    copies = Split("copies", joined, num_splits=2)
    losses = [SoftmaxLoss(f"loss{i}", [InnerProduct(f"ip{i}", copies, num_output=5), data]) for i in (1, 2)]
    assert_equal_to_serial(net_of([data, *losses], partition_dim=net), BP(), IMAGES, (2, 3))


@pytest.mark.parametrize("dims", [(0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 0, 1)])
@pytest.mark.parametrize("net", [0, 1])
def test_slices_of_the_mini_batch_have_layers_of_their_own(dims, net):
    """Pieces of 3 and 4 rows: of 4 workers, one has no row of the first piece."""
    data = RecordInput("data", shape=[12])
    ip = InnerProduct("ip", data, num_output=8, partition_dim=dims[0])
    pieces = Slice("slice", ip, slice_dim=0, num_slices=2)
    first = Tanh("tanh", InnerProduct("first", pieces, num_output=5, partition_dim=dims[1]))
    second = InnerProduct("second", pieces, num_output=5, partition_dim=dims[2])
    joined = Concate("joined", [first, second], concate_dim=0)
    layers = [data, SoftmaxLoss("loss", [joined, data])]
    assert_equal_to_serial(net_of(layers, partition_dim=net), BP(), batches((12,), 5, count=2), (2, 4))


def test_normalisation_across_channels_of_several_workers():
    layers = [
        RecordInput("data", shape=[3, 6, 6]),
        Convolution("conv", num_filters=7, kernel=3, pad=1),
        LRN("norm", local_size=5, alpha=2, knorm=1.5),
        Pooling("pool", kernel=3, stride=2, pool="MAX"),
        Softmax("soft"),
        InnerProduct("ip", num_output=5),
        SoftmaxLoss("loss", topk=2),
    ]
    results = assert_equal_to_serial(net_of(layers, partition_dim=1), BP(), IMAGES, (2, 3, 4))
    for size, channels in {2: 2, 3: 2, 4: 1}.items():  # of the first worker, read by others
        forward = len(IMAGES) * 7 * 36 * channels * 8
        assert results[size]["bytes"]["all_to_all"] == 2 * forward
