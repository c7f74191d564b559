"""Gradients for inputs in a net, and parameters of a Module itself."""

import numpy as np
import pytest

from singa_dask import Job, Model, Module, autograd, load_model, opt
from singa_dask.errors import ConfigError
from singa_dask.layers import GRU, LSTM, BatchNorm, InnerProduct, Lambda, LayerNorm, Loss, RecordInput
from singa_dask.loops.distopt import DistOpt
from singa_dask.net import Net
from singa_dask.ops import get_ops
from singa_dask.tensors.tensor import Tensor, from_numpy
from singa_dask.updaters import SGD

RNG = np.random.default_rng(3)
X, A = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 4))
INPUTS = [RecordInput(name, shape=[4]) for name in "xa"]


def parameter(*shape):
    return Tensor(data=RNG.normal(size=shape), stores_grad=True)


def squares(x):
    return autograd.sum(x * x, axis=1)


def bent(x, by):
    return autograd.sin(x) * by


class OwnParameters(Module):
    """Read twice, behind functions of them, on either side, as an argument of a function and in a loss."""

    def __init__(self):
        self.first, self.out, self.by = InnerProduct(num_output=3), parameter(3, 2), parameter(3)
        self.bent, self.loss = Lambda(bent), Loss(lambda y, by: squares(y - by[:2]))

    def forward(self, x, a):
        h = self.bent(autograd.tanh(self.first(x + a)), self.by)
        length = autograd.sqrt(autograd.sum(self.out**2, axis=0))
        more = autograd.where(self.by > 0, autograd.tanh(self.by), 2 * autograd.detach(self.by))
        return self.loss(more[1] + h @ (self.out / length), self.by)


class Curved(Module):
    """Gradients of gradients, for two inputs, over a sum of layers, a function and a parameter of its own."""

    def __init__(self):
        self.first, self.second, self.scale = InnerProduct(num_output=5), InnerProduct(num_output=1), parameter(5)
        self.loss = Loss(squares)

    def u(self, x, a):
        h = autograd.tanh(self.first(x) + self.first(a * x)) * self.scale
        return self.second(autograd.where(h > 0, h, autograd.sin(h)))

    def forward(self, x, a):
        for each in (x, a):
            each.requires_grad = True
        dx, da = autograd.grad(self.u(x, a), [x, a], create_graph=True)
        twice = autograd.grad(dx[:, :2] * da[:, 1:3], x, grad_outputs=a[:, :2], create_graph=True)
        return self.loss(twice + dx - autograd.grad(squares(da), a, create_graph=True))


@pytest.mark.parametrize("kind", [OwnParameters, Curved])
def test_a_model_trains_as_a_loop(kind, in_float64):
    net = kind()
    net(from_numpy(X), from_numpy(A))
    model = Model([net(*INPUTS)], dtype=np.float64)
    start = {name: -value for name, value in net.state_dict().items()}  # not those with which the net was built
    model.load_state_dict(start)
    of_model, losses = DistOpt(SGD(lr=0.1), model), []
    for _ in range(3):
        losses.append(model({"x": X, "a": A}))
        of_model.backward_and_update(losses[-1])
    alone, of_loop = kind(), opt.SGD(lr=0.1)
    alone(from_numpy(X), from_numpy(A))
    alone.load_state_dict(start)
    for loss in losses:
        eager = alone(from_numpy(X), from_numpy(A))
        assert eager.item() == pytest.approx(float(loss), rel=1e-11)
        of_loop(eager)
    for name, value in alone.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[name], value, 1e-9, 1e-11, err_msg=name)
        np.testing.assert_array_equal(net.state_dict()[name], model.state_dict()[name])  # they are the model's


def test_gradients_are_as_differences_say():
    model = Model([Curved()(*INPUTS)], dtype=np.float64)
    model({"x": X, "a": A})
    model.net.backward()
    for param in model.net.params:
        at, eps = (0,) * param.value.ndim, 1e-5
        gradient, before, values = param.grad[at], param.value[at], []
        for moved in (before + eps, before - eps):
            param.value[at] = moved
            values.append(float(model({"x": X, "a": A})))
        param.value[at] = before
        assert (values[0] - values[1]) / (2 * eps) == pytest.approx(gradient, rel=1e-5, abs=1e-7), param.name


def test_a_job_begins_with_the_values_of_a_modules_own_parameters(tmp_path):
    module = OwnParameters()
    job = Job(name="own", layers=[module(*INPUTS)], updater=SGD(lr=0.1), train_steps=1)
    net = Net(job.proto.neuralnet, 1, get_ops())
    net.initialise(7)
    np.testing.assert_array_equal(net.named_params["by"].value, module.by.to_numpy())
    assert [param.name for param in net.params] == ["first_weight", "first_bias", "by", "out"]


def test_a_saved_model_has_them(tmp_path):
    model = Model([Scaled()(INPUTS[0])])
    model.save(tmp_path / "model.h5")
    np.testing.assert_array_equal(load_model(tmp_path / "model.h5").predict(X), model.predict(X))


class Scaled(Module):
    def __init__(self):
        self.scale = parameter(4)

    def forward(self, x):
        return x * self.scale


class Wrong(Module):
    def __init__(self, of):
        self.of, self.fc, self.norm, self.scale = of, InnerProduct(num_output=1), LayerNorm(), parameter(4)

    def forward(self, x, a):
        return self.of(self, x, a)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (lambda net, x, a: autograd.grad(net.fc(x), a), "do not depend on an input.*inputs"),
        (lambda net, x, a: autograd.grad(net.fc(x), autograd.detach(x)), "do not depend"),
        (lambda net, x, a: autograd.grad(net.fc(autograd.detach(x)), x), "do not depend"),
        (lambda net, x, a: autograd.grad(net.norm(x), x), "'norm': does not consist of functions"),
        (lambda net, x, a: x * parameter(4), r"no attribute of the Module.*self\.scale = "),
        (lambda net, x, a: x * net.scale.to_numpy(), "has no numbers in forward.*kept in loops over tensors"),
        (lambda net, x, a: x if net.scale[0] > 0 else a, "has no numbers in forward"),
        (lambda net, x, a: x + net.fc(net.scale[None]), "called on a tensor in a net"),
    ],
)
def test_what_a_net_cannot_hold_is_refused(of, words):
    with pytest.raises(ConfigError, match=words):
        Wrong(of)(*INPUTS)


class TwoTowers(Module):
    """Calls its normalisation in another order than its losses read the results; one layer trains nothing."""

    def __init__(self):
        self.norm, self.teacher, self.unused = (layer() for layer in (BatchNorm, dense, dense))
        self.first, self.second, self.loss = Loss(squares), Loss(squares), Loss(imitated)

    def forward(self, x, a):
        late, early = self.norm(a), self.norm(autograd.sin(x))
        self.unused(late)
        soft = autograd.detach(self.teacher(late))
        return self.first(early), self.second(late * 2), self.loss(early, self.teacher(x) + soft)


def dense():
    return InnerProduct(num_output=4)


def imitated(x, y):
    return squares(x - autograd.detach(y))


def test_calls_have_their_order_and_what_no_loss_reaches_stays(in_float64):
    net, rule = TwoTowers(), {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    net(from_numpy(X), from_numpy(A))
    start = {name: value + 1 for name, value in net.state_dict().items()}
    net.load_state_dict(start)
    model, of_loop = Model(list(TwoTowers()(*INPUTS)), dtype=np.float64), opt.SGD(**rule)
    names = model.state_dict()
    model.load_state_dict({name: start[name] for name in names})
    of_model = DistOpt(SGD(**rule), model)
    for _ in range(3):
        first, second, third = net(from_numpy(X), from_numpy(A))
        of_loop(first + second + third)
        of_model.backward_and_update(model({"x": X, "a": A}))
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(value, net.state_dict()[name], 1e-12, 1e-12, err_msg=name)
        assert name.startswith("norm") or (value == start[name]).all()
    assert {name.partition("_")[0] for name in names} == {"norm", "teacher"}


def test_comparisons_of_layers_are_functions():
    class Compared(Module):
        def forward(self, x, a):
            return autograd.where(x != 0, 1 / x, 0) + (x == a) + (a[:, 0] == 2)[:, None]

    x, a = np.array([[0, 1.0], [2, 4]]), np.array([[2.0, 1], [3, 4]])
    model = Model([Compared()(*(RecordInput(name, shape=[2]) for name in "xa"))])
    np.testing.assert_array_equal(model.predict({"x": x, "a": a}), [[1, 3], [0.5, 1.25]])
    with pytest.raises(ConfigError, match="has no value in forward"):
        Wrong(lambda net, x, a: x if x != 0 else a)(*INPUTS)
    assert INPUTS[0] == INPUTS[0] and INPUTS[0] != INPUTS[1] and INPUTS[0] != "x" and INPUTS[0] in INPUTS


class OverTime(Module):
    """Gradients for what a recurrent layer gives: of a mean over the steps, of the last step, and read by another."""

    def __init__(self):
        self.lstm, self.gru = LSTM(dim_hidden=3), GRU(dim_hidden=2)
        self.first, self.second, self.loss = InnerProduct(num_output=4), InnerProduct(num_output=2), Loss(all_squares)

    def u(self, h):
        return self.second(autograd.tanh(self.first(h)))

    def forward(self, x):
        h = self.lstm(x)
        last = h[:, -1]
        of_mean = autograd.grad(self.second(autograd.tanh(autograd.mean(self.first(h), axis=1))), h, create_graph=True)
        of_last = autograd.grad(self.u(last), last, create_graph=True)
        return self.loss(self.gru(of_mean)), self.loss(of_last[:, None] * self.u(h)[:, :, :1])


def all_squares(x):
    return autograd.sum(x * x, axis=(1, 2))


def test_gradients_in_a_net_over_time_are_those_of_a_loop(in_float64):
    x, net = RNG.normal(size=(5, 3, 4)), OverTime()
    one, other = net(from_numpy(x))
    loop = {param.param.name: gradient.to_numpy() for param, gradient in autograd.backward(one + other)}
    start = net.state_dict()
    model = Model(list(net(RecordInput("x", shape=[4], time_steps=3))), dtype=np.float64)
    model.load_state_dict(start)
    assert float(model({"x": x})) == pytest.approx((one + other).item(), rel=1e-11)
    model.net.backward()
    for param in model.net.params:
        np.testing.assert_allclose(param.grad, loop[param.name], 1e-9, 1e-12, err_msg=param.name)
