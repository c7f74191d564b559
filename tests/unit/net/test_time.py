"""Nets over time: folded and unrolled give the same numbers, and both the right ones."""

from __future__ import annotations

import numpy as np
import pytest
from support.gradients import check_gradients
from support.wired import wired

from singa_dask.algorithms import BP, BPTT
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import (
    GRU,
    LSTM,
    RNN,
    BatchNorm,
    CharRNN,
    Concate,
    Dropout,
    Embedding,
    InnerProduct,
    OneHot,
    RecordInput,
    RNNLabel,
    Sigmoid,
    SoftmaxLoss,
)
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

STEPS, ROWS, SYMBOLS, UNITS = 4, 3, 5, 6
CELLS = {"rnn": RNN, "gru": GRU, "lstm": LSTM}
ALL = {"unroll_conn_type": ["kUnrollOneToAll"]}


def text(cell, *above, embed=False, **fields):
    """Characters in, the next characters out."""
    symbols = OneHot("in", "data", vocab_size=SYMBOLS)
    if embed:
        symbols = Embedding("in", "data", vocab_size=SYMBOLS, feature_dim=3)
    layers = [
        wired(CharRNN("data", path="text", unroll_len=STEPS, batchsize=ROWS), unroll_len=1),
        wired(symbols, **ALL),
        wired(RNNLabel("label", "data"), **ALL),
        wired(cell("cell", "in", dim_hidden=UNITS), **fields),
        *(layer.proto for layer in above),
        InnerProduct("out", above[-1] if above else "cell", num_output=SYMBOLS).proto,
        SoftmaxLoss("loss", ["out", "label"]).proto,
    ]
    return NetProto(layer=layers, unroll_len=STEPS)


NETS = {
    **{name: text(cell) for name, cell in CELLS.items()},
    "embedding": text(GRU, embed=True),
    "the loop written out": text(
        LSTM, srclayers=["in", "cell"], unroll_conn_type=["kUnrollOneToOne", "kUnrollOneToOne"], shift=[0, 1]
    ),
    "two layers and dropout": text(
        GRU, Dropout("drop", "cell", dropout_ratio=0.4), LSTM("second", "drop", dim_hidden=4), Sigmoid("s", "second")
    ),
}


def build(proto, fold=True):
    net = Net(proto, Phase.kTrain, get_ops("cpu", np.float64), fold=fold)
    net.carries = True
    net.initialise(3)
    for param in net.params:  # biases too
        param.value[...] += 0.2 * np.random.default_rng(param.size).normal(size=param.shape)
    return net


def batches(count, rows=ROWS, steps=STEPS):
    draw = np.random.default_rng(5)
    return [draw.integers(0, SYMBOLS, (rows, steps + 1)).astype(np.float32) for _ in range(count)]


def step_of(number, first_row=0, rows=ROWS):
    return Step(Phase.kTrain, number, seed=1, first_row=first_row, total_rows=rows)


def run(net, feeds, algorithm=None):
    """Loss and gradients of every mini-batch."""
    results = []
    for number, features in enumerate(feeds):
        metrics = (algorithm or BPTT()).train_one_batch(net, {"data": Batch(features)}, step_of(number))
        results.append((metrics["loss"].mean, metrics["accuracy"].mean, net.flat.grads.copy()))
    return results


@pytest.mark.parametrize("name", NETS)
def test_a_folded_net_computes_what_the_unrolled_one_computes(name):
    folded, unrolled = build(NETS[name]), build(NETS[name], fold=False)
    assert "cell" in folded.layers
    assert {f"{t}#cell" for t in range(STEPS)} < set(unrolled.layers)
    assert [entry.name for entry in folded.flat.entries] == [entry.name for entry in unrolled.flat.entries]
    feeds = batches(3)
    for ours, theirs in zip(run(folded, feeds), run(unrolled, feeds), strict=True):
        assert ours[:2] == pytest.approx(theirs[:2], rel=1e-12)
        np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("name", ["gru", "embedding"])
def test_short_sequences_fold_and_unroll_alike(name, steps):
    proto = _longer(NETS[name], steps)
    folded, unrolled = build(proto), build(proto, fold=False)
    assert ("data@in" in folded.layers) == (steps > 1), "one layer takes all records out of the sequence"
    feeds = batches(2, steps=steps)
    for ours, theirs in zip(run(folded, feeds), run(unrolled, feeds), strict=True):
        assert ours[0] == pytest.approx(theirs[0], rel=1e-12)
        np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_finite_differences(name, fold):
    net = build(NETS[name], fold)
    (before, features) = batches(2)
    state = _state_after(net, before)

    def loss():
        net.state = state
        net.forward({"data": Batch(features)}, step_of(1))
        return net.metrics()["loss"].total / ROWS

    loss()
    net.backward()
    assert net.flat.grads.any()
    check_gradients(net, loss, 7)


def _state_after(net, features):
    net.forward({"data": Batch(features)}, step_of(0))
    return {name: [array.copy() for array in arrays] for name, arrays in net.state.items()}


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_the_state_is_carried_as_if_two_mini_batches_were_one(cell, fold):
    whole = build(_longer(NETS[cell], 2 * STEPS), fold)
    halves = build(NETS[cell], fold)
    (features,) = batches(1, steps=2 * STEPS)
    first, second = features[:, : STEPS + 1], features[:, STEPS:]
    whole.forward({"data": Batch(features)}, step_of(0))
    halves.forward({"data": Batch(first)}, step_of(0))
    before = halves.metrics()["loss"]
    halves.forward({"data": Batch(second)}, step_of(1))
    assert (before + halves.metrics()["loss"]).total == pytest.approx(whole.metrics()["loss"].total, rel=1e-12)
    halves.forget()
    halves.forward({"data": Batch(second)}, step_of(1))
    assert (before + halves.metrics()["loss"]).total != pytest.approx(whole.metrics()["loss"].total, rel=1e-6)


def _longer(proto, steps):
    longer = NetProto()
    longer.CopyFrom(proto)
    longer.unroll_len = longer.layer[0].char_rnn_conf.unroll_len = steps
    return longer


def test_only_bptt_carries_the_state_on():
    feeds = batches(2)
    fresh = run(build(NETS["gru"]), feeds[1:])[0]
    assert run(build(NETS["gru"]), feeds, BP())[1][0] == pytest.approx(fresh[0], rel=1e-12)
    assert run(build(NETS["gru"]), feeds, BPTT())[1][0] != pytest.approx(fresh[0], rel=1e-6)


@pytest.mark.parametrize("name", ["lstm", "two layers and dropout"])
def test_shares_of_several_workers_add_up(name):
    feeds, whole = batches(2), build(NETS[name])
    expected = run(whole, feeds)[1][2]
    summed = np.zeros_like(expected)
    for first, last in ((0, 1), (1, ROWS)):
        part = build(NETS[name])
        for number, features in enumerate(feeds):
            share = Batch(features[first:last])
            BPTT().train_one_batch(part, {"data": share}, step_of(number, first))
        summed += part.flat.grads
    np.testing.assert_allclose(summed, expected, rtol=1e-10, atol=1e-14)


def test_a_checkpointed_state_goes_on():
    feeds = batches(3)
    expected = run(build(NETS["lstm"]), feeds)[2][0]
    first, second = build(NETS["lstm"]), build(NETS["lstm"])
    run(first, feeds[:2])
    second.state = first.state
    run(first, feeds[:1])  # must not reach into the other net's state
    assert run(second, feeds[2:])[0][0] == pytest.approx(expected, rel=1e-12)


def encoder_decoder():
    """Reads a sequence, classifies it; a second net starts from what the first one has read."""
    base = text(GRU)
    layers = [layer for layer in base.layer if layer.name not in ("out", "loss")]
    last = {"unroll_len": 1, "unroll_conn_type": ["kUnrollFirstToLast"]}
    layers += [
        wired(InnerProduct("class", "cell", num_output=2), **last),
        wired(
            GRU("decoder", ["in", "cell"], dim_hidden=UNITS),
            unroll_conn_type=["kUnrollOneToOne", "kUnrollFirstToLast"],
        ),
        InnerProduct("out", "decoder", num_output=SYMBOLS).proto,
        SoftmaxLoss("loss", ["out", "label"]).proto,
    ]
    return NetProto(layer=layers, unroll_len=STEPS)


def test_first_to_last_folds_and_unrolls_alike():
    folded, unrolled = build(encoder_decoder()), build(encoder_decoder(), fold=False)
    assert {"cell", "cell@decoder"} < set(folded.layers)
    feeds = batches(2)
    for ours, theirs in zip(run(folded, feeds, BP()), run(unrolled, feeds, BP()), strict=True):
        assert ours[0] == pytest.approx(theirs[0], rel=1e-12)
        np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(folded.output("class"), unrolled.output("class"))
    np.testing.assert_allclose(folded.output("cell")[-ROWS:], unrolled.output(f"{STEPS - 1}#cell"))


def backwards(kind):
    """A recurrent layer that reads the sequence from its end, beside one that reads it from its beginning."""
    proto = text(CELLS[kind])
    layers = [layer for layer in proto.layer if layer.name not in ("out", "loss")]
    reversed_in = wired(OneHot("reversed", "data", vocab_size=SYMBOLS), unroll_conn_type=["kUnrollCustomized"])
    reversed_in.unroll_source[:] = range(STEPS - 1, -1, -1)
    back = wired(InnerProduct("back", "from_end", num_output=3), unroll_conn_type=["kUnrollCustomized"])
    back.unroll_source[:] = range(STEPS - 1, -1, -1)
    layers += [
        reversed_in,
        CELLS[kind]("from_end", "reversed", dim_hidden=UNITS).proto,
        back,
        Concate("both", ["cell", "back"], concate_dim=1).proto,
        InnerProduct("out", "both", num_output=SYMBOLS).proto,
        SoftmaxLoss("loss", ["out", "label"]).proto,
    ]
    return NetProto(layer=layers, unroll_len=STEPS)


@pytest.mark.parametrize("kind", CELLS)
def test_customized_connections_read_what_they_say(kind):
    """The reading from the end is that of the reversed text from its beginning."""
    net, plain = build(backwards(kind)), build(NETS[kind])
    for param in plain.params:
        name = param.name.replace("cell", "from_end")
        if name in net.named_params and name != param.name:
            param.value[...] = net.named_params[name].value
    (features,) = batches(1)
    run(net, [features], BP())
    turned = np.concatenate([features[:, STEPS - 1 :: -1], features[:, STEPS:]], axis=1)
    plain.carries = False
    plain.forward({"data": Batch(turned)}, step_of(0))
    expected = plain.output("cell").reshape(STEPS, ROWS, UNITS)
    for t in range(STEPS):
        np.testing.assert_allclose(net.output(f"{t}#from_end"), expected[t], rtol=1e-12)
        weight, bias = (net.named_params[f"back_{role}"].value for role in ("weight", "bias"))
        np.testing.assert_allclose(net.output(f"{t}#back"), expected[STEPS - 1 - t] @ weight + bias, rtol=1e-12)


def renamed(layers, name):
    """The label layer has another name."""
    layers[2].name = layers[-1].srclayers[1] = name


def classifier(fold_labels):
    """Many to one, by the label of the last record."""
    layers = [
        RecordInput("data", shape=1, batchsize=ROWS, sequence=STEPS),
        Embedding("in", "data", vocab_size=SYMBOLS, feature_dim=3),
        LSTM("cell", "in", dim_hidden=UNITS),
        InnerProduct("out", "cell", num_output=SYMBOLS, unroll_len=1, unroll_conn_type=["kUnrollFirstToLast"]),
        SoftmaxLoss("loss", ["out", "data"], unroll_len=1, unroll_conn_type=["kUnrollOneToOne", "kUnrollFirstToLast"]),
    ]
    proto = NetProto(layer=[layer.proto for layer in layers], unroll_len=STEPS)
    if not fold_labels:
        proto.layer[-1].ClearField("unroll_conn_type")
    return proto


def test_a_sequence_is_classified_by_the_label_of_its_last_record():
    draw = np.random.default_rng(0)
    batch = Batch(draw.integers(0, SYMBOLS, (ROWS, STEPS)).astype(float), draw.integers(0, SYMBOLS, (ROWS, STEPS)))
    results = []
    for fold in (True, False):
        net = build(classifier(True), fold)
        net.forward({"data": batch}, step_of(0))
        net.backward()
        probabilities = net.output("loss")[np.arange(ROWS), batch.labels[:, -1]]
        assert net.metrics()["loss"].total == pytest.approx(-np.log(probabilities).sum(), rel=1e-9)
        results.append(net.flat.grads.copy())
    np.testing.assert_allclose(*results, rtol=1e-9, atol=1e-13)
    with pytest.raises(ConfigError, match=r"a row has one label per record.*kUnrollFirstToLast"):
        build(classifier(False))


def test_running_statistics_move_by_their_factor_however_many_steps_there_are():
    proto = text(RNN)
    proto.layer[-2].srclayers[:] = ["norm"]
    proto.layer.append(BatchNorm("norm", "cell", factor=0.75).proto)
    net = build(proto)
    assert {f"{t}#norm" for t in range(STEPS)} < set(net.layers)
    before = {name: net.named_params[f"norm_{name}"].value.copy() for name in ("mean", "var")}
    run(net, batches(1), BP())
    cells = np.stack([net.output(f"{t}#cell") for t in range(STEPS)])
    means = {"mean": cells.mean(axis=(0, 1)), "var": cells.var(axis=1, ddof=1).mean(axis=0)}
    for name, batch in means.items():
        param = net.named_params[f"norm_{name}"]
        np.testing.assert_allclose(param.value - param.grad, 0.75 * before[name] + 0.25 * batch, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: setattr(p.layer[1], "unroll_len", 2), ["has 2 time steps", "Received: in", "the same unroll_len"]),
        (lambda p: p.layer[3].shift.extend([0, 1]), ["shift", "one entry per source"]),
        (lambda p: p.layer[3].unroll_source.append(1), ["unroll_source", "needs 0"]),
        (lambda p: setattr(p.layer[0].char_rnn_conf, "unroll_len", 2), ["sequences of 2", "'in' has 4 time steps"]),
        (lambda p: setattr(p, "unroll_len", 1), ["sequences of 4", "neuralnet { unroll_len: 4 }"]),
        (lambda p: setattr(p.layer[0], "unroll_len", 4), ["cannot be unrolled", "Leave it out"]),
        (lambda p: p.layer[-1].srclayers.__setitem__(1, "data"), ["a text has no labels", "kRNNLabel"]),
        (lambda p: p.layer[3].srclayers.append("in"), ["cannot be its state at every step", "shift: 1"]),
        (lambda p: renamed(p.layer, "data@in"), ["reserved for the time steps", "data@in"]),
        (lambda p: renamed(p.layer, "1#in"), ["reserved for the time steps", "1#in"]),
    ],
)
def test_unrolling_that_cannot_be_is_refused(change, words):
    proto = NetProto()
    proto.CopyFrom(NETS["rnn"])
    change(proto)
    with pytest.raises(ConfigError) as caught:
        build(proto)
    for word in words:
        assert word in str(caught.value)


def test_a_sequence_is_read_step_by_step_without_being_told_so():
    proto = NetProto()
    proto.CopyFrom(NETS["gru"])
    proto.layer[0].ClearField("unroll_len")
    for layer in proto.layer:
        layer.ClearField("unroll_conn_type")
    feeds = batches(2)
    assert run(build(proto), feeds)[1][0] == run(build(NETS["gru"]), feeds)[1][0]


def test_layer_groups_are_layers_of_the_net():
    grouped = NetProto(unroll_len=STEPS, layer=NETS["gru"].layer[:3])
    grouped.layer_group.add(layer=NETS["gru"].layer[3:])
    assert list(build(grouped).layers) == list(build(NETS["gru"]).layers)
