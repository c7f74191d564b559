"""The net's routing, with small layers of known derivatives."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from singa_dask.errors import ConfigError, DataError, TrainingError
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    Activation,
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
from singa_dask.layers.base import Layer, LossLayer
from singa_dask.layers.context import Metric, Step
from singa_dask.layers.input import InputLayer
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

ROWS = 4


class Feed(InputLayer):
    """Passes on what it is fed; samples of `features` numbers."""

    def setup(self):
        return (self.conf.get("features", 3),)

    def forward(self, ctx, *x):
        return x[0]


class Scale(Layer):
    """y = w x, a weight per feature; counts its backward calls."""

    def setup(self, *src):
        self.w = self.declare("weight", src[0], 1, 1)
        return src[0]

    def forward(self, ctx, *x):
        ctx.x = x[0]
        return x[0] * self.w.value

    def backward(self, ctx, dy):
        contribution = (dy * ctx.x).sum(axis=0)
        np.add(contribution, self.w.grad if self.w.claim() else 0, out=self.w.grad)
        ctx.calls = ctx.__dict__.get("calls", 0) + 1
        if not ctx.needs_input_grad:
            return None
        dy *= self.w.value  # allowed: dy belongs to the callee
        return dy


class Untouched(Layer):
    """Has a parameter that gets no gradient; stops its source's too."""

    def setup(self, *src):
        self.w = self.declare("weight", src[0], 1, 1)
        return src[0]

    def forward(self, ctx, *x):
        return x[0] + 0

    def backward(self, ctx, dy):
        return None


class Unclaimed(Untouched):
    """Writes its parameter's gradient as if it were alone to do so."""

    def backward(self, ctx, dy):
        self.w.grad[...] = dy.sum(axis=0)
        return dy


class Add(Layer):
    """y = sum of the sources; hands one and the same gradient to all of them."""

    num_sources = (1, None)

    def setup(self, *src):
        return src[0]

    def forward(self, ctx, *x):
        return sum(x[1:], x[0].copy())

    def backward(self, ctx, dy):
        return tuple(dy for _ in self.proto.srclayers)


class Promised(Add):
    """Gives what it was asked to give, whatever its setup has said."""

    gives = staticmethod(lambda x: x)

    def forward(self, ctx, *x):
        return type(self).gives(x[0])


class Halves(Layer):
    """First and second half of the features, to the first and the second destination."""

    multiple_outputs = True

    def setup(self, *src):
        return ((src[0][0] // 2,), (src[0][0] - src[0][0] // 2,))

    def forward(self, ctx, *x):
        half = x[0].shape[1] // 2
        return (x[0][:, :half], x[0][:, half:])

    def backward(self, ctx, dy):
        return np.concatenate(dy, axis=1)


class Relabel(Layer):
    """Passes features and labels on."""

    passes_labels = True

    def setup(self, *src):
        return src[0]

    def forward(self, ctx, *x):
        return x[0]

    def backward(self, ctx, dy):
        return dy


class Reversed(Layer):
    """y = x with the features in reverse order; gives strided views away and wants none itself."""

    def setup(self, *src):
        return src[0]

    def forward(self, ctx, *x):
        assert x[0].flags.c_contiguous
        return x[0][:, ::-1]

    def backward(self, ctx, dy):
        assert dy.flags.c_contiguous
        return dy[:, ::-1]


class Against(LossLayer):
    """Sum over features of y * label, divided by total_rows."""

    num_sources = (2, 2)
    label_sources = (1,)

    def setup(self, *src):
        return ()

    def forward(self, ctx, *x):
        y, label = x
        ctx.y, ctx.label = y, label
        ctx.total = float((y.sum(axis=1) * label).sum())
        return None

    def backward(self, ctx, dy):
        assert dy is None
        return np.broadcast_to(ctx.label[:, None], ctx.y.shape) / ctx.step.total_rows

    def metrics(self, ctx):
        return {"loss": Metric(ctx.total, len(ctx.y))}


class Unusable(LossLayer):
    """A loss whose gradient nobody may ask for."""

    def setup(self, *src):
        return ()

    def forward(self, ctx, *x):
        return None

    def backward(self, ctx, dy):
        raise AssertionError("nothing below has parameters")


class Faulty(Layer):
    """Fails where it is told to."""

    def setup(self, *src):
        if self.conf["where"] == "setup":
            raise ZeroDivisionError("on purpose")
        self.declare("weight", (1,), 1, 1)
        return src[0]

    def forward(self, ctx, *x):
        if self.conf["where"] == "forward":
            raise ZeroDivisionError("on purpose")
        if self.conf["where"] == "config":
            raise self.problem("not possible")
        return x[0]

    def backward(self, ctx, dy):
        if self.conf["where"] == "shape":
            return dy[:, :1]
        raise ZeroDivisionError("on purpose")


def build(*layers, phase=Phase.kTrain, share=None, dtype=np.float64):
    net = Net(NetProto(layer=[layer.proto for layer in layers]), phase, get_ops("cpu", dtype), share)
    if share is None:
        net.flat.values[...] = np.random.default_rng(5).normal(size=net.flat.size)
    return net


def batch(features=3, rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    return Batch(rng.normal(size=(rows, features)), rng.normal(size=rows))


def loss_of(net, feed, total_rows=ROWS):
    net.forward(feed, Step(total_rows=total_rows))
    return sum(metric.total for metric in net.metrics().values()) / total_rows


def check_gradients(net, feed):
    """Every parameter's gradient against central differences of the loss."""
    loss_of(net, feed)
    net.backward()
    got = net.flat.grads.copy()
    eps = 1e-6
    for entry in net.flat.entries:
        for i in range(entry.start, entry.stop):
            saved = net.flat.values[i]
            net.flat.values[i] = saved + eps
            above = loss_of(net, feed)
            net.flat.values[i] = saved - eps
            below = loss_of(net, feed)
            net.flat.values[i] = saved
            assert got[i] == pytest.approx((above - below) / (2 * eps), rel=1e-6, abs=1e-8), entry.name
    return got


def test_chain_diamond_and_repeated_sources():
    net = build(
        Feed("x"),
        Scale("a", "x"),
        Scale("left", "a"),
        Scale("right", "a"),
        Add("sum", ["left", "a", "right", "right"]),
        Scale("top", "sum"),
        Against("loss", ["top", "x"]),
    )
    feed = {"x": batch()}
    first = check_gradients(net, feed)
    loss_of(net, feed)
    net.backward()
    np.testing.assert_array_equal(net.flat.grads, first)


def test_calls_can_be_wrapped():
    net = build(Feed("x"), Scale("a", "x"), Scale("b", "a"), Against("loss", ["b", "x"]))
    seen = []

    def around(layer, which, call):
        def noted(*arguments):
            seen.append((layer, which))
            return call(*arguments)

        return noted

    feed = {"x": batch()}
    plain = loss_of(net, feed)
    net.wrap_calls(around)
    assert loss_of(net, feed) == plain
    net.backward()
    names = ["x", "a", "b", "loss"]
    assert seen == [(name, "forward") for name in names] + [(name, "backward") for name in reversed(names[1:])]


def test_a_net_is_gone_when_nobody_has_it():
    """Without a search for what refers to itself: nets are large."""
    train = build(Feed("x"), Scale("a", "x"), Against("loss", ["a", "x"]))
    test = build(Feed("x"), Scale("a", "x"), Against("loss", ["a", "x"]), phase=Phase.kTest, share=train)
    test.initialise(3)
    assert {param.name for param in test.params} == {param.name for param in train.params} != set()
    seen = [weakref.ref(net) for net in (train, test)]
    gc.disable()
    try:
        del train, test
        assert [net() for net in seen] == [None, None]
    finally:
        gc.enable()


def test_a_second_backward_call_is_refused():
    net = build(Feed("x"), Scale("a", "x"), Against("loss", ["a", "x"]))
    feed = {"x": batch()}
    with pytest.raises(TrainingError, match=r"Call net.forward before each backward"):
        net.backward()
    loss_of(net, feed)
    net.backward()
    first = net.flat.grads.copy()
    with pytest.raises(TrainingError, match=r"Call net.forward before each backward"):
        net.backward()
    np.testing.assert_array_equal(net.flat.grads, first)
    loss_of(net, feed)
    net.backward()


def test_one_gradient_handed_to_two_sources_is_not_overwritten():
    net = build(
        Feed("x"),
        Scale("a", "x"),
        Scale("b", "a"),
        Scale("c", "a"),
        Add("sum", ["b", "c"]),
        Against("loss", ["sum", "x"]),
    )
    check_gradients(net, {"x": batch()})


def test_strided_views_become_contiguous():
    net = build(
        Feed("x"),
        Scale("a", "x"),
        Reversed("r1", "a"),
        Reversed("r2", "r1"),
        Scale("b", "r2"),
        Against("loss", ["b", "x"]),
    )
    check_gradients(net, {"x": batch()})


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
    net, stays = build(*layers), build(*layers, Relabel("second", "relu"))
    feed = {"data": Batch(np.random.default_rng(1).normal(size=(ROWS, 6, 7, 2)), np.arange(ROWS) % 2)}
    computed = []
    net.wrap_calls(lambda layer, call, run: lambda *given: (computed.append((layer, call)), run(*given))[1])
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
    "remembered": (ReLU("f", "conv"), Pooling("pool", "f", kernel=2), RNNDummy("again", dynamic_srclayer="f", high=1)),
}


@pytest.mark.parametrize("rest", OTHERS.values(), ids=OTHERS)
def test_nothing_else_changes_places(rest):
    if rest[-1].type == "kRNNDummy":
        rest[-1].conf.shape[:] = [1, 3, 3, 3]
    conv = [RecordInput("data", shape=[2, 5, 5], batchsize=1), Convolution("conv", "data", num_filters=3, kernel=3)]
    net = build(*conv, *rest)
    ran = []
    net.wrap_calls(lambda layer, call, run: lambda *given: (ran.append(layer), run(*given))[1])
    net.forward({"data": Batch(np.ones((1, 5, 5, 2)))}, Step())
    assert ran.index("f") < ran.index("pool")


def test_a_loss_above_no_parameters_has_nothing_to_do():
    net = build(
        Feed("x"), Relabel("plain", "x"), Scale("a", "x"), Unusable("fixed", "plain"), Against("loss", ["a", "x"])
    )
    check_gradients(net, {"x": batch()})


def test_shared_parameters_add_their_gradients():
    net = build(
        Feed("x"),
        Scale("a", "x", param=[{"name": "w"}]),
        Scale("b", "a", param=[{"name": "v", "share_from": "u"}]),
        Scale("c", "b", param=[{"name": "u", "share_from": "w"}]),
        Against("loss", ["c", "x"]),
    )
    assert [p.name for p in net.params] == ["w"]
    assert net.layers["b"].w.value is net.layers["a"].w.value
    check_gradients(net, {"x": batch()})


def test_several_outputs_and_labels_passed_on():
    net = build(
        Feed("x", features=5),
        Relabel("again", "x"),
        Scale("a", "again"),
        Halves("halves", "a"),
        Scale("first", "halves"),
        Scale("second", "halves"),
        Against("loss1", ["first", "again"]),
        Against("loss2", ["second", "again"]),
    )
    assert net.shapes["halves"] == ((2,), (3,))
    assert (net.shapes["first"], net.shapes["second"]) == ((2,), (3,))
    check_gradients(net, {"x": batch(5)})
    assert set(net.metrics()) == {"loss1.loss", "loss2.loss"}


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_outputs_than_readers_is_an_error(count, monkeypatch):
    monkeypatch.setattr(Halves, "forward", lambda self, ctx, x: (x,) * count)
    net = build(
        Feed("x", features=4),
        Halves("halves", "x"),
        Scale("first", "halves"),
        Scale("second", "halves"),
        Against("loss", ["first", "x"]),
    )
    with pytest.raises(TrainingError, match=rf"'halves' .*returned {count} arrays for 2 destinations"):
        net.forward({"x": batch(4)}, Step())


def test_an_output_without_gradient_counts_as_zero():
    net = build(
        Feed("x", features=4),
        Scale("a", "x"),
        Halves("halves", "a"),
        Relabel("first", "halves"),
        Scale("unused", "halves"),
        Against("loss", ["first", "x"]),
    )
    grads = check_gradients(net, {"x": batch(4)})
    assert grads[:2].all()
    assert not grads[2:].any()


def test_layers_without_a_loss_above_or_parameters_below_are_skipped():
    net = build(
        Feed("x"), Relabel("plain", "x"), Scale("a", "plain"), Scale("aside", "a"), Against("loss", ["a", "x"])
    )
    net.flat.grads[...] = 7
    loss_of(net, {"x": batch()})
    net.backward()
    assert not net.layers["aside"].w.grad.any()
    assert net.layers["a"].w.grad.all()
    assert net.contexts["a"].calls == 1
    assert "calls" not in vars(net.contexts["aside"])
    assert not net.contexts["a"].needs_input_grad
    assert net.contexts["loss"].needs_input_grad


def test_untouched_parameters_get_zero():
    net = build(Feed("x"), Scale("a", "x"), Untouched("b", "a"), Against("loss", ["b", "x"]))
    net.flat.grads[...] = 7
    loss_of(net, {"x": batch()})
    net.backward()
    assert not net.layers["a"].w.grad.any()
    assert not net.layers["b"].w.grad.any()


def test_a_gradient_that_was_not_claimed_is_an_error():
    net = build(Feed("x"), Unclaimed("a", "x"), Against("loss", ["a", "x"]))
    loss_of(net, {"x": batch()})
    with pytest.raises(TrainingError, match=r"'a_weight': backward wrote its gradient without calling claim\(\)"):
        net.backward()


@pytest.mark.parametrize(
    ("gives", "says"),
    [
        (lambda x: x[:, :2], r"forward returned rows of shape \(2,\), but setup returned \(3,\)"),
        (lambda x: None, "forward returned None, but other layers read its output"),
    ],
)
def test_an_output_of_another_shape_than_promised_is_an_error(gives, says, monkeypatch):
    monkeypatch.setattr(Promised, "gives", staticmethod(gives))
    net = build(Feed("x"), Scale("a", "x"), Promised("bad", "a"), Against("loss", ["bad", "x"]))
    with pytest.raises(TrainingError, match=rf"'bad' .*{says}"):
        net.forward({"x": batch()}, Step())


def test_gradients_are_announced_once_complete_and_from_the_top():
    net = build(
        Feed("x"),
        Scale("a", "x", param=[{"name": "w"}]),
        Scale("b", "a"),
        Scale("c", "b", param=[{"share_from": "w"}]),
        Scale("aside", "a"),
        Against("loss", ["c", "x"]),
    )
    feed = {"x": batch()}
    loss_of(net, feed)
    net.backward()
    final = {param.name: param.grad.copy() for param in net.params}
    announced = []
    loss_of(net, feed)
    net.backward(lambda param: announced.append((param.name, param.grad.copy())))
    assert [name for name, _ in announced] == ["b_weight", "w", "aside_weight"]
    for name, grad in announced:
        np.testing.assert_array_equal(grad, final[name])


def test_gradients_that_an_algorithm_leaves_out_are_zero_and_announced():
    net = build(Feed("x"), Scale("a", "x"), Scale("b", "a"), Against("loss", ["b", "x"]))
    loss_of(net, {"x": batch()})
    net.backward()
    first, second = net.params
    assert first.grad.any() and second.grad.any()
    announced = []
    with net.gradients(lambda param: announced.append((param.name, param.grad.copy()))):
        assert not second.claim(), "what the pass before left is no contribution"
        second.grad[...] = 3
    assert not first.grad.any() and (second.grad == 3).all()
    assert [name for name, _ in announced] == [first.name, second.name]
    assert [float(grad.ravel()[0]) for _, grad in announced] == [0, 3]
    with net.gradients():
        pass
    assert not net.flat.grads.any()


def test_gradients_of_shares_add_up_to_the_batch():
    def layers():
        return Feed("x"), Scale("a", "x"), Scale("b", "a"), Against("loss", ["b", "x"])

    whole, total = build(*layers()), batch(rows=7)
    loss_of(whole, {"x": total}, 7)
    whole.backward()
    summed, first = 0, 0
    for rows in (3, 2, 2):
        share = Batch(total.features[first : first + rows], total.labels[first : first + rows])
        net = build(*layers())
        net.forward({"x": share}, Step(first_row=first, total_rows=7))
        net.backward()
        summed, first = summed + net.flat.grads, first + rows
    np.testing.assert_allclose(summed, whole.flat.grads, rtol=1e-12)


def test_test_net_uses_the_training_nets_parameters():
    layers = [Feed("x"), Scale("a", "x"), Scale("b", "a", exclude=[Phase.kTest]), Against("loss", ["a", "x"])]
    train = build(*layers)
    test = build(*layers, phase=Phase.kTest, share=train)
    assert test.flat is train.flat
    assert test.params == train.params[:1]
    train.initialise(3)
    before = train.flat.values.copy()
    feed = {"x": batch()}
    test.forward(feed, Step(Phase.kTest))
    np.testing.assert_array_equal(test.output("a"), feed["x"].features * train.layers["a"].w.value)
    test.initialise(3)
    np.testing.assert_array_equal(train.flat.values, before)


def test_initial_values_do_not_depend_on_other_layers():
    gaussian = {"init": {"type": "kGaussian"}}
    small = build(Feed("x"), Scale("a", "x", param=[gaussian]), dtype=np.float32)
    large = build(Feed("x"), Scale("b", "x", param=[gaussian]), Scale("a", "b", param=[gaussian]))
    small.initialise(11)
    large.initialise(11)
    np.testing.assert_array_equal(small.layers["a"].w.value, large.layers["a"].w.value.astype(np.float32))


def test_description_lists_layers_in_order():
    net = build(
        Feed("x"),
        Scale("a", "x", partition_dim=1),
        Scale("b", "a", param=[{"share_from": "a_weight"}]),
        Relabel("c", "b"),
    )
    assert [tuple(row) for row in net.describe()] == [
        ("x", "Feed", (3,), 0, "batch", 1, (0, 0), (), frozenset()),
        ("a", "Scale", (3,), 3, "features", 1, (0, 0), ("x",), frozenset()),
        ("b", "Scale", (3,), 0, "batch", 1, (0, 0), ("a",), frozenset()),
        ("c", "Relabel", (3,), 0, "batch", 1, (0, 0), ("b",), frozenset()),
    ]


def scale(layer_name, source="x", **param):
    return Scale(layer_name, source, param=[param])


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([scale("a", share_from="b_weigth"), scale("b")], ["share_from", "b_weigth", "Did you mean b_weight?"]),
        ([scale("a", name="w"), scale("b", name="w")], ["'w'.name", "share_from"]),
        (
            [scale("a", share_from="b_weight"), scale("b", share_from="a_weight")],
            ["forms a cycle", "a_weight <- b_weight"],
        ),
        (
            [scale("a"), Halves("h", "x"), scale("b", "h", share_from="a_weight"), scale("c", "h")],
            ["(2,)", "(4,)", "'a_weight'"],
        ),
        ([Halves("h", "x"), Scale("b", "h")], ["layer 'h'", "2 outputs", "1 layers"]),
        ([Scale("a", ["x", "x"])], ["layer 'a'", "takes 1 srclayers", "x, x"]),
        ([Against("loss", "x")], ["layer 'loss'", "takes 2 srclayers"]),
    ],
)
def test_configuration_errors(layers, words):
    with pytest.raises(ConfigError) as caught:
        build(Feed("x", features=4), *layers)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_parameter_that_nothing_trains_is_an_error():
    layers = [Feed("x"), Scale("a", "x"), Scale("extra", "a", include=[Phase.kTest])]
    with pytest.raises(ConfigError, match=r"'extra_weight'.*training net has no such parameter"):
        build(*layers, phase=Phase.kTest, share=build(*layers))


@pytest.mark.parametrize("where", ["setup", "forward", "backward"])
def test_a_layers_exception_names_layer_phase_and_shapes(where):
    layers = [Feed("x"), Scale("a", "x"), Faulty("bad", "a", where=where), Against("loss", ["bad", "x"])]

    def one_step():
        net = build(*layers)
        loss_of(net, {"x": batch()})
        net.backward()

    with pytest.raises(TrainingError) as caught:
        one_step()
    shape = "(3,)" if where == "setup" else "(4, 3)"
    text = str(caught.value)
    for word in ["'bad'", "Faulty", where, "kTrain", shape, "ZeroDivisionError: on purpose"]:
        assert word in text, text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_layers_own_config_error_passes_through():
    net = build(Feed("x"), Faulty("bad", "x", where="config"))
    with pytest.raises(ConfigError, match="layer 'bad': not possible"):
        net.forward({"x": batch()}, Step())


def test_a_gradient_of_another_shape_is_an_error():
    net = build(Feed("x"), Scale("a", "x"), Faulty("bad", "a", where="shape"), Against("loss", ["bad", "x"]))
    loss_of(net, {"x": batch()})
    with pytest.raises(TrainingError, match=r"'bad'.*\(4, 1\).*\(4, 3\)"):
        net.backward()


def test_feeding_nothing_or_another_shape_is_an_error():
    net = build(Feed("x"), Scale("a", "x"))
    with pytest.raises(DataError, match=r"'x' was not fed. Fed: y"):
        net.forward({"y": batch()}, Step())
    with pytest.raises(DataError, match=r"shape \(3,\), but was fed \(5,\)"):
        net.forward({"x": batch(5)}, Step())


def test_a_loss_whose_source_has_no_labels_is_an_error():
    net = build(Feed("x"), Scale("a", "x"), Against("loss", ["a", "a"]))
    with pytest.raises(TrainingError, match=r"'loss'.*input shapes \(4, 3\), None"):
        net.forward({"x": batch()}, Step())


def test_contributions_of_an_abandoned_step_are_forgotten():
    net = build(Feed("x"), Scale("a", "x"), Scale("b", "a"), Against("loss", ["b", "x"]))
    feed = {"x": batch()}
    loss_of(net, feed)
    net.backward()
    want = net.flat.grads.copy()
    loss_of(net, feed)
    net.layers["b"].w.claim()
    net.backward()
    np.testing.assert_array_equal(net.flat.grads, want)


def test_closing_completes_the_files_of_output_layers(tmp_path):
    path = tmp_path / "out.csv"
    net = build(Feed("x"), Scale("a", "x"), CSVOutput("file", "a", path=str(path)))
    net.forward({"x": batch()}, Step(total_rows=ROWS))
    net.close()
    np.testing.assert_allclose(np.loadtxt(path, delimiter=","), net.output("a"), rtol=1e-12)


def test_unknown_output_is_named():
    net = build(Feed("x"), Scale("a", "x"))
    with pytest.raises(KeyError, match="Did you mean a"):
        net.output("A")
