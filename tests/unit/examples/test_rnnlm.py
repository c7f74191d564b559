"""The layers of examples/rnnlm: right formulas and right gradients."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from support.gradients import check_gradients
from support.programs import program
from support.sources import read_all

from singa_dask.algorithms import BPTT
from singa_dask.data.converters import text
from singa_dask.errors import ConfigError
from singa_dask.job import load_job
from singa_dask.job.job_pb2 import LayerProto, NetProto, Phase
from singa_dask.layers import CharRNN, Embedding, RNNLabel
from singa_dask.layers.context import Context, Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops

FOLDER = Path(__file__).parents[3] / "examples" / "rnnlm"
own = program("layers", "examples/rnnlm")
STEPS, ROWS, UNITS, WORDS = 4, 5, 6, 23
STARTS = [0, 1, 4, 9, 22]  # the first and the last class have one word


def loss_layer(own, units=UNITS, words=WORDS, starts=STARTS, dtype=np.float64):
    """The loss alone, its parameters drawn at random, and a context for it."""
    conf = json.dumps({"words": words, "starts": starts})
    proto = LayerProto(name="loss", user_type="layers:ClassFactoredLoss", srclayers=["h", "y"], user_conf=conf)
    layer, draw = own.ClassFactoredLoss.from_proto(proto), np.random.default_rng(1)
    layer.setup((units,), (1,))
    for param in layer.params:
        param.bind(draw.normal(size=param.shape).astype(dtype), np.full(param.shape, np.nan, dtype))
    return layer, Context(get_ops("cpu", dtype))


def by_the_formula(layer, h, word):
    """P(w | h) of one row, written out."""
    classes, words = (param.value for param in layer.params)
    c = max(i for i, start in enumerate(STARTS) if start <= word)
    members = range(STARTS[c], [*STARTS, WORDS][c + 1])
    of_class = np.exp(classes @ h)[c] / np.exp(classes @ h).sum()
    return of_class * np.exp(words[word] @ h) / sum(np.exp(words[m] @ h) for m in members)


def test_probabilities_are_those_of_the_formula_and_sum_to_one(own):
    layer, ctx = loss_layer(own)
    h = np.random.default_rng(2).normal(size=UNITS)
    found = layer.forward(ctx, np.tile(h, (WORDS, 1)), np.arange(WORDS))[:, 0]
    np.testing.assert_allclose(found, [by_the_formula(layer, h, word) for word in range(WORDS)], rtol=1e-12)
    assert found.sum() == pytest.approx(1, rel=1e-12)
    metric = layer.metrics(ctx)["loss"]
    assert (metric.total, metric.count) == (pytest.approx(-np.log(found).sum(), rel=1e-12), WORDS)


def test_large_scores_do_not_overflow(own):
    layer, ctx = loss_layer(own)
    found = layer.forward(ctx, np.full((WORDS, UNITS), 1e4), np.arange(WORDS))
    assert np.isfinite(found).all() and np.isfinite(layer.metrics(ctx)["loss"].total)


def test_only_the_words_of_the_rows_own_classes_are_touched(own):
    layer, ctx = loss_layer(own)
    ctx.step = Step(total_rows=2)
    layer.forward(ctx, np.random.default_rng(2).normal(size=(2, UNITS)), np.array([5, 8]))
    layer.backward(ctx, None)
    touched = np.flatnonzero(np.abs(layer.word_weight.grad).sum(axis=1))
    assert touched.tolist() == [4, 5, 6, 7, 8]


def test_classes_that_are_no_ranges_are_refused(own):
    for starts in ([1, 4], [0, 4, 4], [0, 9, 4], [0, WORDS]):
        with pytest.raises(ConfigError, match=r"user_conf\.starts must begin with 0"):
            loss_layer(own, starts=starts)


def language_model(own, fold):
    hidden = LayerProto(
        name="hidden",
        user_type="layers:Hidden",
        srclayers=["embedding", "hidden"],
        unroll_conn_type=["kUnrollOneToOne", "kUnrollOneToOne"],
        shift=[0, 1],
    )
    conf = json.dumps({"words": WORDS, "starts": STARTS})
    loss = LayerProto(name="loss", user_type="layers:ClassFactoredLoss", srclayers=["hidden", "label"], user_conf=conf)
    layers = [
        CharRNN("data", path="text", unroll_len=STEPS, batchsize=ROWS).proto,
        Embedding("embedding", "data", vocab_size=WORDS, feature_dim=UNITS).proto,
        RNNLabel("label", "data").proto,
        hidden,
        loss,
    ]
    net = Net(NetProto(layer=layers, unroll_len=STEPS), Phase.kTrain, get_ops("cpu", np.float64), fold=fold)
    net.initialise(3)
    return net


def mini_batches(count):
    draw = np.random.default_rng(5)
    return [Batch(draw.integers(0, WORDS, (ROWS, STEPS + 1)).astype(np.float32)) for _ in range(count)]


@pytest.mark.parametrize("fold", [True, False])
def test_gradients_of_the_net_are_those_of_finite_differences(own, fold):
    net, (before, batch) = language_model(own, fold), mini_batches(2)
    assert ("hidden" in net.layers) == fold
    net.forward({"data": before}, Step(Phase.kTrain, 0, total_rows=ROWS))
    state = {name: [array.copy() for array in arrays] for name, arrays in net.state.items()}
    assert state["hidden"][0].shape == (ROWS, UNITS)

    def loss():
        net.state = state
        net.forward({"data": batch}, Step(Phase.kTrain, 1, total_rows=ROWS))
        return net.metrics()["loss"].total / ROWS

    loss()
    net.backward()
    for entry in net.flat.entries:
        assert net.flat.grads[entry.start : entry.stop].any()
    check_gradients(net, loss, 25)


def test_folded_and_unrolled_train_alike(own):
    nets = language_model(own, True), language_model(own, False)
    for number, batch in enumerate(mini_batches(3)):
        step = Step(Phase.kTrain, number, total_rows=ROWS)
        folded, unrolled = (BPTT().train_one_batch(net, {"data": batch}, step)["loss"].mean for net in nets)
        assert folded == pytest.approx(unrolled, rel=1e-12)
        np.testing.assert_allclose(nets[0].flat.grads, nets[1].flat.grads, rtol=1e-9, atol=1e-13)


def test_classes_have_about_equal_sums_of_square_roots(own):
    counts = 1e5 / np.arange(1, 3721)
    starts = own.class_starts(counts, 100)
    masses = np.add.reduceat(np.sqrt(counts), starts)
    assert len(masses) == 100 and np.abs(masses / masses.mean() - 1).max() < 0.6
    assert np.diff(starts)[0] == 1 and np.diff(starts)[-1] > 50


@pytest.mark.parametrize("counts", [[0, 9, 1], [1000, 1, 1, 1, 1], [1, 1, 1, 1, 1000], [0, 0, 0], [5]])
def test_every_class_has_a_word_however_the_counts_are(own, counts):
    for classes in range(1, len(counts) + 1):
        starts = own.class_starts(np.array(counts), classes)
        assert starts[0] == 0 and len(starts) == classes
        assert np.diff(starts, append=len(counts)).min() >= 1
    with pytest.raises(ValueError, match="classes"):
        own.class_starts(np.array(counts), len(counts) + 1)


def test_the_job_has_classes_for_its_words(own):
    job = load_job((FOLDER / "job.conf").read_text())
    loss = own.ClassFactoredLoss.from_proto(job.neuralnet.layer[-1])
    loss.setup((15,), (1,))
    assert [param.shape for param in loss.params] == [(100, 15), (3720, 15)]


def test_the_classes_of_the_job_are_those_of_tinyshakespeare(own):
    raw = Path(os.environ.get("SINGA_DASK_DATA", "")) / "tinyshakespeare" / "input.txt"
    if not raw.is_file():
        pytest.skip("tinyshakespeare is not in the folder named by SINGA_DASK_DATA")
    words = read_all(text.load(raw, unit="word", vocab_size=3720, validation=0.1)["train"])["x"]
    counts = np.bincount(words[:, 0].astype(int), minlength=3720)
    loss = load_job((FOLDER / "job.conf").read_text()).neuralnet.layer[-1]
    assert json.loads(loss.user_conf)["starts"] == own.class_starts(counts, 100)
