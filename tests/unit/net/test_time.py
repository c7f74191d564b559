"""Nets over time: folded and unrolled give the same numbers, and both the right ones."""

from copy import deepcopy

import numpy as np
import pytest
from support.gradients import check_gradients, loss_of
from support.nets_over_time import CELLS, FIRST_TO_LAST, NETS, ROWS, STEPS, SYMBOLS, UNITS, cell, text, texts
from support.wired import wired

from singa_dask.algorithms import BP, BPTT
from singa_dask.errors import ConfigError
from singa_dask.job.assemble import assemble
from singa_dask.job.job_pb2 import NetProto, Phase, UnrollConnType
from singa_dask.layers import (
    GRU,
    LSTM,
    RNN,
    BatchNorm,
    Concate,
    Embedding,
    InnerProduct,
    OneHot,
    RecordInput,
    SoftmaxLoss,
    bidirectional,
)
from singa_dask.layers.context import Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops


def build(proto, fold=True):
    net = Net(proto, Phase.kTrain, get_ops("cpu", np.float64), fold=fold)
    net.carries = True
    net.initialise(3)
    for param in net.params:  # biases too
        param.value[...] += 0.2 * np.random.default_rng(param.size).normal(size=param.shape)
    return net


def longer(proto, steps):
    proto = deepcopy(proto)
    proto.unroll_len = proto.layer[0].char_rnn_conf.unroll_len = steps
    return proto


def step_of(number):
    return Step(Phase.kTrain, number, seed=1, total_rows=ROWS)


def run(net, feeds, algorithm=BPTT):
    """Loss and gradients of every mini-batch."""
    results = []
    for number, features in enumerate(feeds):
        metrics = algorithm().train_one_batch(net, {"data": Batch(features)}, step_of(number))
        results.append((metrics["loss"].mean, net.flat.grads.copy()))
    return results


@pytest.mark.parametrize(
    ("name", "steps"), [*((name, STEPS) for name in NETS), ("gru", 1), ("gru", 2), ("embedding", 1), ("embedding", 2)]
)
def test_a_folded_net_computes_what_the_unrolled_one_computes(name, steps):
    proto = longer(NETS[name], steps)
    folded, unrolled = build(proto), build(proto, fold=False)
    assert ("data@in" in folded.layers) == (steps > 1), "one layer takes all records out of the sequence"
    assert ("0#cell" in unrolled.layers) == (steps > 1)
    assert [entry.name for entry in folded.flat.entries] == [entry.name for entry in unrolled.flat.entries]
    feeds = texts(3, steps=steps)
    for ours, theirs in zip(run(folded, feeds), run(unrolled, feeds), strict=True):
        assert ours[0] == pytest.approx(theirs[0], rel=1e-12)
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_finite_differences(name):
    """Of a mini-batch that resumes from the state of another one."""
    net = build(NETS[name])
    before, features = texts(2)
    net.forward({"data": Batch(before)}, step_of(0))
    state = {name: [array.copy() for array in arrays] for name, arrays in net.state.items()}

    def loss():
        net.state = state
        return loss_of(net, {"data": Batch(features)}, step_of(1))

    check_gradients(net, loss, 7)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("name", CELLS)
def test_the_state_is_carried_as_if_two_mini_batches_were_one(name, fold):
    whole, halves = build(longer(NETS[name], 2 * STEPS), fold), build(NETS[name], fold)
    (features,) = texts(1, steps=2 * STEPS)
    first, second = ({"data": Batch(half)} for half in (features[:, : STEPS + 1], features[:, STEPS:]))
    together = loss_of(whole, {"data": Batch(features)}, step_of(0))
    before = loss_of(halves, first, step_of(0))
    assert before + loss_of(halves, second, step_of(1)) == pytest.approx(together, rel=1e-12)
    halves.forget()
    assert before + loss_of(halves, second, step_of(1)) != pytest.approx(together, rel=1e-6)


def test_only_bptt_carries_the_state_on():
    feeds = texts(2)
    fresh = run(build(NETS["gru"]), feeds[1:])[0]
    assert run(build(NETS["gru"]), feeds, BP)[1][0] == pytest.approx(fresh[0], rel=1e-12)
    assert run(build(NETS["gru"]), feeds, BPTT)[1][0] != pytest.approx(fresh[0], rel=1e-6)


def test_a_checkpointed_state_goes_on():
    feeds = texts(3)
    expected = run(build(NETS["lstm"]), feeds)[2][0]
    first, second = build(NETS["lstm"]), build(NETS["lstm"])
    run(first, feeds[:2])
    second.state = first.state
    run(first, feeds[:1])  # must not reach into the other net's state
    assert run(second, feeds[2:])[0][0] == pytest.approx(expected, rel=1e-12)


def backwards(name):
    """A recurrent layer that reads the sequence from its end, beside one that reads it from its beginning."""
    from_end = {"unroll_conn_type": ["kUnrollCustomized"], "unroll_source": range(STEPS - 1, -1, -1)}
    return text(
        cell(CELLS[name]),
        wired(OneHot("reversed", "data", vocab_size=SYMBOLS), **from_end),
        CELLS[name]("from_end", "reversed", dim_hidden=UNITS),
        wired(InnerProduct("back", "from_end", num_output=3), **from_end),
        Concate("both", ["cell", "back"], concate_dim=1),
    )


@pytest.mark.parametrize("name", CELLS)
def test_customized_connections_read_what_they_say(name):
    """The reading from the end is that of the reversed text from its beginning."""
    net, plain = build(backwards(name)), build(NETS[name])
    for param in plain.params:
        if param.name.startswith("cell"):
            param.value[...] = net.named_params[param.name.replace("cell", "from_end")].value
    (features,) = texts(1)
    turned = np.concatenate([features[:, STEPS - 1 :: -1], features[:, STEPS:]], axis=1)
    for each, read in ((net, features), (plain, turned)):
        each.forward({"data": Batch(read)}, step_of(0))
    expected = plain.output("cell").reshape(STEPS, ROWS, UNITS)
    weight, bias = (net.named_params[f"back_{role}"].value for role in ("weight", "bias"))
    for t in range(STEPS):
        np.testing.assert_allclose(net.output(f"{t}#from_end"), expected[t], rtol=1e-12)
        np.testing.assert_allclose(net.output(f"{t}#back"), expected[STEPS - 1 - t] @ weight + bias, rtol=1e-12)


def test_a_bidirectional_layer_reads_the_sequence_both_ways():
    """Of the reversed sequence, its two halves have changed places."""
    data = RecordInput("data", shape=[2], sequence=STEPS)
    both = bidirectional(
        data, GRU("onwards", dim_hidden=UNITS), GRU("back", dim_hidden=UNITS, share_params="onwards"), "both"
    )
    net = build(NetProto(layer=assemble([both]), unroll_len=STEPS))
    x, outputs = np.random.default_rng(0).normal(size=(ROWS, STEPS, 2)), []
    for read in (x, x[:, ::-1]):
        net.forget()
        net.forward({"data": Batch(read)}, step_of(0))
        outputs.append(net.output("both").reshape(STEPS, ROWS, 2, UNITS).copy())
    np.testing.assert_allclose(outputs[0], outputs[1][::-1, :, ::-1], rtol=1e-12)


def classifier(**labels):
    """Many to one, by the label of the last record."""
    layers = [
        RecordInput("data", shape=1, batchsize=ROWS, sequence=STEPS),
        Embedding("in", "data", vocab_size=SYMBOLS, feature_dim=3),
        LSTM("cell", "in", dim_hidden=UNITS),
        InnerProduct("out", "cell", num_output=SYMBOLS, unroll_len=1, unroll_conn_type=["kUnrollFirstToLast"]),
        SoftmaxLoss("loss", ["out", "data"], unroll_len=1, **labels),
    ]
    return NetProto(layer=[layer.proto for layer in layers], unroll_len=STEPS)


def test_a_sequence_is_classified_by_the_label_of_its_last_record():
    draw = np.random.default_rng(0)
    batch = Batch(draw.integers(0, SYMBOLS, (ROWS, STEPS)).astype(float), draw.integers(0, SYMBOLS, (ROWS, STEPS)))
    results = []
    for fold in (True, False):
        net = build(classifier(unroll_conn_type=FIRST_TO_LAST), fold)
        loss = loss_of(net, {"data": batch}, step_of(0))
        net.backward()
        probabilities = net.output("loss")[np.arange(ROWS), batch.labels[:, -1]]
        assert loss == pytest.approx(-np.log(probabilities).mean(), rel=1e-9)
        results.append(net.flat.grads.copy())
    np.testing.assert_allclose(*results, rtol=1e-9, atol=1e-13)
    with pytest.raises(ConfigError, match=r"a row has one label per record.*kUnrollFirstToLast"):
        build(classifier())


def test_running_statistics_move_by_their_factor_however_many_steps_there_are():
    net = build(text(cell(RNN), BatchNorm("norm", "cell", factor=0.75)))
    before = {name: net.named_params[f"norm_{name}"].value.copy() for name in ("mean", "var")}
    run(net, texts(1), BP)
    cells = np.stack([net.output(f"{t}#cell") for t in range(STEPS)])
    means = {"mean": cells.mean(axis=(0, 1)), "var": cells.var(axis=1, ddof=1).mean(axis=0)}
    for name, batch in means.items():
        param = net.named_params[f"norm_{name}"]
        np.testing.assert_allclose(param.value - param.grad, 0.75 * before[name] + 0.25 * batch, rtol=1e-6)


def step_by_step(layer, source):
    layer.srclayers.append(source)
    layer.unroll_conn_type.extend([UnrollConnType.kUnrollOneToOne] * 2)


def renamed(layers, name):
    """The label layer has another name."""
    layers[2].name = layers[-1].srclayers[1] = name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: setattr(p.layer[1], "unroll_len", 2), ["has 2 time steps", "Received: in", "the same unroll_len"]),
        (lambda p: p.layer[3].shift.extend([0, 1]), ["shift", "one entry per source"]),
        (lambda p: p.layer[3].unroll_source.append(1), ["unroll_source", "needs 0"]),
        (lambda p: setattr(p.layer[0].char_rnn_conf, "unroll_len", 2), ["sequences of 2", "'in' has 3 time steps"]),
        (lambda p: setattr(p, "unroll_len", 1), ["sequences of 3", "neuralnet { unroll_len: 3 }"]),
        (lambda p: setattr(p.layer[0], "unroll_len", 3), ["cannot be unrolled", "Leave it out"]),
        (lambda p: p.layer[-1].srclayers.__setitem__(1, "data"), ["a text has no labels", "kRNNLabel"]),
        (lambda p: step_by_step(p.layer[3], "in"), ["cannot be its state at every step", "shift: 1"]),
        (lambda p: renamed(p.layer, "data@in"), ["reserved for the time steps", "data@in"]),
        (lambda p: renamed(p.layer, "1#in"), ["reserved for the time steps", "1#in"]),
    ],
)
def test_unrolling_that_cannot_be_is_refused(change, words):
    proto = deepcopy(NETS["rnn"])
    change(proto)
    with pytest.raises(ConfigError) as caught:
        build(proto)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("kind", [RNN, GRU, LSTM])
def test_recurrent_layers_need_time_steps(kind):
    layers = [RecordInput("data", shape=[48, 8]), kind("cell", dim_hidden=4), InnerProduct("out", num_output=2)]
    proto = NetProto(layer=assemble(layers))
    with pytest.raises(ConfigError, match=r"'cell'.*each sample as one step. Received: unroll_len: 1. .*sequence: T"):
        build(proto)
    proto.layer[0].store_conf.sequence = 1  # its state continues from step to step
    build(proto)


def test_a_sequence_is_read_step_by_step_without_being_told_so():
    proto = deepcopy(NETS["gru"])
    proto.layer[0].ClearField("unroll_len")
    for layer in proto.layer:
        layer.ClearField("unroll_conn_type")
    feeds = texts(2)
    assert run(build(proto), feeds)[1][0] == run(build(NETS["gru"]), feeds)[1][0]
