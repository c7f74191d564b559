"""Nets as classes: the graph that they make."""

import re

import numpy as np
import pytest

from singa_dask import Job, Model, Module, autograd
from singa_dask.errors import ConfigError
from singa_dask.job.assemble import assemble
from singa_dask.layers import (
    Accuracy,
    Concate,
    Convolution,
    Dropout,
    InnerProduct,
    RecordInput,
    ReLU,
    SoftmaxLoss,
)
from singa_dask.loops.distopt import DistOpt
from singa_dask.tensors.tensor import Tensor
from singa_dask.updaters import SGD

DATA = {"path": "dataset:digits/train", "batchsize": 4, "shape": 64}


class Block(Module):
    def __init__(self, width):
        self.fc = InnerProduct(num_output=width)
        self.relu = ReLU()

    def forward(self, x):
        return x + self.relu(self.fc(x))


class Net(Module):
    def __init__(self, blocks=2):
        self.first = InnerProduct(num_output=16)
        self.blocks = [Block(16) for _ in range(blocks)]
        self.heads = {"digit": InnerProduct("scores", num_output=10)}

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.heads["digit"](x)


class Stacked(Module):
    def __init__(self):
        self.layers = [InnerProduct(num_output=4), ReLU(), InnerProduct(num_output=3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Child(Module):
    def __init__(self, parent):
        self.parent, self.fc = parent, InnerProduct(num_output=64)

    def forward(self, x):
        return self.fc(x)


class Parent(Module):
    def __init__(self):
        self.child = Child(self)

    def forward(self, x):
        return self.child(x)


class WithLoss(Module):
    def __init__(self):
        self.fc, self.loss = InnerProduct(num_output=10), SoftmaxLoss()

    def forward(self, x, labels):
        return self.loss(self.fc(x), labels)


class Twice(Module):
    def __init__(self):
        self.fc = InnerProduct(num_output=64, param=[{"name": "w"}, {"lr_scale": 2}])

    def forward(self, x):
        return self.fc(self.fc(x))


def data():
    return RecordInput("data", **DATA)


def called_on_layers():
    source = data()
    scores = Net(0)(source)
    return [SoftmaxLoss("loss")(scores, source), Accuracy("right")(scores, source)]


def named():
    net = Net(1)
    net.name = "encoder"
    return [data(), net]


# The sources of every layer.
WIRED = {
    "in a list": (
        lambda: [data(), Net(), SoftmaxLoss("loss")],
        {
            "data": [],
            "first": ["data"],
            "blocks.0.fc": ["first"],
            "blocks.0.relu": ["blocks.0.fc"],
            "add1": ["first", "blocks.0.relu"],
            "blocks.1.fc": ["add1"],
            "blocks.1.relu": ["blocks.1.fc"],
            "add2": ["add1", "blocks.1.relu"],
            "heads.scores": ["add2"],
            "loss": ["heads.scores", "data"],
        },
    ),
    "called on layers": (
        called_on_layers,
        {
            "data": [],
            "first": ["data"],
            "heads.scores": ["first"],
            "loss": ["heads.scores", "data"],
            "right": ["heads.scores", "data"],
        },
    ),
    "a name in front": (
        named,
        {
            "data": [],
            "encoder.first": ["data"],
            "encoder.blocks.0.fc": ["encoder.first"],
            "encoder.blocks.0.relu": ["encoder.blocks.0.fc"],
            "add1": ["encoder.first", "encoder.blocks.0.relu"],
            "encoder.heads.scores": ["add1"],
        },
    ),
    "several of one class": (
        lambda: [data(), Block(64), Block(64), InnerProduct("fc", num_output=64), Block(64)],
        {
            "data": [],
            "block2.fc": ["data"],
            "block2.relu": ["block2.fc"],
            "add1": ["data", "block2.relu"],
            "block3.fc": ["add1"],
            "block3.relu": ["block3.fc"],
            "add2": ["add1", "block3.relu"],
            "fc": ["add2"],
            "block4.fc": ["fc"],
            "block4.relu": ["block4.fc"],
            "add3": ["fc", "block4.relu"],
        },
    ),
    "one on another": (
        lambda: [Block(64)(Block(64)(data()))],
        {
            "data": [],
            "fc": ["data"],
            "relu": ["fc"],
            "add1": ["data", "relu"],
            "block2.fc": ["add1"],
            "block2.relu": ["block2.fc"],
            "add2": ["add1", "block2.relu"],
        },
    ),
    "an attribute called layers": (
        lambda: [data(), Stacked()],
        {"data": [], "layers.0": ["data"], "layers.1": ["layers.0"], "layers.2": ["layers.1"]},
    ),
    "one that knows the one that it is in": (lambda: [data(), Parent()], {"data": [], "child.fc": ["data"]}),
    "one that takes the labels": (
        lambda: [data(), Dropout("drop"), WithLoss()],
        {"data": [], "drop": ["data"], "fc": ["drop"], "loss": ["fc", "data"]},
    ),
    "a layer called twice": (lambda: [data(), Twice()], {"data": [], "fc": ["data"], "fc_2": ["fc"]}),
}


def wiring(layers):
    return {message.name: list(message.srclayers) for message in assemble(layers)}


@pytest.mark.parametrize("name", WIRED)
def test_a_module_is_wired_by_its_forward(name):
    layers, sources = WIRED[name]
    assert wiring(layers()) == sources


def test_a_module_may_be_used_for_several_nets():
    net = Net()
    assert wiring([data(), net]) == wiring([data(), net])


def test_a_module_with_an_attribute_called_layers_computes():
    assert [name for name, _ in Stacked().named_layers().values()] == ["layers.0", "layers.1", "layers.2"]
    assert Stacked()(np.ones((2, 5), np.float32)).shape == (2, 3)


def test_a_layer_that_is_called_twice_shares_its_parameters():
    layers = [data(), Twice()]
    _, *messages = assemble(layers)
    assert [(m.name, m.share_params) for m in messages] == [("fc", ""), ("fc_2", "fc")]
    assert [p.share_from for p in messages[1].param] == ["w", ""]
    job = Job(name="twice", layers=[*layers, SoftmaxLoss()], updater=SGD(lr=0.1), train_steps=1)
    assert Job.from_text(job.to_text()) == job


def test_a_module_that_is_called_twice_shares_its_parameters():
    one, two = RecordInput("one", **DATA), RecordInput("two", **DATA)
    net = Block(64)
    names = {m.name: m.share_params for m in assemble([SoftmaxLoss("loss")(net(one) + net(two), one)])}
    assert names["fc_2"] == "fc" and names["relu_2"] == ""


class Gated(Module):
    def __init__(self):
        self.fc = InnerProduct(num_output=5)

    def forward(self, x):
        gates, _, values = autograd.split(self.fc(x), 1, [2, 1, 2])
        return values * autograd.sigmoid(gates)


def test_pieces_are_read_in_any_order():
    model = Model([RecordInput("data", shape=3), Gated()])
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    weight, bias = (np.asarray(param.value) for param in model.net.params)
    y = x @ weight + bias
    np.testing.assert_allclose(model.predict(x), y[:, 3:] / (1 + np.exp(-y[:, :2])), rtol=1e-5)


class Nothing(Module):
    def forward(self, x):
        ReLU()(x)


class Three(Module):
    def forward(self, a, b, c):
        return a


class Conditional(Child):
    def forward(self, x):
        if self.fc:  # a layer, not its output
            x = self.fc(x)
        return ReLU()(x) if x else x


class Shaped(Child):
    def forward(self, x):
        return autograd.reshape(self.fc(x), (x.shape[0], -1))


def test_a_layer_has_no_shape_while_a_net_is_built():
    assert not hasattr(data(), "shape") and not hasattr(data(), "other")
    with pytest.raises(AttributeError, match=r"no shape in forward.*write -1 for the rows.*RecordInput\('data'\)"):
        Shaped(ReLU())(data())


class Careless(Module):
    def forward(self, x):
        return Block(64)(x)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([data(), Conditional(None)], "layer 'fc': has no value in forward, which runs once"),
        (
            [data(), Careless()],
            "layer 'InnerProduct': has parameters and is called in the forward of Careless, but is not an attribute",
        ),
        ([data(), Nothing()], "module Nothing: forward must return layers. Received: None"),
        ([data(), Three()], "module Three: takes 3 sources"),
        ([Net(), SoftmaxLoss()], "module Net: has no sources"),
        ([data(), Module()], "Module needs a method forward"),
    ],
    ids=["if layer", "no attribute", "no output", "sources", "no source", "no forward"],
)
def test_errors_name_the_module_or_the_way_out(layers, message):
    with pytest.raises((ConfigError, NotImplementedError), match=re.escape(message)):
        assemble(layers)


@pytest.mark.parametrize("listed", [Net, ReLU])
def test_a_class_in_a_list_is_refused(listed):
    with pytest.raises(ConfigError, match=rf"layers\[1\]: is a class\. .* Write {listed.__name__}\(\)"):
        Job(name="x", layers=[data(), listed], updater=SGD(lr=0.1), train_steps=1)


def test_sources_of_other_dimensions_are_told_to_be_reshaped():
    source = RecordInput("data", shape=[3, 4, 5])
    joined = Concate("both", concate_dim=1)(InnerProduct(num_output=2)(source), Dropout("image")(source))
    with pytest.raises(ConfigError, match=r"put Reshape\(shape=\[60\]\) behind 'image'"):
        Model([SoftmaxLoss()(InnerProduct(num_output=2)(joined), source)])


def test_a_module_has_one_set_of_parameters_in_a_model_and_outside():
    x, y, net = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32), np.arange(6) % 3, Stacked()
    model = Model([RecordInput("data", shape=4), net, SoftmaxLoss()])
    trained = DistOpt(SGD(lr=0.5), model)
    for _ in range(3):
        trained.backward_and_update(model(x, y))
        scores = net(x)
        softmax = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(softmax, model.predict(x), rtol=1e-5)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, model.state_dict()[name])
    again = Model([RecordInput("data", shape=4), net, SoftmaxLoss()])
    weight = again.state_dict()["layers.0_weight"]
    assert (weight != model.state_dict()["layers.0_weight"]).any()
    net(x)
    np.testing.assert_array_equal(net.state_dict()["layers.0_weight"], weight)


def test_a_model_takes_the_parameters_of_a_module_that_was_called_before():
    x, net = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32), Stacked()
    scores = net(x)
    weight = net.parameters()[0]
    weight.copy_from_numpy(weight.to_numpy() + 1)
    expected = net(x)
    model = Model([RecordInput("data", shape=4), net])
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5)
    assert (net(x) != scores).any() and (net(x) == expected).all() and net.parameters()[0] is weight


def test_a_module_means_the_same_for_arrays_tensors_and_in_a_model():
    class Flat(Module):
        def __init__(self):
            self.conv = Convolution(num_filters=3, kernel=3)
            self.fc = InnerProduct(num_output=2)

        def forward(self, x):
            return self.fc(autograd.reshape(self.conv(x), (-1, 3 * 4 * 5)))

    x, net = np.random.default_rng(0).normal(size=(5, 6, 7, 2)).astype("f4"), Flat()
    computed = net(Tensor(data=x.transpose(0, 3, 1, 2))).to_numpy()
    np.testing.assert_array_equal(net(x), computed)
    model = Model([RecordInput(shape=[2, 6, 7]), net])
    np.testing.assert_array_equal(model.predict(x), computed)
    np.testing.assert_array_equal(net(Tensor(data=x.transpose(0, 3, 1, 2))).to_numpy(), computed)
