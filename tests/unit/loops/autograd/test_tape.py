"""Layers on arrays: values, gradients, what is shared, and what is refused."""

import copy

import numpy as np
import pytest
from unit.loops.autograd.differences import gradients_of, in_float64

from singa_dask import Job, Model, Module, autograd, device, layers, opt, tensor, updaters
from singa_dask.comm import run_threads
from singa_dask.errors import ConfigError, DataError, TrainingError
from singa_dask.updaters import schedules

RNG = np.random.default_rng(25)
X = RNG.normal(size=(6, 2, 8, 8)).astype(np.float32)
Y = RNG.integers(0, 3, 6)


class Residual(Module):
    """Uses one layer twice, a sum, a product, a concatenation and batch normalisation."""

    def __init__(self):
        self.conv = autograd.Conv2d(2, 4, 3, padding=1)
        self.inner = autograd.Conv2d(4, 4, 3, padding=1)
        self.norm = autograd.BatchNorm2d(4)
        self.pool = autograd.MaxPool2d(2)
        self.fc = autograd.Linear(4 * 4 * 8, 3)

    def forward(self, x):
        x = autograd.tanh(self.conv(x))
        x = x + self.norm(self.inner(self.inner(x)))
        x = autograd.cat((self.pool(x), self.pool(x * x)))
        return self.fc(autograd.flatten(x))


def loss_of(net, x=X, y=Y):
    return autograd.softmax_cross_entropy(net(tensor.from_numpy(x)), tensor.from_numpy(y))


def test_the_tape_gives_what_the_graph_of_the_same_module_gives():
    net = Residual()
    loss = loss_of(net)
    eager = {p.name: (p.to_numpy(), np.array(g.array)) for p, g in autograd.backward(loss)}
    model = Model([layers.RecordInput("data", shape=[2, 8, 8]), Residual(), layers.SoftmaxLoss()], seed=0)
    of_graph = model(np.ascontiguousarray(X.transpose(0, 2, 3, 1)), Y)
    assert float(loss) == pytest.approx(float(of_graph), rel=1e-6)
    model.net.backward()
    assert set(eager) == {param.name for param in model.net.params}
    for param in model.net.params:
        value, gradient = eager[param.name]
        np.testing.assert_array_equal(value, param.value, err_msg=param.name)
        np.testing.assert_allclose(gradient, param.grad, rtol=1e-4, atol=1e-6, err_msg=param.name)


def test_gradients_come_with_the_last_layers_first_and_once_each():
    names = [p.name for p, _ in autograd.backward(loss_of(Residual()))]
    assert names[:2] == ["fc_weight", "fc_bias"] and names[-2:] == ["conv_weight", "conv_bias"]
    assert len(names) == len(set(names)) == 10


def test_arrays_give_arrays_laid_out_as_layers_compute():
    fc = layers.InnerProduct("fc", num_output=3)
    x = RNG.normal(size=(5, 4)).astype(np.float32)
    y = fc(x)
    weight, _ = autograd.parameters_of([fc])
    assert isinstance(y, np.ndarray)
    np.testing.assert_allclose(y, x @ weight.to_numpy(), rtol=1e-5)


def test_images_are_channels_first_outside_and_labels_may_be_one_hot():
    t = tensor.Tensor((6, 2, 8, 8), device.get_default_device(), tensor.float32)
    t.copy_from_numpy(X)
    np.testing.assert_array_equal(tensor.to_numpy(t), X)
    assert t.shape == t.array.shape == X.shape and t.array[0].transpose(1, 2, 0).flags.c_contiguous
    net = Residual()
    assert float(loss_of(net)) == float(loss_of(net, y=np.eye(3, dtype=np.int32)[Y]))


def test_without_training_nothing_is_remembered_and_running_statistics_are_used(monkeypatch):
    net = Residual()
    for p, g in autograd.backward(loss_of(net)):
        p.data[...] -= g.data
    trained = tensor.to_numpy(net(tensor.from_numpy(X)))
    monkeypatch.setattr(autograd, "training", False)
    tested = net(tensor.from_numpy(X))
    assert tested.call is None and not np.allclose(tensor.to_numpy(tested), trained)
    with pytest.raises(ConfigError, match=r"autograd\.training = True"):
        list(autograd.backward(loss_of(net)))


def test_dropout_draws_anew_in_every_call():
    x = tensor.from_numpy(np.ones((4, 50), np.float32))
    first, second = (tensor.to_numpy(autograd.dropout(x)) for _ in range(2))
    assert set(np.unique(first)) == {0.0, 2.0} and (first != second).any()


@pytest.mark.parametrize("by_hand", [False, True])
def test_ranks_normalise_as_one_does_the_whole_mini_batch(by_hand):
    """One layer is called twice; gradients depend on the rows of others, and statistics are those of all."""
    x = np.concatenate([RNG.normal(1 + rank, 2 + rank, size=(6, 3)) for rank in range(2)])
    y, cpu = np.arange(12) % 3, device.Device("cpu", dtype=np.float64)

    def member(comm):
        first, norm = layers.InnerProduct("first", num_output=3), layers.BatchNorm("norm", factor=0.9)
        sgd = opt.DistOpt(opt.SGD(lr=0.1), comm=comm)
        rows = slice(6 * comm.rank, 6 * comm.rank + 12 // comm.size)
        for _ in range(3):
            h = first(tensor.Tensor.of(x[rows], cpu))
            scores = norm(autograd.tanh(norm(h)))
            loss = autograd.softmax_cross_entropy(scores, tensor.Tensor.of(y[rows], cpu))
            if not by_hand:
                sgd.backward_and_update(loss)
            for p, g in autograd.backward(loss) if by_hand else ():
                sgd.update(p, sgd.all_reduce(g))
        return {p.name: p.to_numpy() for p in autograd.parameters_of([first, norm])}

    (serial,) = run_threads(1, member)
    for state in run_threads(2, member):
        for name, value in serial.items():
            np.testing.assert_allclose(state[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_loss_that_one_rank_has_normalised_alone_is_refused():
    def member(comm):
        y = layers.BatchNorm("norm")(tensor.from_numpy(X[:, 0, 0]))
        opt.DistOpt(opt.SGD(lr=0.1), comm=comm).backward_and_update(autograd.mean(y * y))

    with pytest.raises(TrainingError, match=r"'norm' has normalised the rows of 1 of 2 ranks\. Make DistOpt before"):
        run_threads(2, member)


def test_parameters_are_saved_and_loaded_and_fit_the_model_of_the_same_module():
    net, other = Residual(), Residual()
    with pytest.raises(ConfigError, match="module Residual: has no parameters yet"):
        net.state_dict()
    for p, g in autograd.backward(loss_of(net)):
        p.data[...] -= g.data
    assert float(loss_of(other)) != float(loss_of(net))
    other.load_state_dict(net.state_dict())
    assert float(loss_of(other)) == float(loss_of(net))
    model = Model([layers.RecordInput("data", shape=[2, 8, 8]), Residual(), layers.SoftmaxLoss()])
    model.load_state_dict(net.state_dict())
    assert float(model(np.ascontiguousarray(X.transpose(0, 2, 3, 1)), Y)) == pytest.approx(
        float(loss_of(net)), rel=1e-6
    )
    copied = copy.deepcopy(net)
    assert float(loss_of(copied)) == float(loss_of(net))
    opt.SGD(0.1)(loss_of(copied))
    assert float(loss_of(copied)) != float(loss_of(net))
    np.testing.assert_array_equal(copy.deepcopy(Perceptron())(X[:, 0, 0]), Perceptron()(X[:, 0, 0]))
    with pytest.raises(ConfigError, match=r"has other parameters than the given state\. Received: more"):
        net.load_state_dict(net.state_dict() | {"more": X})


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda net: [[*autograd.backward(loss)] for loss in [loss_of(net)] * 2],
            TrainingError,
            "gone backward already",
        ),
        (lambda net: [*autograd.backward(net(tensor.from_numpy(X)))], ConfigError, "must have one element"),
        (lambda net: [*autograd.backward(tensor.Tensor((1,)))], ConfigError, "has nothing to go backward over"),
        (lambda net: loss_of(net, y=Y[:3]), DataError, "equally many rows"),
        (lambda net: tensor.Tensor((2, 3)).copy_from_numpy(np.zeros((3, 2))), DataError, r"\(2, 3\).*\(3, 2\)"),
        (lambda net: layers.RecordInput("data", shape=3)(X), ConfigError, "cannot be called on arrays"),
        (
            lambda net: opt.SGD(0.1)(loss_of(lambda x: net(x) + Residual()(x))),
            ConfigError,
            r"two layers have parameters of one name.*net\.name = 'left'",
        ),
        (
            lambda net: loss_of(net) and net(tensor.Tensor(X.shape, device.Device("cpu", dtype=np.float64))),
            ConfigError,
            r"parameters and sources must be on one device.*cpu, cpu .float64.",
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(Residual())


def test_an_optimiser_keeps_the_parameters_of_its_first_loss():
    net, other, first, second = Residual(), layers.InnerProduct(num_output=3), opt.SGD(0.1), opt.Adam(0.1)
    first(loss_of(other))
    with pytest.raises(TrainingError, match="the first loss did not use the parameters"):
        first(loss_of(net))
    first = opt.SGD(0.1)
    for optimiser in (first, first, second):
        optimiser(loss_of(net))
    with pytest.raises(TrainingError, match="another optimiser or to_device has moved the parameters conv_weight"):
        first(loss_of(net))


class Branched(Module):
    """A layer that is used twice, tensors that several layers read, and one output that no layer reads."""

    def __init__(self):
        self.inner, self.other, self.unread = (layers.InnerProduct(num_output=3) for _ in range(3))

    def forward(self, x):
        self.unread(x)
        h = autograd.tanh(self.inner(x) + x)
        h = h * self.inner(h) + x
        return self.other(autograd.cat((h, x * h, h)))


def test_gradients_of_shared_layers_and_tensors_equal_differences_in_float64():
    x = in_float64(4, 3)
    pairs = gradients_of(Branched(), [x], in_float64(4, 3))
    assert list(pairs) == ["other_weight", "other_bias", "0", "inner_weight", "inner_bias"]


def one_at_a_time(optimiser):
    def update(loss):
        for p, g in autograd.backward(loss):
            optimiser.update(p, g)

    return update


def test_an_optimiser_trains_in_one_process_as_a_dist_opt_does():
    states, rule = [], {"momentum": 0.9}
    for step in (
        opt.SGD(0.1, **rule),
        opt.DistOpt(opt.SGD(0.1, **rule)),
        one_at_a_time(opt.SGD(lr=schedules.Fixed(base_lr=0.1), **rule)),
        one_at_a_time(opt.DistOpt(opt.SGD(0.1, **rule))),
    ):
        net = Residual()
        for _ in range(3):
            step(loss_of(net))
        params = autograd.parameters_of(layer for _, layer in net.named_layers().values())
        states.append({p.name: p.to_numpy() for p in params})
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value, err_msg=name)
        for state in states[2:]:
            np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    assert Job(name="j", layers=[], updater=opt.SGD(0.1), train_steps=1).proto.updater == updaters.SGD(lr=0.1).proto


class Careless(Module):
    def forward(self, x):
        return layers.InnerProduct(num_output=3)(x)


@pytest.mark.parametrize("x", [X, layers.RecordInput("data", shape=[2, 8, 8])])
def test_a_layer_with_parameters_must_not_be_created_in_forward(x):
    with pytest.raises(ConfigError, match=r"called in the forward of Careless, but is not .*Create it in __init__"):
        Careless()(x)


class Perceptron(Module):
    def __init__(self):
        self.hidden, self.scores = layers.InnerProduct(num_output=8), layers.InnerProduct(num_output=3)

    def forward(self, x):
        return self.scores(autograd.tanh(self.hidden(x)))


METHODS = {
    "full": ("backward_and_update", {"threshold": 20}),
    "half": ("backward_and_update_half", {"clipping": True, "clip_Value": 0.01}),
    "partial": ("backward_and_partial_update", {"threshold": 20}),
    "topk": ("backward_and_sparse_update", {"spars": 0.2, "topK": True}),
    "threshold": ("backward_and_sparse_update", {"spars": 0.02, "corr": False}),
}


@pytest.mark.parametrize("kind", METHODS)
def test_ranks_train_layers_on_tensors_as_they_train_a_model(kind):
    """With settings given at construction; ranks have 2 and 4 rows."""
    name, settings = METHODS[kind]
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(5, 6, 4)).astype(np.float32), rng.integers(0, 3, (5, 6))

    def member(comm):
        rows = [slice(0, 2), slice(2, 6)][comm.rank]
        model = Model([layers.RecordInput("data", shape=4), Perceptron(), layers.SoftmaxLoss()], seed=0)
        of_model = opt.DistOpt(opt.SGD(0.1, momentum=0.9), model, comm)
        of_tape = opt.DistOpt(opt.SGD(0.1, momentum=0.9), comm=comm, **settings)
        net = Perceptron()
        for x_BF, y_B in zip(x, y, strict=True):
            getattr(of_model, name)(model(x_BF[rows], y_B[rows]), **settings)
            loss = autograd.softmax_cross_entropy(net(tensor.from_numpy(x_BF[rows])), tensor.from_numpy(y_B[rows]))
            getattr(of_tape, name)(loss)
        return net.state_dict(), model.state_dict(), of_tape.state_dict(), of_model.state_dict()

    for own, expected, state, expected_state in run_threads(2, member):
        assert own.keys() == expected.keys() and state["step"] == expected_state["step"] == 5
        for param, value in expected.items():
            np.testing.assert_allclose(own[param], value, rtol=1e-5, atol=1e-6, err_msg=param)
            velocity = [each["updater"]["velocity"][param] for each in (state, expected_state)]
            np.testing.assert_allclose(*velocity, rtol=1e-4, atol=1e-6, err_msg=param)


def test_ranks_must_start_with_the_same_parameters():
    x, y = tensor.from_numpy(RNG.normal(size=(2, 4)).astype(np.float32)), tensor.from_numpy(np.arange(2))

    def member(comm):
        net, sgd = Perceptron(), opt.DistOpt(opt.SGD(0.1), comm=comm)
        net(x)
        net.load_state_dict({name: value + comm.rank for name, value in net.state_dict().items()})
        with pytest.raises(TrainingError, match="rank 1 has other initial parameters than rank 0"):
            sgd.backward_and_update(autograd.softmax_cross_entropy(net(x), y))
        return sgd.model

    assert run_threads(2, member) == [None, None]
