"""Algorithms: which class a job names, and that back-propagation trains."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from singa_dask import updaters
from singa_dask.algorithms import BP, TrainOneBatch, algorithm
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import AlgProto, NetProto, Phase
from singa_dask.layers import InnerProduct, RecordInput, SoftmaxLoss, STanh
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.updaters import make_updater

ROWS = 64


def mlp(features, hidden, classes):
    layers = [
        RecordInput("data", shape=[features], batchsize=ROWS),
        InnerProduct("ip1", "data", num_output=hidden),
        STanh("tanh", "ip1"),
        InnerProduct("ip2", "tanh", num_output=classes),
        SoftmaxLoss("loss", ["ip2", "data"]),
    ]
    return NetProto(layer=[layer.proto for layer in layers])


def test_back_propagation_trains_a_small_network():
    digits = load_digits()
    features, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
    ops = get_ops("cpu")
    net = Net(mlp(64, 32, 10), Phase.kTrain, ops)
    net.initialise(0)
    updater = make_updater(updaters.SGD(lr=0.1, momentum=0.9).proto, ops)
    updater.bind(net.flat.entries, 0, net.flat.size)
    losses = []
    for number in range(100):
        rows = np.arange(number * ROWS, (number + 1) * ROWS) % len(features)
        feed = {"data": Batch(features[rows], labels[rows])}
        losses.append(BP().train_one_batch(net, feed, Step(number=number, total_rows=ROWS))["loss"].mean)
        updater.update(number, net.flat.values, net.flat.grads)
    assert losses[0] == pytest.approx(np.log(10), rel=0.15)
    assert np.mean(losses[-20:]) < 0.35 * losses[0]
    test, before = Net(mlp(64, 32, 10), Phase.kTest, ops, share=net), net.flat.grads.copy()
    metrics = BP().test_one_batch(test, {"data": Batch(features, labels)}, Step(Phase.kTest, total_rows=len(features)))
    assert metrics["accuracy"].count == len(features)
    assert metrics["accuracy"].mean > 0.8
    np.testing.assert_array_equal(net.flat.grads, before)


class Twice(TrainOneBatch):
    """A user's own: back-propagation with doubled gradients."""

    def train_one_batch(self, net, feed, step, on_gradient=None):
        net.forward(feed, step)
        net.backward()
        net.flat.grads[...] *= 2
        return net.metrics()


def test_algorithms_by_name():
    found = algorithm(AlgProto(alg=AlgProto.kBP))
    assert type(found) is BP
    assert found.proto == BP().proto
    proto = Twice().proto
    assert proto.user_alg.endswith("test_bp:Twice")
    assert type(algorithm(proto)) is Twice


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (AlgProto(), ["kUserAlg needs user_alg", "alg: kBP"]),
        (
            AlgProto(user_alg="singa_dask.layers:ReLU"),
            ["train_one_batch.user_alg", "subclass of TrainOneBatch", "singa_dask.layers:ReLU"],
        ),
        (AlgProto(user_alg="nowhere:X"), ["no module named 'nowhere'"]),
    ],
)
def test_errors_name_key_value_and_way_out(proto, words):
    with pytest.raises(ConfigError) as caught:
        algorithm(proto)
    assert all(word in str(caught.value) for word in words), str(caught.value)
