"""Metrics by name: those of scikit-learn, and the same on any number of workers."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn import exceptions as sk_exceptions
from sklearn import metrics as sk
from support.partitioned import Member

from singa_dask.algorithms import BP
from singa_dask.algorithms.evaluation import Evaluator
from singa_dask.algorithms.measured import _numbers, loss_metrics
from singa_dask.algorithms.metrics import AUC, MAX_CLASSES, METRICS, ComparedRows, kind_of, make_metric
from singa_dask.algorithms.parity_sample import ParitySample
from singa_dask.comm.threads import run_threads
from singa_dask.errors import ConfigError
from singa_dask.job.job_pb2 import NetProto, Phase
from singa_dask.layers import EuclideanLoss, InnerProduct, RecordInput, ReLU, SoftmaxLoss
from singa_dask.layers.context import Step
from singa_dask.layers.partition import even_bounds
from singa_dask.net import Batch, Net
from singa_dask.ops import Ops

ROWS = 400


def classified(classes, seed=0):
    """Probabilities, labels that they suit more or less, and weights, some of them 0."""
    draw = np.random.default_rng(seed)
    logits, labels = draw.standard_normal((ROWS, classes)) * 2, draw.integers(0, classes, ROWS)
    logits[np.arange(ROWS), labels] += 1.5
    weights = draw.random(ROWS) * draw.integers(0, 4, ROWS)
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), labels, weights


def values(targets, seed=0):
    draw = np.random.default_rng(seed)
    target = draw.standard_normal((ROWS, targets)) * [1, 50, 0.1][:targets] + [0, 300, 7][:targets]
    return target + 0.3 * draw.standard_normal(target.shape), target, draw.random(ROWS)


def measured(name, prediction, target, weight, parts=3):
    """The metric from the sum of the states of several workers."""
    metrics = []
    for part in range(parts):
        metric = make_metric(name, prediction.shape[1])
        for some in np.array_split(np.arange(len(target))[part::parts], 4):
            metric.update(ComparedRows(prediction[some], target[some], weight[some], some))
        metrics.append(metric)
    counts = [len(target[part::parts]) for part in range(parts)]
    for rank, metric in enumerate(metrics):
        metric.share(rank, lambda own: counts)
    metric.state = np.sum([metric.state for metric in metrics], axis=0)
    return metric.result()


BY_SKLEARN = {
    "accuracy": lambda y, p, w: sk.accuracy_score(y, p.argmax(axis=1), sample_weight=w),
    "top2": lambda y, p, w: sk.top_k_accuracy_score(y, p, k=2, sample_weight=w, labels=range(p.shape[1])),
    "precision": lambda y, p, w: sk.precision_score(y, p.argmax(1), average="macro", sample_weight=w, zero_division=0),
    "recall": lambda y, p, w: sk.recall_score(y, p.argmax(axis=1), average="macro", sample_weight=w, zero_division=0),
    "f1": lambda y, p, w: sk.f1_score(y, p.argmax(axis=1), average="macro", sample_weight=w, zero_division=0),
    "dice": lambda y, p, w: sk.f1_score(y, p.argmax(axis=1), average="macro", sample_weight=w, zero_division=0),
    "iou": lambda y, p, w: sk.jaccard_score(y, p.argmax(axis=1), average="macro", sample_weight=w, zero_division=0),
    "confusion": lambda y, p, w: sk.confusion_matrix(y, p.argmax(axis=1), sample_weight=w),
    "mae": lambda y, p, w: sk.mean_absolute_error(y, p, sample_weight=w),
    "mse": lambda y, p, w: sk.mean_squared_error(y, p, sample_weight=w),
    "rmse": lambda y, p, w: sk.root_mean_squared_error(y, p, sample_weight=w),
    "r2": lambda y, p, w: sk.r2_score(y, p, sample_weight=w),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", BY_SKLEARN)
def test_is_that_of_scikit_learn(name, size, weighted):
    numbers = name in METRICS["values"]
    prediction, target, weight = values(size) if numbers else classified(size + 2)
    weight = weight if weighted else np.ones(ROWS)
    given = np.repeat(weight[:, None], size, axis=1) if numbers else weight
    expected = BY_SKLEARN[name](target, prediction, weight)
    np.testing.assert_allclose(measured(name, prediction, target, given), expected, rtol=1e-11)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(("exact", "off"), [(AUC.EXACT, 1e-12), (0, 2e-4)])
def test_auc_is_that_of_scikit_learn(monkeypatch, classes, weighted, exact, off):
    monkeypatch.setattr(AUC, "EXACT", exact)
    p, labels, weight = classified(classes)
    weight = weight if weighted else np.ones(ROWS)
    if classes == 2:
        expected = sk.roc_auc_score(labels, p[:, 1], sample_weight=weight)
    else:
        each = [sk.roc_auc_score(labels == c, p[:, c], sample_weight=weight) for c in range(classes)]
        expected = np.mean(each)  # scikit-learn's "ovr" takes no weights
        assert weighted or expected == pytest.approx(sk.roc_auc_score(labels, p, multi_class="ovr"))
    assert 0.6 < expected < 0.95
    assert measured("auc", p, labels, weight) == pytest.approx(expected, abs=off)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("centre", "spread", "positives"),
    [(-8, 1e-3, 4), (0, 1e-4, 500), (0, 60, 10000), (9, 0.01, 40), (0, 1.5, 6000)],
    ids=["rare", "narrow", "overconfident", "sure", "ordinary"],
)
def test_auc_tells_scores_apart_however_close(centre, spread, positives, weighted):
    draw, rows = np.random.default_rng(4), 20_000
    labels = np.zeros(rows, int)
    labels[draw.choice(rows, positives, replace=False)] = 1
    logit = (centre + spread * (draw.standard_normal(rows) + labels)).astype(np.float32)
    score = (1 / (1 + np.exp(-logit.clip(-80)))).astype(np.float32)
    weight = draw.random(rows) if weighted else np.ones(rows)
    p = np.stack([1 - score, score], axis=1).astype(np.float64)
    expected = sk.roc_auc_score(labels, score, sample_weight=weight)
    assert 0.55 < expected < 0.95
    assert measured("auc", p, labels, weight) == pytest.approx(expected, abs=1e-9)


def test_auc_of_many_rows_does_not_keep_them(monkeypatch):
    monkeypatch.setattr(AUC, "EXACT", 300)
    p, labels, weight = classified(2)
    alone, many = make_metric("auc", 2), ComparedRows(p, labels, weight, np.arange(ROWS))
    alone.update(many)
    alone.update(many)
    assert not alone._rows
    expected = sk.roc_auc_score(labels, p[:, 1], sample_weight=weight)
    assert alone.result() == pytest.approx(expected, abs=2e-4)
    assert alone.state.size == 2 * AUC.BINS


def test_classes_that_do_not_occur():
    p = np.array([[0.7, 0.2, 0.1, 0, 0], [0.1, 0.8, 0.1, 0, 0], [0.3, 0.6, 0.1, 0, 0]])
    labels, weight = np.array([0, 1, 3]), np.ones(3)
    for name in ("precision", "recall", "f1"):
        assert measured(name, p, labels, weight, parts=1) == pytest.approx(BY_SKLEARN[name](labels, p, weight))
    each = [sk.roc_auc_score(labels == c, p[:, c]) for c in (0, 1, 3)]
    assert measured("auc", p, labels, weight, parts=1) == pytest.approx(np.mean(each))
    assert np.isnan(measured("auc", p, labels * 0, weight, parts=1))
    assert np.isnan(measured("accuracy", p, labels, weight * 0, parts=1))


def test_a_constant_target_and_masked_values():
    target, weight = np.full((9, 2), 0.5), np.ones((9, 2))
    target[:, 1] = np.arange(9)
    prediction = target.copy()
    assert measured("r2", prediction, target, weight) == 1
    prediction[0] += 1
    assert measured("r2", prediction, target, weight) == pytest.approx(sk.r2_score(target, prediction))
    assert measured("r2", prediction - 0.4, target - 0.4, weight) == pytest.approx(
        measured("r2", prediction, target, weight)  # scikit-learn gives -3e+32: rounding makes the target vary
    )
    weight[0], target[0] = 0, np.nan
    assert measured("r2", prediction, target, weight) == 1
    assert measured("mae", prediction, target, weight) == 0
    assert np.isnan(measured("r2", prediction, target, weight * 0))
    with pytest.warns(sk_exceptions.UndefinedMetricWarning):
        assert np.isnan(sk.r2_score(target[1:2], prediction[1:2]))
    assert np.isnan(measured("r2", prediction[1:2], target[1:2], weight[1:2]))


# Of nets


def net_of(*layers, phase=Phase.kTest):
    net = Net(NetProto(layer=[layer.proto for layer in layers]), phase, Ops(np.float64))
    net.initialise(0)
    return net


DATA = RecordInput("data", shape=[6])
TOP = InnerProduct("top", ReLU("relu", InnerProduct("ip", "data", num_output=9)), num_output=6)
CLASSIFIER = [DATA, TOP.inputs[0].inputs[0], TOP.inputs[0], TOP, SoftmaxLoss("loss", ["top", "data"])]
REGRESSION = [*CLASSIFIER[:-1], RecordInput("y", shape=[6]), EuclideanLoss("error", ["top", "y"])]
NAMES = [*METRICS["classes"], "top3"]


def batches(count=5, rows=8):
    draw = np.random.default_rng(2)
    return [
        {"data": (draw.standard_normal((some, 6)), draw.integers(0, 6, some)), "y": (draw.random((some, 6)), None)}
        for some in [rows] * count + [1]  # the last one is short: other workers have no row of it
    ]


def evaluated(comm, layers, names, dim):
    """What a group measures."""
    proto = NetProto(layer=[layer.proto for layer in layers], partition_dim=dim)
    member = Member(comm, proto, phases=(Phase.kTrain, Phase.kTest))
    net, used = member.nets[Phase.kTest], [layer.name for layer in layers]
    feeds = [
        member.feed({name: x for name, x in batch.items() if name in used}, number, Phase.kTest)
        for number, batch in enumerate(batches())
    ]
    result = Evaluator(net, BP(), names, rows=41).measure(feeds)
    result.share(comm.rank, lambda number: comm.all_gather_number(number).tolist())
    sums = result.sums
    comm.all_reduce(sums)
    result.sums = sums
    return result.numbers, result.details


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("layers", "names"), [(CLASSIFIER, NAMES), (REGRESSION, list(METRICS["values"]))])
def test_any_number_of_workers_measures_the_same(layers, names, dim):
    ((serial, details),) = run_threads(1, evaluated, layers, names, dim)
    assert {*serial, *details} == {"loss", "accuracy", *names} if layers is CLASSIFIER else {"loss", "parity", *names}
    for size in (2, 3):
        for numbers, others in run_threads(size, evaluated, layers, names, dim):
            assert numbers == pytest.approx(serial, rel=1e-12)
            for key, expected in details.items():
                np.testing.assert_allclose(others[key].value, expected.value, rtol=1e-12)
    if layers is REGRESSION:  # in the order of the set
        targets = np.concatenate([batch["y"][0] for batch in batches()])
        np.testing.assert_array_equal(details["parity"].value[:, :, 1], targets)


def test_time_steps_are_numbered_within_their_row():
    assert _numbers(6, 10, 3).tolist() == [20, 22, 24, 21, 23, 25]
    assert _numbers(0, 10, 0).tolist() == []


def test_what_losses_compare_is_measured():
    net, (batch, *_) = net_of(*CLASSIFIER), batches()
    feed = {"data": Batch(*batch["data"])}
    result = Evaluator(net, BP(), ["confusion", "top2"]).measure([(feed, Step(total_rows=8))])
    expected = sk.confusion_matrix(batch["data"][1], net.output("loss").argmax(axis=1), labels=range(6))
    assert result.details == {"confusion": (expected.tolist(), "data")}
    assert result.numbers["top2"] == sk.top_k_accuracy_score(
        batch["data"][1], net.output("loss"), k=2, labels=range(6)
    )


def test_values_are_measured_in_the_units_of_the_data():
    """Of a field with two channels and a mask of its positions."""
    shape = {"shape": [6], "target_shape": [2, 3, 2], "target_mean": [5, 300], "target_std": [0.125, 20]}
    data, mask = RecordInput("data", **shape), RecordInput("mask", shape=[1, 3, 2])
    net = net_of(
        data, mask, InnerProduct("top", "data", num_output=12), EuclideanLoss("loss", ["top", "data", "mask"])
    )
    draw, evaluator = np.random.default_rng(3), Evaluator(net, BP(), [*METRICS["values"]], rows=8)
    x, t, w = draw.standard_normal((8, 6)), draw.standard_normal((8, 3, 2, 2)), draw.integers(0, 2, (8, 3, 2, 1))
    result = evaluator.measure([({"data": Batch(x, t), "mask": Batch(w)}, Step(total_rows=8))])
    mean, std = [5, 300], [0.125, 20]
    seen = w.reshape(-1) > 0
    prediction, target = ((each.reshape(-1, 2) * std + mean)[seen] for each in (net.output("top"), t))
    for name in METRICS["values"]:
        assert result.numbers[name] == pytest.approx(BY_SKLEARN[name](target, prediction, None), rel=1e-9)
    pairs, source = result.details["parity"]
    assert source == "data"
    np.testing.assert_allclose(pairs[seen], np.stack([prediction, target], axis=2), rtol=1e-12)
    assert np.isnan(pairs[~seen]).all()


def test_several_losses_of_one_kind():
    first, second = (SoftmaxLoss(name, ["top", "data"]) for name in ("a", "b"))
    net = net_of(*CLASSIFIER[:-1], first, second, REGRESSION[-2], REGRESSION[-1])
    names = [[*loss.metrics] for loss in loss_metrics(net, ["f1", "r2", "f1"], rows=8)]
    assert names == [["a.f1"], ["b.f1"], ["r2", "parity"]]


@pytest.mark.parametrize(
    ("layers", "name", "words"),
    [
        (CLASSIFIER, "f2", "metric: is not the name of a metric. Received: f2. Choose from accuracy, auc,"),
        (
            CLASSIFIER,
            "r2",
            "r2 compares numbers: it needs a loss of one prediction for each value of a target. Received: r2. This",
        ),
        (REGRESSION, "f1", "f1 compares classes: it needs a kSoftmaxLoss, .* This net can have: mae, mse, r2, rmse."),
        (CLASSIFIER, "top7", "metric: top7 needs at least 7 classes. Received: 6 classes."),
    ],
)
def test_metrics_that_do_not_fit_are_refused(layers, name, words):
    with pytest.raises(ConfigError, match=words):
        loss_metrics(net_of(*layers), [name])


def test_matrices_of_many_classes_are_refused():
    with pytest.raises(ConfigError, match=r"confusion takes at most 1000 classes. Received: 1001 classes. Use f1"):
        make_metric("confusion", MAX_CLASSES + 1)
    assert kind_of("top12") == "classes"


def test_a_parity_sample_is_a_bounded_part_of_the_rows(monkeypatch):
    monkeypatch.setattr(ParitySample, "ROWS", 20)
    prediction, target, weight = values(3)
    weight, number = np.repeat(weight[:, None] > 0.5, 3, axis=1), np.arange(ROWS)
    samples = []
    for size in (1, 3):
        sample = ParitySample(3, ROWS, np.array([[10, 20, 30], [1, 2, 3]]))
        bounds = even_bounds(ROWS, size)
        for start, stop in pairwise(bounds):
            some = slice(start, stop)
            sample.update(ComparedRows(prediction[some], target[some], weight[some], number[some]))
        samples.append(sample.result())
    np.testing.assert_array_equal(samples[0], samples[1])
    mean = np.where(number % 2, 3, 30)
    pairs = {*zip(prediction[:, 2] + mean, target[:, 2] + mean, strict=True)}
    drawn = [tuple(pair) for pair in samples[0][:, 2] if not np.isnan(pair[0])]
    assert 3 < len(drawn) < 20 and len({*drawn}) == len(drawn) and {*drawn} < pairs
