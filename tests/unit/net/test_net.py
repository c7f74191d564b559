"""The net's routing and its errors, with small layers of known derivatives. test_gradients.py has what it computes."""

import gc
import weakref

import numpy as np
import pytest
from support.user_layers import Halves, SquaredError, Total, Weighted

from singa_dask.errors import ConfigError, DataError, SingaError, TrainingError
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    Activation,
    Add,
    BridgeSrc,
    Convolution,
    CSVOutput,
    InnerProduct,
    Pooling,
    RecordInput,
    ReLU,
    RNNDummy,
    Sigmoid,
    SoftmaxLoss,
)
from singa_dask.layers.context import Step
from singa_dask.layers.input import InputLayer
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

ROWS = 4


def build(*layers, phase=Phase.kTrain, share=None, dtype=np.float64):
    net = Net(NetProto(layer=[layer.proto for layer in layers]), phase, get_ops("cpu", dtype), share)
    if share is None:
        net.flat.values[...] = np.random.default_rng(5).normal(size=net.flat.size)
    return net


def data(features=3):
    return RecordInput("x", shape=[features])


def between(*layers):
    """A net whose loss reads the last of these layers."""
    return build(data(), *layers, SquaredError("loss", [layers[-1].name, "x"]))


def batch(features=3, rows=ROWS):
    rng = np.random.default_rng(0)
    return {"x": Batch(rng.normal(size=(rows, features)), rng.normal(size=rows))}


def trained(net, on_gradient=None):
    """The gradients of a step."""
    net.forward(batch(), Step(total_rows=ROWS))
    net.backward(on_gradient)
    return net.flat.grads.copy()


def recorded(net):
    """The calls of layers that are yet to come."""
    calls = []
    net.wrap_calls(lambda layer, call, run: lambda *given: (calls.append((layer, call)), run(*given))[1])
    return calls


def test_calls_run_in_order_and_can_be_wrapped():
    net = between(Weighted("a", "x"), Weighted("b", "a"))
    plain = trained(net)
    seen = recorded(net)
    np.testing.assert_array_equal(trained(net), plain)
    names = ["x", "a", "b", "loss"]
    assert seen == [(name, "forward") for name in names] + [(name, "backward") for name in reversed(names[1:])]


def test_a_net_is_gone_when_nobody_has_it():
    """Without a search for what refers to itself: nets are large."""
    layers = data(), Weighted("a", "x"), SquaredError("loss", ["a", "x"])
    train = build(*layers)
    test = build(*layers, phase=Phase.kTest, share=train)
    seen = [weakref.ref(net) for net in (train, test)]
    gc.disable()
    try:
        del train, test
        assert [net() for net in seen] == [None, None]
    finally:
        gc.enable()


def test_each_backward_call_needs_a_forward_call():
    net = between(Weighted("a", "x"))
    with pytest.raises(TrainingError, match=r"Call net.forward before each backward"):
        net.backward()
    first = trained(net)
    with pytest.raises(TrainingError):
        net.backward()
    np.testing.assert_array_equal(net.flat.grads, first)
    np.testing.assert_array_equal(trained(net), first)


RELUS = {
    "plain": ReLU("relu", "conv"),
    "leaky": ReLU("relu", "conv", negative_slope=0.1),
    "named": Activation("relu", "conv", type="RELU"),
}


@pytest.mark.parametrize("relu", RELUS.values(), ids=RELUS)
def test_pooling_goes_before_what_keeps_the_order(relu):
    """The same numbers as where the ReLU has a second reader, and so stays where the job has it."""
    layers = [
        RecordInput("data", shape=[2, 6, 7], batchsize=ROWS),
        Convolution("conv", "data", num_filters=3, kernel=3),
        relu,
        Pooling("pool", "relu", pool="MAX", kernel=3, stride=2, pad=1),
        InnerProduct("ip", "pool", num_output=2),
        SoftmaxLoss("loss", ["ip", "data"]),
    ]
    net, stays = build(*layers), build(*layers, BridgeSrc("second", "relu"))
    feed = {"data": Batch(np.random.default_rng(1).normal(size=(ROWS, 6, 7, 2)), np.arange(ROWS) % 2)}
    computed = recorded(net)
    for one in (net, stays):
        one.forward(feed, Step())
        one.backward()
    assert computed.index(("pool", "forward")) < computed.index(("relu", "forward"))
    assert computed.index(("relu", "backward")) < computed.index(("pool", "backward"))
    for name in net.layers:
        np.testing.assert_array_equal(net.output(name), stays.output(name))
    np.testing.assert_array_equal(net.flat.grads, stays.flat.grads)
    assert np.any(net.flat.grads)


OTHERS = {
    "a mean": (ReLU("f", "conv"), Pooling("pool", "f", pool="AVG", kernel=2)),
    "another function": (Sigmoid("f", "conv"), Pooling("pool", "f", kernel=2)),
    "remembered": (
        ReLU("f", "conv"),
        Pooling("pool", "f", kernel=2),
        RNNDummy("again", dynamic_srclayer="f", high=1, shape=[1, 3, 3, 3]),
    ),
}


@pytest.mark.parametrize("rest", OTHERS.values(), ids=OTHERS)
def test_nothing_else_changes_places(rest):
    conv = [RecordInput("data", shape=[2, 5, 5], batchsize=1), Convolution("conv", "data", num_filters=3, kernel=3)]
    net = build(*conv, *rest)
    ran = recorded(net)
    net.forward({"data": Batch(np.ones((1, 5, 5, 2)))}, Step())
    assert ran.index(("f", "forward")) < ran.index(("pool", "forward"))


def test_layers_without_a_loss_above_or_parameters_below_are_skipped():
    net = between(BridgeSrc("plain", "x"), Weighted("aside", "plain"), Weighted("a", "plain"))
    net.flat.grads[...] = 7
    ran = recorded(net)
    trained(net)
    assert [layer for layer, call in ran if call == "backward"] == ["loss", "a"]
    assert not net.named_params["aside_weight"].grad.any()
    assert net.named_params["a_weight"].grad.all()
    assert not net.contexts["a"].needs_input_grad
    assert net.contexts["loss"].needs_input_grad


class Untouched(Weighted):
    """Leaves its gradients out."""

    def backward(self, ctx, dy):
        return None


def test_parameters_without_a_gradient_get_zero():
    net = between(Weighted("a", "x"), Untouched("b", "a"))
    net.flat.grads[...] = 7
    trained(net)
    assert not any(param.grad.any() for param in net.params)


def test_what_is_added_to_one_gradient_is_added_to_no_other():
    """A sum hands the same gradient to both of its sources, of which another loss reads the first."""
    layers = [data(), InnerProduct("a", "x", num_output=3), InnerProduct("b", "x", num_output=3)]
    layers += [Add("sum", ["a", "b"]), SquaredError("loss", ["sum", "x"])]
    alone, both = build(*layers), build(*layers, SquaredError("other", ["a", "x"]))
    of_one, of_both = (net.flat.named(trained(net)) for net in (alone, both))
    np.testing.assert_array_equal(of_one["b_weight"], of_both["b_weight"])
    assert not np.allclose(of_one["a_weight"], of_both["a_weight"])


def test_gradients_are_announced_once_complete_and_from_the_top():
    net = between(
        Weighted("a", "x", param=[{"name": "w"}]),
        Weighted("aside", "a"),
        Weighted("b", "a"),
        Weighted("c", "b", param=[{"share_from": "w"}]),
    )
    trained(net)
    final = {param.name: param.grad.copy() for param in net.params}
    announced = []
    trained(net, lambda param: announced.append((param.name, param.grad.copy())))
    assert [name for name, _ in announced] == ["b_weight", "w", "aside_weight"]
    for name, grad in announced:
        np.testing.assert_array_equal(grad, final[name])


def test_gradients_that_an_algorithm_leaves_out_are_zero_and_announced():
    net = between(Weighted("a", "x"), Weighted("b", "a"))
    trained(net)
    first, second = net.params
    announced = []
    with net.gradients(lambda param: announced.append((param.name, param.grad.copy()))):
        assert not second.claim(), "what the pass before left is no contribution"
        second.grad[...] = 3
    assert [(name, set(grad)) for name, grad in announced] == [(first.name, {0}), (second.name, {3})]
    with net.gradients():
        pass
    assert not net.flat.grads.any()


def test_a_test_net_uses_the_training_nets_parameters():
    layers = [data(), Weighted("a", "x"), Weighted("b", "a", exclude=[Phase.kTest]), SquaredError("loss", ["a", "x"])]
    train = build(*layers)
    test = build(*layers, phase=Phase.kTest, share=train)
    assert test.params == train.params[:1]
    train.initialise(3)
    before = train.flat.values.copy()
    test.forward(batch(), Step(Phase.kTest))
    np.testing.assert_array_equal(test.output("a"), batch()["x"].features * train.named_params["a_weight"].value)
    test.initialise(3)
    np.testing.assert_array_equal(train.flat.values, before)


def test_initial_values_do_not_depend_on_other_layers():
    gaussian = [{"init": {"type": "kGaussian"}}]
    small = build(data(), Weighted("a", "x", param=gaussian), dtype=np.float32)
    large = build(data(), Weighted("b", "x", param=gaussian), Weighted("a", "b", param=gaussian))
    small.initialise(11)
    large.initialise(11)
    values = (net.named_params["a_weight"].value for net in (small, large))
    np.testing.assert_array_equal(next(values), next(values).astype(np.float32))


def test_description_lists_layers_in_order():
    net = build(
        data(),
        Weighted("a", "x", partition_dim=1),
        Weighted("b", "a", param=[{"share_from": "a_weight"}]),
        BridgeSrc("c", "b"),
    )
    assert [tuple(row) for row in net.describe()] == [
        ("x", "RecordInput", (3,), 0, "batch", 1, (0, 0), (), frozenset()),
        ("a", "Weighted", (3,), 3, "features", 1, (0, 0), ("x",), frozenset()),
        ("b", "Weighted", (3,), 0, "batch", 1, (0, 0), ("a",), frozenset()),
        ("c", "BridgeSrc", (3,), 0, "batch", 1, (0, 0), ("b",), frozenset()),
    ]


def weighted(layer, source="x", **param):
    return Weighted(layer, source, param=[param])


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([weighted("a", share_from="b_weigth"), weighted("b")], ["share_from", "b_weigth", "Did you mean b_weight?"]),
        ([weighted("a", name="w"), weighted("b", name="w")], ["'w'.name", "share_from"]),
        ([weighted("a", share_from="b_weight"), weighted("b", share_from="a_weight")], ["cycle", "a_weight <- b"]),
        (
            [weighted("a"), Halves("h", "x"), weighted("b", "h", share_from="a_weight"), weighted("c", "h")],
            ["(2,)", "(4,)", "'a_weight'"],
        ),
        (
            [
                InnerProduct("ip", "x", num_output=3),
                InnerProduct("back", "ip", num_output=4, param=[{"share_from": "ip_weight"}]),
            ],
            ["back_weight", "(3, 4)", "(4, 3)", "ip_weight", "transpose"],
        ),
        ([Halves("h", "x"), Weighted("b", "h")], ["layer 'h'", "2 outputs", "1 layers"]),
        ([Weighted("a", ["x", "x"])], ["layer 'a'", "takes 1 srclayers", "x, x", "num_sources = (2, 2)"]),
        ([SquaredError("loss", "x")], ["layer 'loss'", "takes 2 srclayers"]),
    ],
    ids=["unknown", "twice", "cycle", "shapes", "transposed", "readers", "many sources", "few sources"],
)
def test_configuration_errors(layers, words):
    with pytest.raises(ConfigError) as caught:
        build(data(4), *layers)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_parameter_that_nothing_trains_is_an_error():
    layers = [data(), Weighted("a", "x"), Weighted("extra", "a", include=[Phase.kTest])]
    with pytest.raises(ConfigError, match=r"'extra_weight'.*training net has no such parameter"):
        build(*layers, phase=Phase.kTest, share=build(*layers))


class Failing(Weighted):
    """Fails where it is told to."""

    def setup(self, *src):
        return self.unless("setup", super().setup(*src))

    def forward(self, ctx, *x):
        return self.unless("forward", super().forward(ctx, *x))

    def backward(self, ctx, dy):
        return self.unless("backward", super().backward(ctx, dy))

    def unless(self, where, result):
        if self.conf["where"] == where:
            raise ZeroDivisionError("on purpose")
        return result


@pytest.mark.parametrize(("where", "shape"), [("setup", "(3,)"), ("forward", "(4, 3)"), ("backward", "(4, 3)")])
def test_a_layers_exception_names_layer_phase_and_shapes(where, shape):
    with pytest.raises(TrainingError) as caught:
        trained(between(Weighted("a", "x"), Failing("bad", "a", where=where)))
    text = str(caught.value)
    for word in ["'bad'", "Failing", where, "kTrain", shape, "ZeroDivisionError: on purpose"]:
        assert word in text, text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


class Refusing(Weighted):
    def forward(self, ctx, *x):
        raise self.problem("not possible")


class Narrow(Weighted):
    def forward(self, ctx, *x):
        return x[0][:, :2]


class Silent(Weighted):
    def forward(self, ctx, *x):
        return None


class Pieces(Halves):
    def forward(self, ctx, *x):
        return (x[0],) * self.conf["count"]


class NarrowBack(Weighted):
    def backward(self, ctx, dy):
        return dy[:, :1]


class Unclaimed(Weighted):
    def backward(self, ctx, dy):
        self.w.grad[...] = dy.sum(axis=0)


class Back(Total):
    def backward(self, ctx, dy):
        return dy if self.conf["count"] == 1 else (dy,) * self.conf["count"]


@pytest.mark.parametrize(
    ("layers", "kind", "words"),
    [
        ([Refusing("bad", "a")], ConfigError, ["layer 'bad': not possible"]),
        ([Narrow("bad", "a")], TrainingError, ["'bad'", "forward returned", "(2,)", "(3,)"]),
        ([Silent("bad", "a")], TrainingError, ["'bad'", "returned None"]),
        (
            [Pieces("bad", "a", count=1), ReLU("b", "bad"), ReLU("c", "bad")],
            TrainingError,
            ["bad", "1 arrays for 2"],
        ),
        (
            [Pieces("bad", "a", count=3), ReLU("b", "bad"), ReLU("c", "bad")],
            TrainingError,
            ["bad", "3 arrays for 2"],
        ),
        ([NarrowBack("bad", "a")], TrainingError, ["'bad'", "backward returned", "(4, 1)", "(4, 3)"]),
        ([Unclaimed("bad", "a")], TrainingError, ["'bad_weight'", "claim()"]),
        ([Back("bad", ["a", "a"], count=1)], TrainingError, ["'bad'", "tuple of 2", "not one"]),
        ([Back("bad", ["a", "a"], count=3)], TrainingError, ["'bad'", "3 gradients for 2"]),
        ([Weighted("b", "a"), SquaredError("bad", ["a", "b"])], TrainingError, ["'bad'", "input shapes (4, 3), None"]),
    ],
    ids=lambda value: None if isinstance(value, list) else "",
)
def test_a_layer_that_breaks_the_rules_is_named(layers, kind, words):
    with pytest.raises(SingaError) as caught:
        trained(between(Weighted("a", "x"), *layers))
    assert type(caught.value) is kind
    assert all(word in str(caught.value) for word in words), str(caught.value)


class Feed(InputLayer):
    """Passes on what it is fed."""

    def setup(self, *src):
        return (3,)

    def forward(self, ctx, *x):
        return x[0]


def test_feeding_nothing_or_another_shape_is_an_error():
    net = build(Feed("x"), Weighted("a", "x"))
    with pytest.raises(DataError, match=r"'x' was not fed. Fed: y"):
        net.forward({"y": batch()["x"]}, Step())
    with pytest.raises(DataError, match=r"shape \(3,\), but was fed \(5,\)"):
        net.forward(batch(5), Step())


def test_contributions_of_an_abandoned_step_are_forgotten():
    net = between(Weighted("a", "x"), Weighted("b", "a"))
    want = trained(net)
    net.named_params["b_weight"].claim()
    np.testing.assert_array_equal(trained(net), want)


def test_closing_completes_the_files_of_output_layers(tmp_path):
    path = tmp_path / "out.csv"
    net = build(data(), Weighted("a", "x"), CSVOutput("file", "a", path=str(path)))
    net.forward(batch(), Step(total_rows=ROWS))
    net.close()
    np.testing.assert_allclose(np.loadtxt(path, delimiter=","), net.output("a"), rtol=1e-12)


def test_unknown_output_is_named():
    net = build(data(), Weighted("a", "x"))
    with pytest.raises(KeyError, match="Did you mean a"):
        net.output("A")
