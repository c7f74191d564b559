"""A partitioned net computes what the serial net computes."""

import numpy as np
import pytest
from support.partitioned import assert_equal_to_serial, batches, net_of
from support.random_nets import CLASSES, RandomNet

from singa_dask.algorithms import BP
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    LRN,
    Concate,
    Convolution,
    InnerProduct,
    Pooling,
    RecordInput,
    ReLU,
    Slice,
    Softmax,
    SoftmaxLoss,
    Split,
    Tanh,
)
from singa_dask.net import Net
from singa_dask.ops import Ops

IMAGES = batches((6, 6, 3), 5, count=2)


@pytest.mark.parametrize("asked", [[], [{}, {"partition_dim": 0}]])
def test_a_bias_that_is_split_splits_the_outputs(asked):
    """With fewer outputs than inputs, the layer is otherwise split over its inputs."""
    last = InnerProduct("ip2", num_output=5, param=asked)
    layers = [
        RecordInput("data", shape=[12]),
        InnerProduct("ip1", num_output=9),
        Tanh("tanh"),
        last,
        SoftmaxLoss("loss"),
    ]
    results = assert_equal_to_serial(net_of(layers, partition_dim=1), BP(), batches((12,), 5), (2,))
    own = results[2]["own"]
    assert ("ip2_bias" in own) == bool(asked) and own["ip2_weight"].axis == int(bool(asked))


def test_a_partition_that_is_not_chosen_yet_is_refused():
    net = net_of([RecordInput("data", shape=[12]), InnerProduct("ip1", num_output=9)], partition=NetProto.auto)
    Net(net, Phase.kTrain, Ops())
    with pytest.raises(ConfigError, match=r"neuralnet.partition: .* over 2 workers .* Received: auto. Train with"):
        Net(net, Phase.kTrain, Ops(), size=2)


def test_a_parameter_asks_for_its_layer_to_be_split():
    layers = [
        RecordInput("data", shape=[3, 6, 6]),
        Convolution("conv1", num_filters=5, kernel=3, pad=1, param=[{"partition_dim": 3}]),
        ReLU("relu"),
        InnerProduct("ip", num_output=5, param=[{"partition_dim": 0}]),
        SoftmaxLoss("loss"),
    ]
    own = assert_equal_to_serial(net_of(layers), BP(), IMAGES, (2,))[2]["own"]
    assert {name: shard.axis for name, shard in own.items()} == {
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


@pytest.mark.parametrize("seed", range(40))
def test_random_nets_under_random_partitions(seed):
    made = RandomNet(seed)
    net = net_of(made.layers, partition_dim=made.random.choice([0, 1]))
    draw, rows = np.random.default_rng(seed), made.random.randint(4, 9)
    given = [{"l0": (draw.standard_normal((rows, *made.shape)), draw.integers(0, CLASSES, rows))} for _ in range(2)]
    assert_equal_to_serial(net, BP(), given, (made.random.choice([2, 3, 4]),), rtol=1e-7, atol=1e-9)
