"""Tensors that are parameters themselves, and the values that tensors draw."""

import pickle

import numpy as np
import pytest

from singa_dask import Module, autograd, device, opt, tensor
from singa_dask.comm import run_threads
from singa_dask.errors import ConfigError, DataError, TrainingError
from singa_dask.tensors.tensor import Tensor

RNG = np.random.default_rng(5)
X = RNG.normal(size=(12, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 12)


class Layered(Module):
    def __init__(self):
        self.hidden, self.scores = autograd.Linear(4, 5), autograd.Linear(5, 3)

    def forward(self, x):
        return self.scores(autograd.relu(self.hidden(x)))


class ByHand(Module):
    """The same net, of tensors."""

    def __init__(self):
        self.w, self.b = [self.made(4, 5), self.made(5, 3)], [self.made(5), self.made(3)]

    @staticmethod
    def made(*shape):
        return Tensor(shape, requires_grad=True, stores_grad=True)

    def forward(self, x):
        x = autograd.relu(autograd.add_bias(autograd.matmul(x, self.w[0]), self.b[0]))
        return autograd.add_bias(autograd.matmul(x, self.w[1]), self.b[1])


def pair():
    """A net of each kind, with the same parameters."""
    layered, by_hand = Layered(), ByHand()
    layered(tensor.from_numpy(X))
    state = layered.state_dict()
    names = {"hidden_weight": "w.0", "hidden_bias": "b.0", "scores_weight": "w.1", "scores_bias": "b.1"}
    by_hand.load_state_dict({names[name]: value for name, value in state.items()})
    return layered, by_hand, names


def loss_of(net, rows=slice(None)):
    return autograd.softmax_cross_entropy(net(tensor.from_numpy(X[rows])), tensor.from_numpy(Y[rows]))


@pytest.mark.parametrize("method", ["backward_and_update", "backward_and_update_half", "backward_and_partial_update"])
@pytest.mark.parametrize("size", [1, 2])
def test_a_dist_opt_trains_tensors_as_it_trains_layers(method, size):
    def member(comm):
        layered, by_hand, names = pair()
        for net in (layered, by_hand):
            sgd = opt.DistOpt(opt.SGD(0.1, momentum=0.9), comm=comm)
            for step in range(4):
                getattr(sgd, method)(loss_of(net, slice(comm.rank + step, None, size)))
            for p, g in autograd.backward(loss_of(net)) if size == 1 else ():
                sgd.update(p, g)
        return layered.state_dict(), by_hand.state_dict(), names

    for layered, by_hand, names in run_threads(size, member):
        for name, value in layered.items():
            np.testing.assert_allclose(by_hand[names[name]], value, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_bias_of_rows_and_of_columns(axis):
    x, b = Tensor(data=X, stores_grad=True), Tensor(data=X.sum(axis), stores_grad=True)
    y = autograd.add_bias(x, b, axis)
    np.testing.assert_allclose(tensor.to_numpy(y), X + np.expand_dims(X.sum(axis), axis), rtol=1e-6)
    found = {id(p): tensor.to_numpy(g) for p, g in autograd.backward(autograd.mean_square_error(y, Tensor(X.shape)))}
    expected = 2 * tensor.to_numpy(y) / X.size
    np.testing.assert_allclose(found[id(x)], expected, rtol=1e-5)
    np.testing.assert_allclose(found[id(b)], expected.sum(axis), rtol=1e-4, atol=1e-7)
    for wrong, other in ((2, b), (1 - axis, b)):
        with pytest.raises(DataError, match="axis"):
            autograd.add_bias(x, other, wrong)


def test_tensors_draw_values_by_the_seed():
    def drawn():
        device.get_default_device().SetRandSeed(3)
        normal, uniform = Tensor((200, 50)), Tensor((200, 3, 4, 4))
        normal.gaussian(1, 0.5)
        uniform.uniform(-2, 0)
        return tensor.to_numpy(normal), tensor.to_numpy(uniform)

    (normal, uniform), again = drawn(), drawn()
    assert normal.mean() == pytest.approx(1, abs=0.03) and normal.std() == pytest.approx(0.5, abs=0.02)
    assert -2 <= uniform.min() < -1.99 and -0.01 < uniform.max() <= 0
    for one, other in zip((normal, uniform), again, strict=True):
        np.testing.assert_array_equal(one, other)
    x = Tensor((2, 3))
    x.set_value(1.5)
    assert (tensor.to_numpy(x) == 1.5).all()


class Elsewhere(device.Device):
    """Another device, with the CPU's operations."""

    def __init__(self):
        super().__init__("cpu", 1)


def test_tensors_move_between_devices_and_outputs_of_layers_do_not():
    other, x = Elsewhere(), Tensor(data=X, stores_grad=True)
    x.to_device(other)
    assert x.device is other and (tensor.to_numpy(x) == X).all()
    assert [p for p, _ in autograd.backward(autograd.mean_square_error(x, Tensor(X.shape, other)))] == [x]
    for change in (lambda y: y.to_device(other), lambda y: y.set_value(0), lambda y: setattr(y, "stores_grad", True)):
        with pytest.raises(DataError, match="belongs to a layer"):
            change(x + x)


def test_a_parameter_that_is_trained_does_not_move():
    net, sgd = ByHand(), opt.SGD(0.1)
    sgd.backward_and_update(loss_of(net))
    net.w[0].to_device(device.get_default_device())  # it is there
    sgd.backward_and_update(loss_of(net))
    for of in (*net.w, *net.b):
        of.to_device(Elsewhere())
        of.device = device.get_default_device()  # where the inputs are
    with pytest.raises(TrainingError, match=r"to_device has moved the parameters .*w\.0"):
        sgd.backward_and_update(loss_of(net))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Tensor((3,), dtype=tensor.int32, stores_grad=True), DataError, r"float32\. Received: int32"),
        (lambda: setattr(Tensor((3,), dtype=np.int64), "stores_grad", True), DataError, "float32"),
        (lambda: Tensor((3,), dtype="half"), ConfigError, "16-bit computing is not offered"),
        (lambda: opt.SGD(0.1).update(Tensor((3,)), Tensor((3,))), ConfigError, "is not a parameter.*stores_grad=True"),
        (lambda: Tensor((3,), dtype=tensor.int32).set_value(0.5), DataError, r"0\.5"),
    ],
)
def test_what_is_no_parameter_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_parameters_that_a_loss_does_not_use_are_named():
    net, sgd = ByHand(), opt.SGD(0.1)
    sgd.backward_and_update(loss_of(net))
    net.b[0] = Tensor((5,), stores_grad=True)
    with pytest.raises(TrainingError, match=r"did not use the parameters b\.0.* Make tensors"):
        sgd.backward_and_update(loss_of(net))


def test_a_tensor_may_become_a_parameter_later():
    x = tensor.from_numpy(X)
    x.stores_grad = True
    assert x.requires_grad and [p for p, _ in autograd.backward(autograd.mean_square_error(x, Tensor(X.shape)))] == [x]
    with pytest.raises(DataError, match="remains"):
        x.stores_grad = False


class Mixed(Module):
    def __init__(self):
        self.fc, self.w = autograd.Linear(4, 3), Tensor((3, 3), stores_grad=True)
        self.w.gaussian(0, 1)

    def forward(self, x):
        return self.fc(x) @ self.w


def test_the_state_of_a_module_has_layers_and_tensors():
    net = Mixed()
    with pytest.raises(ConfigError, match="has no parameters yet"):
        net.state_dict()
    opt.SGD(0.1).backward_and_update(loss_of(net))
    assert list(net.state_dict()) == ["fc_weight", "fc_bias", "w"]
    other = Mixed()
    other(tensor.from_numpy(X))
    other.load_state_dict(net.state_dict())
    assert float(loss_of(other)) == float(loss_of(net))
    net.fc_weight = Tensor((2,), stores_grad=True)
    with pytest.raises(ConfigError, match=r"two parameters of one name.* fc_weight"):
        net.state_dict()


def test_a_module_of_tensors_is_copied_with_them():
    net = ByHand()
    for w in net.w:
        w.gaussian(0, 1)
    other = pickle.loads(pickle.dumps(net))
    opt.SGD(0.1).backward_and_update(loss_of(other))
    assert all((tensor.to_numpy(a) != tensor.to_numpy(b)).any() for a, b in zip(net.w, other.w, strict=True))


def test_a_separable_convolution_is_one_by_channel_and_one_over_channels():
    x = tensor.from_numpy(RNG.normal(size=(2, 3, 6, 6)).astype(np.float32))
    first = autograd.SeparableConv2d(3, 5, 3, stride=2, padding=1, bias=True)
    assert first(x).shape == (2, 5, 3, 3)
    names = [f"convolution{number}_{role}" for number in (1, 2) for role in ("weight", "bias")]
    sizes = {name: value.size for name, value in first.state_dict().items()}
    assert sizes == dict(zip(names, (27, 3, 15, 5), strict=True))
    second, scores = autograd.SeparableConv2d(5, 2, 3), autograd.Linear(2, 3)
    y = autograd.relu(second(first(x)))
    assert y.shape == (2, 2, 1, 1) and tensor.to_numpy(y).min() >= 0
    opt.SGD(0.1)(autograd.softmax_cross_entropy(scores(autograd.flatten(y)), tensor.from_numpy(Y[:2])))


class Separable(Module):
    def __init__(self):
        self.first, self.second = autograd.SeparableConv2d(3, 5, 3), autograd.SeparableConv2d(5, 2, 3)

    def forward(self, x):
        return self.second(self.first(x))


def test_separable_convolutions_of_a_module_are_named_after_its_attributes():
    net = Separable()
    net(tensor.from_numpy(RNG.normal(size=(2, 3, 6, 6)).astype(np.float32)))
    convs = ["first.depthwise_conv", "first.point_conv", "second.depthwise_conv", "second.point_conv"]
    assert list(net.state_dict()) == [f"{conv}_weight" for conv in convs]


def test_a_module_switches_training_on_and_off():
    net = Layered()
    net.eval()
    assert not autograd.training and net(tensor.from_numpy(X)).call is None
    net.train()
    assert autograd.training and net(tensor.from_numpy(X)).call is not None
