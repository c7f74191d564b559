"""A Module on sequences computes in a net what it computes in a loop over tensors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from singa_dask import Model, Module, autograd
from singa_dask.errors import ConfigError, DataError
from singa_dask.layers import (
    GRU,
    LSTM,
    Attention,
    Convolution,
    Embedding,
    InnerProduct,
    LayerNorm,
    Loss,
    MSELoss,
    PositionalEmbedding,
    RecordInput,
    Reverse,
    Select,
    SoftmaxLoss,
    bidirectional,
)
from singa_dask.tensors.tensor import Tensor

DOCS = (Path(__file__).parents[3] / "docs" / "step-labels.md").read_text()
ROWS, STEPS, BEFORE, SYMBOLS, CLASSES, UNITS = 3, 5, 4, 7, 4, 6
DRAW = np.random.default_rng(0)
DATA = {
    "w": DRAW.random((ROWS, 1)),
    "x": DRAW.integers(0, SYMBOLS, (ROWS, STEPS)),
    "b": DRAW.integers(0, SYMBOLS, (ROWS, BEFORE)),
    "n": np.array([[2], [5], [3]]),
    "g": DRAW.integers(0, SYMBOLS, (ROWS, 3)),
    "v": DRAW.normal(size=(ROWS, STEPS, UNITS)),
    "y": DRAW.integers(0, CLASSES, ROWS),
    "t": DRAW.integers(0, CLASSES, (ROWS, STEPS)),
    "s": DRAW.integers(0, CLASSES, (ROWS, BEFORE)),
}
INPUTS = {
    "w": {"shape": [1], "has_label": False},
    "x": {"shape": [1], "time_steps": STEPS, "has_label": False},
    "b": {"shape": [1], "time_steps": BEFORE, "has_label": False},
    "n": {"shape": [1], "has_label": False},
    "g": {"shape": [3], "has_label": False},
    "v": {"shape": [1], "target_shape": [STEPS, UNITS]},
    "y": {"shape": [1]},
    "t": {"shape": [1], "label_shape": [STEPS]},
    "s": {"shape": [1], "label_shape": [BEFORE]},
}


class Net(Module):
    """The layers of all cases; `of` is the forward pass of one of them."""

    def __init__(self, of):
        self.of = of
        self.symbols, self.others = (Embedding(vocab_size=SYMBOLS, feature_dim=UNITS) for _ in range(2))
        self.lstm, self.back, self.gru = LSTM(dim_hidden=UNITS), LSTM(dim_hidden=UNITS), GRU(dim_hidden=UNITS)
        self.encoder, self.turn = LSTM(dim_hidden=UNITS, return_cell=True), Reverse()
        self.attention, self.norm = Attention(num_heads=2), LayerNorm()
        self.causal, self.positions = Attention(num_heads=2, causal=True), PositionalEmbedding()
        self.wide, self.scores, self.loss = (
            InnerProduct(num_output=UNITS),
            InnerProduct(num_output=CLASSES),
            SoftmaxLoss(),
        )
        self.error, self.last, self.conv = MSELoss(), Select(index=-1), Convolution(num_filters=UNITS, pad=1)

    def forward(self, *data):
        return self.of(self, *data)


def tagger(net, x, t):
    return net.loss(net.scores(net.lstm(net.symbols(x))), t)


def masked(net, x, n, t):
    return net.loss(net.scores(net.lstm(net.symbols(x))), t, np.arange(STEPS) < n)


def without_a_label(net, x, t):
    net.loss = SoftmaxLoss(ignore_label=1)
    return tagger(net, x, t)


def gpt(net, x, t):
    h = net.positions(net.symbols(x))
    h = h + net.causal(net.norm(h))
    return net.loss(net.scores(h + autograd.gelu(net.wide(h))), t)


def without_steps(net, x, t):
    return net.loss(net.scores(autograd.relu(net.wide(net.symbols(x)))), t)


def of_own_operators(net, x, t):
    """A formula between layers over time, and one behind them."""
    h = net.gru(autograd.cat([net.lstm(net.symbols(x)), net.others(x) * 2], axis=2))
    return net.loss(net.scores(h * autograd.sigmoid(h)), t)


def both_ways(net, x, n, t):
    h = net.symbols(x)
    h = autograd.cat([net.lstm(h), net.turn(net.back(net.turn(h, n)), n)], axis=2)
    return net.loss(net.scores(net.gru(h)), t)


def mean_of_steps(net, x, y):
    return net.loss(net.scores(autograd.mean(bidirectional(net.symbols(x), net.lstm, net.back), axis=1)), y)


def index(net, x, y):
    return net.loss(net.scores(net.lstm(net.symbols(x))[:, 1]), y)


def select(net, x, n, y):
    return net.loss(net.scores(net.last(net.attention(net.symbols(x)), n)), y)


def mask_of_symbols(net, x, y):
    seen = autograd.not_equal(autograd.reshape(x, (-1, STEPS)), 3)
    return net.loss(net.scores(autograd.max(net.attention(net.symbols(x), seen), axis=1)), y)


def sum_with_all_steps(net, x, y):
    h = net.symbols(x)
    return net.loss(net.scores((h + net.attention(h))[:, 0]), y)


def last_with_all_steps(net, x, y):
    h = net.gru(net.symbols(x))
    weights = autograd.softmax(autograd.einsum("btf,bf->bt", h, h[:, -1, :]))
    return net.loss(net.scores(autograd.einsum("bt,btf->bf", weights, h)), y)


def encoder_decoder(net, x, b, s):
    return net.loss(net.scores(net.lstm(net.others(b), net.encoder(net.symbols(x))[:, -1])), s)


def bridge(net, x, b, s):
    state = autograd.tanh(net.wide(autograd.mean(net.gru(net.symbols(x)), axis=1)))
    return net.loss(net.scores(net.lstm(net.others(b), state)), s)


def luong(net, x, b, s):
    states = net.gru(net.symbols(x))
    own = net.lstm(net.others(b), states[:, -1])
    weights = autograd.softmax(own @ autograd.transpose(net.wide(states), (0, 2, 1)))
    return net.loss(net.scores(autograd.tanh(autograd.cat([weights @ states, own], axis=2))), s)


def context_of_each_step(net, x, b, s):
    """What attention reads is fed to the decoder (input feeding)."""
    states, before = net.gru(net.symbols(x)), net.others(b)
    weights = autograd.softmax(before @ autograd.transpose(states, (0, 2, 1)))
    return net.loss(net.scores(net.lstm(autograd.cat([before, weights @ states], axis=2))), s)


def memory(net, x, b, s):
    return net.loss(net.scores(net.attention(net.others(b), net.lstm(net.symbols(x)))), s)


def memory_of_a_formula(net, x, b, s):
    return net.loss(net.scores(net.attention(net.others(b), net.lstm(net.symbols(x)) * 2)), s)


def shifted(net, x, t):
    h = net.symbols(x)
    return net.loss(net.scores(net.lstm(autograd.pad(h[:, :-1], ((0, 0), (1, 0), (0, 0))))), t)


def reconstructed(net, x):
    h = net.symbols(x)
    return net.error(net.wide(net.gru(h)), h)


def targets_of_steps(net, x, v):
    return net.error(net.wide(net.gru(net.symbols(x))), v)


def weighted(x, t, w):
    return autograd.mean((x - t) ** 2 * autograd.reshape(w, (-1, STEPS, 1)), axis=(1, 2))


def own_loss_with_weights_of_steps(net, x, n, v):
    return Loss(weighted)(net.wide(net.gru(net.symbols(x))), v, np.arange(STEPS) < n)


def features_at_each_step(net, x, g, t):
    """The sum of a sequence and of symbols without an order."""
    h = net.symbols(x) + autograd.mean(net.others(g), axis=1, keepdims=True)
    return net.loss(net.scores(bidirectional(h, net.lstm, net.back)), t)


def neighbours(net, x, t):
    return net.loss(net.scores(net.lstm(autograd.relu(net.conv(net.symbols(x))))), t)


def penalised(h):
    return autograd.mean(h**2, axis=(1, 2))


def loss_of_states(net, x):
    return Loss(penalised)(net.gru(net.symbols(x)))


def with_lengths(net, x, n, t):
    return tagger(net, x, t)


def with_lengths_and_weights(net, x, n, t, w):
    return net.loss(net.scores(net.lstm(net.symbols(x))), t, w)


def attention_with_lengths(net, x, n, t):
    h = net.symbols(x)
    return net.loss(net.scores(h + net.attention(h)), t)


def attention_with_lengths_and_weights(net, x, n, t, w):
    h = net.symbols(x)
    return net.loss(net.scores(h + net.attention(h, n)), t, w)


MASKED = {attention_with_lengths: attention_with_lengths_and_weights}
CASES = [
    tagger,
    masked,
    without_a_label,
    gpt,
    without_steps,
    of_own_operators,
    both_ways,
    mean_of_steps,
    index,
    select,
    mask_of_symbols,
    sum_with_all_steps,
    last_with_all_steps,
    encoder_decoder,
    bridge,
    luong,
    context_of_each_step,
    memory,
    memory_of_a_formula,
    shifted,
    targets_of_steps,
    own_loss_with_weights_of_steps,
    features_at_each_step,
    neighbours,
    reconstructed,
    loss_of_states,
]


def made(case, **inputs):
    """A net, its Model, and the data that it reads. inputs: further settings of input layers."""
    net, names = Net(case), case.__code__.co_varnames[1 : case.__code__.co_argcount]
    layers = [RecordInput(name, **{**INPUTS[name], **inputs.get(name, {})}) for name in names]
    model = Model([*layers, net(*layers)], dtype=np.float64)
    return net, model, {name: DATA[name] for name in names}


def in_a_loop(net, data):
    """The loss of the net, with the parameters of its Model, and the gradients by name."""
    kept = [layer.kept for _, layer in net.named_layers().values() if layer.kept and layer.kept.parameters]
    autograd.training = True
    try:
        loss = net(*(Tensor.of(array, kept[0].device) for array in data.values()))
        return loss.item(), {param.name: gradient.to_numpy() for param, gradient in autograd.backward(loss)}
    finally:
        autograd.training = False


@pytest.mark.parametrize("case", CASES)
def test_a_net_computes_what_a_loop_computes(case):
    net, model, data = made(case)
    loss = model(data)
    model.net.backward()
    gradients = model.net.flat.named(model.net.flat.grads.copy())  # the loop writes its own to the same place
    own, found = in_a_loop(net, data)
    assert own == pytest.approx(float(loss), rel=1e-12)
    for name, gradient in found.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-9, atol=1e-12, err_msg=name)


def test_an_index_of_the_last_step_reads_no_others():
    _, model, _ = made(encoder_decoder)
    layers = model.net.layers.values()
    (last,) = (layer for layer in layers if layer.type == "kLastStep")
    assert last.proto.srclayers == ["encoder"]
    assert all(layer.proto.srclayers != ["encoder"] or layer is last for layer in layers)


@pytest.mark.parametrize("case", [tagger, gpt, luong, encoder_decoder])
def test_predictions_are_of_each_step_in_the_order_of_the_samples(case):
    net, model, data = made(case)
    *read, labels = data
    found = model.predict({name: data[name] for name in read}, batchsize=2)
    assert found.shape == (*data[labels].shape, CLASSES)
    np.testing.assert_allclose(found.sum(axis=2), 1, rtol=1e-12)
    mean = -np.log(np.take_along_axis(found, data[labels][..., None], axis=2)).mean()
    assert mean == pytest.approx(in_a_loop(net, data)[0], rel=1e-12)


@pytest.mark.parametrize("case", [with_lengths, with_lengths_and_weights, attention_with_lengths])
def test_steps_after_the_end_of_a_sequence_do_not_count(case):
    """The lengths are those of the data, or a weight for each step in a loop."""
    net, model, data = made(case, x={"lengths": "n"}, n={"column": "n"})
    loss = float(model(data))
    net.of = MASKED.get(case, with_lengths_and_weights)
    weights = (np.arange(STEPS) < DATA["n"]) * data.get("w", 1.0)
    own, _ = in_a_loop(net, {"x": data["x"], "n": data["n"], "t": data["t"], "w": weights})
    assert own == pytest.approx(loss, rel=1e-12)


def test_the_documented_nets_train():
    names = {"__name__": "of_the_documentation"}
    for code in re.findall(r"```python\n(import numpy.*?|.*?class GPT.*?)```", DOCS, re.DOTALL):
        exec(code, names)
    assert names["tags"].shape == (64, 12)
    model = Model([RecordInput("data", shape=[1], time_steps=STEPS, label_shape=[STEPS]), names["GPT"](SYMBOLS)])
    assert float(model(DATA["x"], DATA["t"])) == pytest.approx(np.log(SYMBOLS), rel=0.5)


REFUSED = {
    "labels of another length": (lambda net, x, s: tagger(net, x, s), r"scores \(5, 4\), labels \(4,\)"),
    "one label for a formula of all steps": (
        lambda net, x, y: net.loss(net.scores(net.lstm(net.symbols(x)) * 2), y),
        r"one label.*scores \(5, 4\)",
    ),
    "the last step, and all": (
        lambda net, x, y: net.loss(net.scores(net.attention(net.symbols(x)) + net.others(x)), y),
        "reads only the last time step of 'attention', and combines it with all steps of 'others'",
    ),
    "other steps than are read": (
        lambda net, x, t: net.loss(net.scores(net.lstm(net.symbols(x)[:, 1:])), t),
        r"reads 5 time steps.*Received: samples of shape \(4, 6\).*unroll_len=4",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_names_both_shapes(case):
    forward, words = REFUSED[case]
    with pytest.raises(ConfigError, match=words):
        made(forward)


def test_labels_of_another_shape_than_the_net_was_made_for_are_named():
    _, model, data = made(index)
    with pytest.raises(DataError, match=r"gives 3 rows, but 'y' gives 15 labels, \(3, 5\).*label_shape: \[5\]"):
        model(data | {"y": DATA["t"]})
    with pytest.raises(ConfigError, match=r"scores of shape \(3, 5, 4\), and labels \(3, 4\)"):
        Net(tagger)(DATA["x"], DATA["s"])


def test_a_formula_of_steps_that_fill_up_a_sequence_is_refused():
    with pytest.raises(ConfigError, match=r"the last may only fill a sequence up.*read the lengths"):
        made(lambda net, x, n, y: mean_of_steps(net, x, y), x={"lengths": "n"}, n={"column": "n"})
