"""A partitioned net computes what the serial net computes."""

import pytest
from support.partitioned import assert_equal_to_serial, batches, net_of

from singa_dask.algorithms import BP
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import InnerProduct, RecordInput, SoftmaxLoss, Tanh
from singa_dask.net import Net
from singa_dask.ops import Ops


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
