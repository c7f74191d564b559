"""Nets as classes: the graph that they make."""

from __future__ import annotations

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
    Slice,
    SoftmaxLoss,
)
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


def wiring(layers):
    return {message.name: list(message.srclayers) for message in assemble(layers)}


def test_a_module_in_a_list_is_wired_by_its_forward():
    assert wiring([RecordInput("data", **DATA), Net(), SoftmaxLoss("loss")]) == {
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
    }


def test_a_module_is_called_on_layers_as_a_layer_is():
    data = RecordInput("data", **DATA)
    scores = Net(0)(data)
    assert wiring([SoftmaxLoss("loss")(scores, data), Accuracy("right")(scores, data)]) == {
        "data": [],
        "first": ["data"],
        "heads.scores": ["first"],
        "loss": ["heads.scores", "data"],
        "right": ["heads.scores", "data"],
    }


def test_a_name_goes_in_front_of_the_names_of_the_layers():
    net = Net(1)
    net.name = "encoder"
    assert [m.name for m in assemble([RecordInput("data", **DATA), net])][1:] == [
        *("encoder.first", "encoder.blocks.0.fc", "encoder.blocks.0.relu", "add1", "encoder.heads.scores"),
    ]


def test_names_of_several_modules_do_not_clash():
    layers = [RecordInput("data", **DATA), Block(64), Block(64), InnerProduct("fc", num_output=64), Block(64)]
    assert wiring(layers) == {
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
    }
    data = RecordInput("data", **DATA)
    assert [m.name for m in assemble([Block(64)(Block(64)(data))])] == [
        *("data", "fc", "relu", "add1", "block2.fc", "block2.relu", "add2"),
    ]


class Stacked(Module):
    def __init__(self):
        self.layers = [InnerProduct(num_output=4), ReLU(), InnerProduct(num_output=3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_an_attribute_may_be_called_layers():
    assert [name for name, _ in Stacked().named_layers().values()] == ["layers.0", "layers.1", "layers.2"]
    assert Stacked()(np.ones((2, 5), np.float32)).shape == (2, 3)


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


def test_a_module_may_know_the_one_that_it_is_in():
    assert list(wiring([RecordInput("data", **DATA), Parent()])) == ["data", "child.fc"]


class Twice(Module):
    def __init__(self):
        self.fc = InnerProduct(num_output=64, param=[{"name": "w"}, {"lr_scale": 2}])

    def forward(self, x):
        return self.fc(self.fc(x))


def test_a_layer_that_is_called_twice_shares_its_parameters():
    _, *layers = assemble([RecordInput("data", **DATA), Twice()])
    assert [(m.name, m.share_params) for m in layers] == [("fc", ""), ("fc_2", "fc")]
    assert [p.share_from for p in layers[1].param] == ["w", ""]
    job = Job(
        name="twice", layers=[RecordInput("data", **DATA), Twice(), SoftmaxLoss()], updater=SGD(lr=0.1), train_steps=1
    )
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
    with pytest.raises(ConfigError, match=r"piece must be below the number of pieces, 2, and slice_dim above 0"):
        Model([RecordInput("data", shape=3), Slice(slice_dim=1, num_slices=2, piece=2)])


def test_a_module_may_be_used_for_several_nets():
    net = Net()
    assert wiring([RecordInput("data", **DATA), net]) == wiring([RecordInput("data", **DATA), net])


class WithLoss(Module):
    def __init__(self):
        self.fc, self.loss = InnerProduct(num_output=10), SoftmaxLoss()

    def forward(self, x, labels):
        return self.loss(self.fc(x), labels)


def test_a_module_may_take_the_labels():
    assert wiring([RecordInput("data", **DATA), Dropout("drop"), WithLoss()]) == {
        "data": [],
        "drop": ["data"],
        "fc": ["drop"],
        "loss": ["fc", "data"],
    }


class Nothing(Module):
    def forward(self, x):
        ReLU()(x)


class Three(Module):
    def forward(self, a, b, c):
        return a


class Conditional(Module):
    def __init__(self):
        self.fc = InnerProduct(num_output=10)

    def forward(self, x):
        if self.fc:  # a layer, not its output
            x = self.fc(x)
        return ReLU()(x) if x else x


class Careless(Module):
    def forward(self, x):
        return Block(64)(x)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([RecordInput("data", **DATA), Conditional()], "layer 'fc': has no value in forward, which runs once"),
        (
            [RecordInput("data", **DATA), Careless()],
            "layer 'InnerProduct': has parameters and is called in the forward of Careless, but is not an attribute",
        ),
        ([RecordInput("data", **DATA), Nothing()], "module Nothing: forward must return layers. Received: None"),
        ([RecordInput("data", **DATA), Three()], "module Three: takes 3 sources"),
        ([Net(), SoftmaxLoss()], "module Net: has no sources"),
        ([RecordInput("data", **DATA), Module()], "Module needs a method forward"),
    ],
)
def test_errors_name_the_module(layers, message):
    with pytest.raises((ConfigError, NotImplementedError), match=message.replace("(", r"\(").replace(")", r"\)")):
        assemble(layers)


def test_convolutions_are_named_too():
    class Images(Module):
        def __init__(self):
            self.conv = Convolution(num_filters=2)

        def forward(self, x):
            return self.conv(x) * self.conv(x)

    names = [m.name for m in assemble([RecordInput("data", **(DATA | {"shape": [1, 8, 8]})), Images()])]
    assert names == ["data", "conv", "conv_2", "mul1"]


@pytest.mark.parametrize(
    "combine",
    [lambda x: x * 0.5, lambda x: 1 - x, lambda x: -x, lambda x: x**2, lambda x: x @ x, lambda x: x[:, :2]],
)
def test_what_layers_cannot_be_combined_with_says_the_way_out(combine):
    class Scaled(Module):
        def forward(self, x):
            return combine(x)

    with pytest.raises(ConfigError, match=r"combines layers with layers, by .* a layer of your own"):
        assemble([RecordInput("data", **DATA), Scaled(), SoftmaxLoss("loss")])


@pytest.mark.parametrize("listed", [Net, ReLU])
def test_a_class_in_a_list_is_refused(listed):
    with pytest.raises(ConfigError, match=rf"layers\[1\]: is a class\. .* Write {listed.__name__}\(\)"):
        Job(name="x", layers=[RecordInput("data", **DATA), listed], updater=SGD(lr=0.1), train_steps=1)


def test_sources_of_other_dimensions_are_told_to_be_reshaped():
    data = RecordInput("data", shape=[3, 4, 5])
    joined = Concate("both", concate_dim=1)(InnerProduct(num_output=2)(data), Dropout("image")(data))
    with pytest.raises(ConfigError, match=r"put Reshape\(shape=\[60\]\) behind 'image'"):
        Model([SoftmaxLoss()(InnerProduct(num_output=2)(joined), data)])
