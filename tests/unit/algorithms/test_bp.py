"""Algorithms: which class a job names, and that back-propagation trains."""

from __future__ import annotations

import numpy as np
import pytest

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


def train(updater, steps, features, labels, dtype=np.float32):
    """Losses of `steps` mini-batches of a small network, and the network."""
    ops = get_ops("cpu", dtype)
    net = Net(mlp(features.shape[1], 32, int(labels.max()) + 1), Phase.kTrain, ops)
    net.initialise(0)
    bound = make_updater(updater.proto, ops)
    bound.bind(net.flat.entries, 0, net.flat.size)
    bp, losses = BP(), []
    for number in range(steps):
        rows = np.arange(number * ROWS, (number + 1) * ROWS) % len(features)
        feed = {"data": Batch(features[rows], labels[rows])}
        metrics = bp.train_one_batch(net, feed, Step(number=number, total_rows=ROWS))
        bound.update(number, net.flat.values, net.flat.grads)
        losses.append(metrics["loss"].mean)
    return losses, net


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    data = load_digits()
    return (data.data / 16).astype(np.float32), data.target.astype(np.int64)


@pytest.mark.parametrize(
    "updater",
    [
        updaters.SGD(lr=0.1, momentum=0.9, weight_decay=1e-4),
        updaters.Nesterov(lr=0.1, momentum=0.9),
        updaters.AdaGrad(lr=0.05),
        updaters.RMSProp(lr=0.003, rho=0.9),
        updaters.AdaDelta(lr=1, delta=1e-6),
        updaters.Adam(lr=0.005),
        updaters.AdamMax(lr=0.01),
    ],
    ids=lambda updater: type(updater).__name__,
)
def test_every_updater_trains_a_small_network(updater, digits):
    losses, net = train(updater, 150, *digits)
    assert losses[0] == pytest.approx(np.log(10), rel=0.15)
    assert np.mean(losses[-20:]) < 0.35 * losses[0]
    test = Net(mlp(64, 32, 10), Phase.kTest, net.ops, share=net)
    features, labels = digits
    metrics = BP().test_one_batch(test, {"data": Batch(features, labels)}, Step(Phase.kTest, total_rows=len(features)))
    assert metrics["accuracy"].count == len(features)
    assert metrics["accuracy"].mean > 0.8


def test_training_is_reproducible_bit_for_bit(digits):
    sgd = updaters.SGD(lr=0.1, momentum=0.9)
    assert train(sgd, 20, *digits)[0] == train(sgd, 20, *digits)[0]


def test_testing_leaves_gradients_alone(digits):
    _, net = train(updaters.SGD(lr=0.1), 1, *digits)
    before = net.flat.grads.copy()
    features, labels = digits
    BP().test_one_batch(net, {"data": Batch(features, labels)}, Step())
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
