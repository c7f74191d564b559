"""What a loop over tensors must not do in silence, and what losses can do."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

from singa_dask import Module, autograd, layers, opt, tensor
from singa_dask.comm import run_threads
from singa_dask.errors import ConfigError, DataError, TrainingError

RNG = np.random.default_rng(11)
X = RNG.normal(size=(6, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 6)


def of(array=X, **settings):
    made = tensor.from_numpy(array)
    for name, value in settings.items():
        setattr(made, name, value)
    return made


class Net(Module):
    def __init__(self):
        self.first, self.second = layers.InnerProduct(num_output=5), layers.InnerProduct(num_output=3)

    def forward(self, x):
        return self.second(autograd.tanh(self.first(x)))


def loss_of(net, x=None):
    return autograd.softmax_cross_entropy(net(of() if x is None else x), of(Y))


def gradients(loss):
    return {p.name: g.to_numpy() for p, g in autograd.backward(loss)}


class Tied(Module):
    def __init__(self, shared):
        self.embed = layers.InnerProduct(num_output=3)
        self.scores = layers.InnerProduct(num_output=4, transpose=True, bias_term=False, param={"share_from": shared})

    def forward(self, x):
        return self.scores(autograd.tanh(self.embed(x)))


def test_shared_parameters_are_one_in_a_loop_too():
    net = Tied("embed_weight")
    found = gradients(autograd.mean_square_error(net(of()), of()))
    assert set(net.state_dict()) == set(found) == {"embed_weight", "embed_bias"}
    assert net.scores.kept.parameters[0].param is net.embed.kept.parameters[0].param
    with pytest.raises(ConfigError, match=r"share_from: no parameter has this name\. Received: embd_weight"):
        Tied("embd_weight")(of())


class Careless(layers.Layer):
    num_sources = (2, 2)

    def setup(self, *src):
        self.w = self.declare("w", (1,), 1, 1, value=1)
        return self.sources(src)[0]

    def forward(self, ctx, *x):
        return x[0] * self.w.value + x[1]

    def backward(self, ctx, dy):
        return dy, dy


class Reshaping(Careless):
    def forward(self, ctx, *x):
        return x[0][:, :2]


class OneGradient(Careless):
    def backward(self, ctx, dy):
        self.w.grad[...] = dy.sum() + (self.w.grad if self.w.claim() else 0)
        return dy


class OtherShape(OneGradient):
    def backward(self, ctx, dy):
        return super().backward(ctx, dy)[:, :1], dy


class NoClaim(Careless):
    def backward(self, ctx, dy):
        self.w.grad[...] = dy.sum()
        return dy, dy


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Reshaping, r"forward returned rows of shape \(2,\), but setup returned \(4,\)"),
        (OneGradient, "must return a tuple of 2 gradients, not one array"),
        (OtherShape, r"backward returned shape \(6, 1\) for a source whose output is \(6, 4\)"),
        (NoClaim, r"wrote its gradient without calling claim\(\)"),
    ],
)
def test_layers_of_one_s_own_are_checked_as_in_a_net(kind, words):
    a, b = (autograd.tanh(of(requires_grad=True)) for _ in range(2))
    with pytest.raises(TrainingError, match=words):
        gradients(autograd.mean_square_error(kind()(a, b), of()))


@pytest.mark.parametrize("change", ["input", "update", "load", "factor"])
def test_what_changes_between_the_passes_is_an_error(change):
    net, x = Net(), of()
    w = of(np.ones((4, 4), np.float32), stores_grad=True)
    loss = loss_of(net, x @ w)
    if change == "input":
        x.copy_from_numpy(X + 1)
    elif change == "update":
        opt.SGD(0.1)(loss_of(net))
    elif change == "load":
        net.load_state_dict(net.state_dict())
    else:
        w *= 2
    with pytest.raises(TrainingError, match=r"was changed after .* had read it"):
        gradients(loss)


def test_what_changes_after_the_backward_pass_is_none():
    net, x, sgd = Net(), of(), opt.SGD(0.1)
    for step in range(3):
        x.copy_from_numpy(X + step)
        sgd(loss_of(net, x))


def test_losses_add_scale_and_share_a_trunk():
    net, t = Net(), RNG.normal(size=(6, 3)).astype(np.float32)
    scores = net(of())
    both = gradients(
        0.5 * autograd.softmax_cross_entropy(scores, of(Y)) + autograd.mean_square_error(scores, of(t)) / 4
    )
    first = gradients(autograd.softmax_cross_entropy(net(of()), of(Y)))
    second = gradients(autograd.mean_square_error(net(of()), of(t)))
    for name, gradient in both.items():
        np.testing.assert_allclose(gradient, first[name] / 2 + second[name] / 4, rtol=1e-4, atol=1e-7)
    scores = net(of())
    gradients(autograd.softmax_cross_entropy(scores, of(Y)))
    with pytest.raises(TrainingError, match="a part of this loss has gone backward already"):
        gradients(autograd.mean_square_error(scores, of(t)))


def test_a_loss_without_parameters_is_an_error():
    x = of(requires_grad=True)
    for call in (opt.SGD(0.1), gradients):
        with pytest.raises(TrainingError, match="depends on no parameter"):
            call(autograd.mean(x * x))
    with autograd.no_grad():
        loss = loss_of(Net())
    with pytest.raises(ConfigError, match="has nothing to go backward over"):
        gradients(loss)


def test_gradients_stop_where_they_are_cut_off():
    first, second = Net(), Net()
    second.name = "second"
    loss = autograd.mean_square_error(first(of()), second(of()).detach())
    assert set(gradients(loss)) == {f"{layer}_{role}" for layer in ("first", "second") for role in ("weight", "bias")}
    with autograd.no_grad():
        target = first(of())
    assert target.call is None


@pytest.mark.parametrize("rule", [opt.SGD(0.1, momentum=0.9, weight_decay=0.1), opt.Adam(0.1, weight_decay=0.1)])
@pytest.mark.parametrize("size", [1, 2])
def test_parameters_that_a_loss_does_not_use_stay(rule, size):
    def member(comm):
        net, sgd = Net(), opt.DistOpt(rule, comm=comm)
        sgd(loss_of(net))
        before = net.state_dict()
        only_one = autograd.mean(net.first(of()) ** 2)
        other = autograd.mean(net.second(autograd.tanh(net.first(of()))) ** 2)
        sgd(other if comm.rank else only_one)
        return before, net.state_dict()

    for before, after in run_threads(size, member):
        moved = {name for name, value in after.items() if (value != before[name]).any()}
        assert moved == {name for name in before if name.startswith("first") or size > 1}


def test_a_tensor_is_true_only_as_a_single_comparison():
    assert of(np.ones(1, np.float32)) > 0 and not (of(np.ones((1, 1), np.float32)) > 1)
    with pytest.raises(DataError, match="neither true nor false"):
        bool(of())


class Twice(Module):
    def __init__(self):
        self.norm = layers.BatchNorm(factor=0.9)

    def forward(self, a, b):
        return self.norm(a) * self.norm(b)


def test_running_statistics_of_two_calls_follow_each_other():
    net, a, b = Twice(), X, 3 * X + 1
    opt.SGD(0.1)(autograd.mean(net(of(a), of(b))))
    mean = 0.9 * 0.1 * a.mean(axis=0) + 0.1 * b.mean(axis=0)
    var = 0.9 * (0.9 + 0.1 * a.var(axis=0, ddof=1)) + 0.1 * b.var(axis=0, ddof=1)
    np.testing.assert_allclose(net.state_dict()["norm_mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(net.state_dict()["norm_var"], var, rtol=1e-4)


def test_a_loop_continues_from_the_states_of_module_and_optimiser():
    def trained(net, adam, steps):
        for _ in range(steps):
            adam(loss_of(net))
        return net.state_dict(), adam.state_dict()

    whole, _ = trained(Net(), opt.Adam(0.1), 4)
    state, rule = trained(Net(), opt.Adam(0.1), 2)
    net, adam = Net(), opt.Adam(0.1)
    net(of())
    net.load_state_dict(state)
    adam.load_state_dict(rule)
    for name, value in trained(net, adam, 2)[0].items():
        np.testing.assert_array_equal(value, whole[name])


def test_a_graph_lives_as_long_as_its_loss():
    """Without the garbage collector, so that the memory of a loop stays the same."""
    net, sgd, calls = Net(), opt.SGD(0.1), []
    gc.disable()
    try:
        for _ in range(3):
            loss = loss_of(net) + autograd.mean(net(of()) ** 2)
            calls.append(weakref.ref(loss.call.sources[0].call))
            sgd(loss)
        del loss
        sgd(loss_of(net))
        assert [call() for call in calls] == [None] * 3
    finally:
        gc.enable()


def test_what_a_step_computed_goes_as_gradients_go_back():
    """Not only with the next loss, whose forward pass would then take memory of its own."""
    net = Net()
    hidden = net.first(of())
    loss = autograd.softmax_cross_entropy(net.second(autograd.tanh(hidden)), of(Y))
    alive = weakref.ref(hidden)
    del hidden
    assert alive() is not None
    gradients(loss)
    assert alive() is None and loss.item() > 0


def test_the_memory_of_a_loop_stays_the_same():
    net, sgd = Net(), opt.DistOpt(opt.SGD(0.01, momentum=0.9))
    sizes = []
    tracemalloc.start()
    try:
        for step in range(300):
            sgd(loss_of(net))
            if step in (99, 299):
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 50_000  # with what each loss holds once it has gone backward, 280,000


def test_loops_in_threads_do_not_share_scratch_memory():
    images = RNG.normal(size=(8, 4, 16, 16)).astype(np.float32)

    def convolved(comm):
        conv, x = layers.Convolution(num_filters=16, kernel=3, pad=1), of(images * (1 + comm.rank))
        with autograd.no_grad():
            return [conv(x).to_numpy() for _ in range(20)]

    for ys in run_threads(2, convolved):
        for y in ys:
            np.testing.assert_array_equal(y, ys[0])
