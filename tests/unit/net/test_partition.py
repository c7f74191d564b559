"""A partitioned net computes what the serial net computes."""

import pytest
from support.partitioned import assert_equal_to_serial, batches, net_of

from singa_dask.algorithms import BP
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import InnerProduct, RecordInput, ReLU, SoftmaxLoss, Tanh
from singa_dask.net import Net
from singa_dask.ops import Ops


def mlp(dims, net=0, **last):
    first, second, third = dims
    return net_of(
        [
            RecordInput("data", shape=[12]),
            InnerProduct("ip1", num_output=9, partition_dim=first),
            Tanh("tanh1"),
            InnerProduct("ip2", num_output=8, partition_dim=second),
            ReLU("relu2"),
            InnerProduct("ip3", num_output=5, partition_dim=third, **last),
            SoftmaxLoss("loss"),
        ],
        partition_dim=net,
    )


@pytest.mark.parametrize("dims", [(0, 0, 0), (1, 1, 1), (1, 0, 1), (0, 1, 0), (0, 0, 1), (1, 1, 0)])
@pytest.mark.parametrize("net", [0, 1])
def test_mlp(dims, net):
    results = assert_equal_to_serial(mlp(dims, net), BP(), batches((12,), 5), (2, 3, 4))
    for size, result in results.items():
        split = {name for name, portion in result["own"].items()}
        for number, dim in enumerate(dims, 1):
            assert (f"ip{number}_weight" in split) == (dim == 1), size


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
    net = mlp((-1, -1, -1))
    net.ClearField("partition_dim")
    net.partition = NetProto.auto
    Net(net, Phase.kTrain, Ops())
    with pytest.raises(ConfigError, match=r"neuralnet.partition: .* over 2 workers .* Received: auto. Train with"):
        Net(net, Phase.kTrain, Ops(), size=2)
