"""Contrastive divergence: its statistics against exact enumeration, and that it learns."""

from itertools import product

import numpy as np
import pytest

from singa_dask import updaters
from singa_dask.algorithms import CD, algorithm
from singa_dask.comm.threads import run_threads
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import InnerProduct, RBMHid, RBMVis, RecordInput, Sigmoid
from singa_dask.layers.context import Step
from singa_dask.layers.partition import even_bounds
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.updaters import make_updater
from tests.support.partitioned import Member, assert_equal_to_serial

ROWS = 40_000


def machine(visible=4, hidden=3, gaussian=False, below=(), phase=Phase.kTrain, dtype=np.float64, seed=1):
    """A net of one RBM, in SINGA's wiring: each of its layers reads the other."""
    source = below[-1].name if below else "data"
    layers = [
        RecordInput("data", shape=[below[0].conf.num_output if below else visible], batchsize=10),
        *below,
        RBMVis("vis", [source, "hid"], hdim=hidden, param=[{"name": "w"}, {"name": "a"}]),
        RBMHid("hid", "vis", hdim=hidden, gaussian=gaussian, param=[{"name": "w_", "share_from": "w"}, {"name": "b"}]),
    ]
    net = Net(NetProto(layer=[layer.proto for layer in layers]), phase, get_ops("cpu", dtype))
    draw = np.random.default_rng(seed)
    net.flat.values[...] = draw.normal(size=net.flat.size)
    return net


def parameters(net):
    return [net.named_params[name].value.astype(np.float64) for name in "wab"]


def gradients(net):
    return [net.named_params[name].grad.astype(np.float64) for name in "wab"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def train(net, data, k=1, number=0, first_row=0, total=None):
    step = Step(number=number, seed=3, first_row=first_row, total_rows=total or len(data))
    return CD(cd_k=k).train_one_batch(net, {"data": Batch(data)}, step)


def exact(net, v, k):
    """Expected gradient of CD-k for one row: the sum over all ways that the k samples can come out."""
    w, a, b = parameters(net)
    states = np.array(list(product([0, 1], repeat=w.shape[1])), float)
    positive = sigmoid(v @ w + b)

    def follow(mean, left):
        if left == 0:
            return []
        found = []
        for s in states:
            p = np.prod(np.where(s == 1, mean, 1 - mean))
            visible = sigmoid(s @ w.T + a)
            hidden = sigmoid(visible @ w + b)
            ways = follow(hidden, left - 1) or [(1.0, visible, hidden)]
            found += [(p * q, end, last) for q, end, last in ways]
        return found

    ways = follow(positive, k)
    assert sum(p for p, _, _ in ways) == pytest.approx(1)
    return (
        sum(p * np.outer(visible, hidden) for p, visible, hidden in ways) - np.outer(v, positive),
        sum(p * visible for p, visible, _ in ways) - v,
        sum(p * hidden for p, _, hidden in ways) - positive,
    )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_gradient_is_that_of_enumerating_all_samples(k):
    net = machine()
    v = np.array([1.0, 0.0, 0.3, 1.0])
    train(net, np.tile(v, (ROWS, 1)), k)
    for found, wanted in zip(gradients(net), exact(net, v, k), strict=True):
        # Five standard errors of a mean of values below 1.
        np.testing.assert_allclose(found, wanted, atol=5 * 0.5 / np.sqrt(ROWS))


def test_gaussian_hidden_units_are_sampled_around_their_mean():
    net = machine(hidden=1, gaussian=True)
    w, a, b = parameters(net)
    v = np.array([1.0, 0.0, 0.3, 1.0])
    train(net, np.tile(v, (ROWS, 1)))
    mean = v @ w + b
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    ways = [(p, sigmoid((mean + x) @ w.T + a)) for x, p in zip(points, weights / weights.sum(), strict=True)]
    expected = sum(p * visible for p, visible in ways)
    np.testing.assert_allclose(gradients(net)[1], expected - v, atol=0.015)
    np.testing.assert_allclose(gradients(net)[2], expected @ w + b - mean, atol=0.03)


def log_likelihood(net, data):
    """Exactly: every hidden state is summed over, for the data and for the partition function."""
    w, a, b = parameters(net)
    every = np.array(list(product([0, 1], repeat=w.shape[0])), float)

    def free(v):
        return v @ a + np.logaddexp(0, v @ w + b).sum(axis=1)

    return free(data).mean() - np.log(np.exp(free(every)).sum())


def test_training_raises_the_exact_likelihood_of_the_data():
    bars = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]], float)
    data = np.tile(bars, (20, 1))
    net = machine(visible=6, hidden=4)
    net.flat.values[...] *= 0.1
    updater = make_updater(updaters.SGD(lr=0.2, momentum=0.5).proto, net.ops)
    updater.bind(net.flat.entries, 0, net.flat.size)
    before = log_likelihood(net, data)
    for number in range(1500):
        metrics = train(net, data, number=number)
        updater.update(number, net.flat.values, net.flat.grads)
    assert before == pytest.approx(-6 * np.log(2), abs=0.3)
    assert log_likelihood(net, data) > -2.0  # three equal bars have -log 3 = -1.1
    assert metrics["squared_error"].mean < 0.5


@pytest.mark.parametrize(
    "updater", [updaters.SGD(lr=0.1, momentum=0.9, weight_decay=0.1), updaters.Adam(lr=0.1, weight_decay=0.1)]
)
def test_what_is_below_the_machine_keeps_its_values(updater):
    below = (InnerProduct("ip", "data", num_output=4), Sigmoid("sigmoid", "ip"))
    net = machine(below=below)
    updater = make_updater(updater.proto, net.ops)
    updater.bind(net.flat.entries, 0, net.flat.size)
    frozen = {name: net.named_params[name].value.copy() for name in ("ip_weight", "ip_bias")}
    before = parameters(net)
    for number in range(3):
        train(net, np.random.default_rng(0).random((10, 4)), number=number)
        updater.update(number, net.flat.values, net.flat.grads)
    for name, value in frozen.items():
        np.testing.assert_array_equal(net.named_params[name].value, value)
    assert all(np.abs(now - then).max() > 0.01 for now, then in zip(parameters(net), before, strict=True))


def test_evaluation_measures_and_leaves_the_gradients_alone():
    net, data = machine(), np.random.default_rng(0).random((10, 4))
    net.flat.grads[...] = 7
    metrics = CD().test_one_batch(net, {"data": Batch(data)}, Step(phase=Phase.kTest, total_rows=10))
    assert metrics["squared_error"].count == 10 and metrics["squared_error"].mean > 0
    assert (net.flat.grads == 7).all()


def test_the_hidden_layer_takes_the_weight_of_its_partner():
    layers = [
        RecordInput("data", shape=[4], batchsize=10),
        RBMVis("vis", "data", hdim=3),
        RBMHid("hid", "vis", hdim=3),
    ]
    net = Net(NetProto(layer=[layer.proto for layer in layers]), Phase.kTrain, get_ops("cpu"))
    assert [(param.name, param.shape) for param in net.params] == [
        ("vis_weight", (4, 3)),
        ("vis_bias", (4,)),
        ("hid_bias", (3,)),
    ]


def test_a_net_without_a_machine_is_refused():
    layers = [RecordInput("data", shape=[4], batchsize=10), InnerProduct("ip", "data", num_output=3)]
    net = Net(NetProto(layer=[layer.proto for layer in layers]), Phase.kTrain, get_ops("cpu"))
    with pytest.raises(ConfigError, match="no restricted Boltzmann machine"):
        train(net, np.zeros((2, 4)))


def test_the_job_names_it():
    found = algorithm(CD(cd_k=5).proto)
    assert isinstance(found, CD) and found.proto.cd_conf.cd_k == 5


def stack(dim, *, gaussian=False, bias_term=True, hidden=(7, 4), dims=(None, None)):
    """Two machines on top of a layer that is not trained, the second on top of the first. dims: of vis1 and hid1."""
    layers, below = [RecordInput("data", shape=[5]), InnerProduct("ip", "data", num_output=6), Sigmoid("s", "ip")], "s"
    for i, units in enumerate(hidden):
        conf = {"hdim": units, "bias_term": bias_term}
        vis_dim, hid_dim = dims if i == 1 else (None, None)
        layers += [
            RBMVis(f"vis{i}", [below, f"hid{i}"], **conf, gaussian=gaussian and i == 0, partition_dim=vis_dim),
            RBMHid(f"hid{i}", f"vis{i}", **conf, gaussian=gaussian and i == 1, partition_dim=hid_dim),
        ]
        below = f"hid{i}"
    return NetProto(layer=[layer.proto for layer in layers], partition_dim=dim)


def rows_of(count, rows=8, seed=0):
    rng = np.random.default_rng(seed)
    return [{"data": (rng.random((rows, 5)), None)} for _ in range(count)]


BOTH = ["vis0_weight", "vis1_weight", "hid0_bias", "hid1_bias"]


@pytest.mark.parametrize(
    ("dim", "settings", "sizes", "split"),
    [
        (0, {}, (2, 3, 4), []),
        (0, {"gaussian": True}, (2, 3, 4), []),
        (0, {"bias_term": False}, (2, 3, 4), []),
        (1, {}, (2, 3, 4), BOTH),
        (1, {"gaussian": True}, (2, 3, 4), BOTH),
        (1, {"bias_term": False}, (2, 3, 4), BOTH[:2]),
        (0, {"dims": (1, None)}, (2,), ["vis1_weight", "hid1_bias"]),
        (0, {"dims": (1, 1)}, (2,), ["vis1_weight", "hid1_bias"]),
        (1, {"dims": (0, None)}, (2,), ["vis0_weight", "hid0_bias"]),
        (1, {"hidden": (7, 2)}, (3,), ["vis0_weight", "hid0_bias"]),  # fewer hidden units than workers
    ],
)
def test_a_group_trains_as_one_worker(dim, settings, sizes, split):
    results = assert_equal_to_serial(stack(dim, **settings), CD(cd_k=2), rows_of(4), sizes)
    for result in results.values():
        assert {name for name in result["own"] if name[:2] != "ip"} == set(split)


@pytest.mark.parametrize("size", [2, 3])
def test_workers_exchange_visible_units_only(size):
    """Layers read 5 features, and 6 and 7 visible units. The chain sums over the workers for the latter two."""
    steps, k, rows, value = 3, 2, 8, 8
    (result,) = assert_equal_to_serial(stack(1), CD(cd_k=k), rows_of(steps, rows), (size,)).values()
    own = [even_bounds(rows, size)[1] * 5, rows * even_bounds(6, size)[1], rows * even_bounds(7, size)[1]]
    assert result["bytes"] == {
        "all_gather": steps * value * (rows * (5 + 6 + 7) - sum(own)),
        "all_reduce": steps * value * k * rows * (6 + 7),
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dims": (1, 1), "hidden": (7, 2)}, ["'vis1'", "over 3 workers", "2 hidden units", "partition_dim: 0"]),
        ({"dims": (None, 1)}, ["'hid1'", "partition_dim 0", "Received: partition_dim: 1", "both layers"]),
        ({"dims": (1, 0)}, ["'hid1'", "partition_dim 1", "Received: partition_dim: 0", "both layers"]),
    ],
)
def test_a_partition_that_a_machine_cannot_have_is_refused(settings, words):
    with pytest.raises(ConfigError) as caught:
        Net(stack(0, **settings), Phase.kTrain, get_ops("cpu"), rank=1, size=3)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def evaluate(comm, dim):
    member = Member(comm, stack(dim), phases=(Phase.kTrain, Phase.kTest))
    feed, step = member.feed(rows_of(1)[0], 3, Phase.kTest)
    return member.means(CD().test_one_batch(member.nets[Phase.kTest], feed, step))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_group_measures_what_one_worker_measures(dim):
    (serial,) = run_threads(1, evaluate, dim)
    assert serial.keys() == {"vis0.squared_error", "vis1.squared_error"}
    for measured in run_threads(3, evaluate, dim):
        assert measured == pytest.approx(serial)
