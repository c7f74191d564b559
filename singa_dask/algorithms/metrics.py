"""Metrics by name, which evaluations measure over a whole set.   R rows, N classes, K targets.

A metric's state is a vector of sums over rows. The sum of the states of several workers is the state of all rows, so
that a metric depends on the number of workers only by rounding. The definitions are those of scikit-learn, the weights
of rows its `sample_weight`: a row with weight 0 does not count.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from singa_dask.errors import ConfigError, Problem

# Of a matrix or histogram per class.
MAX_CLASSES = 1000
_TOP = re.compile(r"top([1-9]\d*)")


class ComparedRows(NamedTuple):
    """What a loss compared, on the host, weights included.

    Of classes: prediction (R, N), probabilities; target and weight (R,). Of values: all three (R, K).
    number: (R,), of each row in the whole set.
    """

    prediction: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    number: np.ndarray


class SetMetric(ABC):
    """A metric of a whole set. state: float64 vector of sums over rows."""

    state: np.ndarray
    is_number: ClassVar[bool] = True

    @abstractmethod
    def update(self, rows: ComparedRows) -> None:
        """Add rows to the state."""

    def share(self, rank: int, numbers: Callable[[int], Sequence[int]]) -> None:  # noqa: B027 - most need nothing
        """Make the state ready to be added to those of other ranks. numbers: every rank's number. Collective."""

    @abstractmethod
    def result(self) -> Any:
        """The metric of all rows of the state; NaN if it is undefined for them."""


class TopKAccuracy(SetMetric):
    """The share of rows whose class is among the `topk` most probable ones (of equal ones the first)."""

    def __init__(self, classes: int, topk: int = 1) -> None:
        self._topk, self.state = topk, np.zeros(2)

    def update(self, rows: ComparedRows) -> None:
        prediction, target, weight, _ = rows
        value = np.take_along_axis(prediction, target[:, None], 1)
        earlier = np.arange(prediction.shape[1]) < target[:, None]
        ahead = (prediction > value) | ((prediction == value) & earlier)
        self.state += weight[ahead.sum(axis=1) < self._topk].sum(), weight.sum()

    def result(self) -> float:
        correct, rows = self.state.tolist()
        return correct / rows if rows else float("nan")


class _Counts(SetMetric):
    """Of each class: the correct rows, the predicted ones, the actual ones. The mean over classes that occur."""

    def __init__(self, classes: int) -> None:
        self.state = np.zeros(3 * classes)

    def update(self, rows: ComparedRows) -> None:
        prediction, target, weight, _ = rows
        predicted, counts = prediction.argmax(axis=1), self.state.reshape(3, -1)
        np.add.at(counts[0], target, weight * (predicted == target))
        np.add.at(counts[1], predicted, weight)
        np.add.at(counts[2], target, weight)

    def result(self) -> float:
        correct, predicted, actual = self.state.reshape(3, -1)
        occurs = predicted + actual > 0
        each = self._of_classes(correct[occurs], predicted[occurs], actual[occurs])
        return float(each.mean()) if each.size else float("nan")

    @abstractmethod
    def _of_classes(self, correct: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray: ...


class Precision(_Counts):
    """The macro mean of correct / predicted; 0 for a class that is never predicted."""

    def _of_classes(self, correct: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        return correct / np.where(predicted > 0, predicted, 1)


class Recall(_Counts):
    """The macro mean of correct / actual; 0 for a class that is predicted but does not occur."""

    def _of_classes(self, correct: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        return correct / np.where(actual > 0, actual, 1)


class F1(_Counts):
    """The macro mean of 2 correct / (predicted + actual), the harmonic mean of precision and recall. Also called dice,
    of the positions of images."""

    def _of_classes(self, correct: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        return 2 * correct / (predicted + actual)


class IoU(_Counts):
    """The macro mean of correct / (predicted + actual - correct), intersection over union (Jaccard)."""

    def _of_classes(self, correct: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> np.ndarray:
        return correct / (predicted + actual - correct)


class AUC(SetMetric):
    """The area under the ROC curve: of the second of two classes, else the mean over classes, each against the rest.

    Exact while the probabilities, classes and weights of all rows are at most EXACT numbers. Of more rows the
    probabilities p are counted in equal bins of log(p / (1 - p)) from -LIMIT to LIMIT, BINS of them for all classes
    together; rows of one bin count as equal. A class without rows, or with all of them, is left out of the mean.
    """

    EXACT, BINS, LEAST_BINS, LIMIT = 1 << 20, 1 << 16, 2048, 32.0

    def __init__(self, classes: int) -> None:
        self._columns = slice(1, 2) if classes == 2 else slice(None)
        self._classes = np.arange(classes)[self._columns]
        self._width, self._nbins = len(self._classes) + 2, max(self.LEAST_BINS, self.BINS // len(self._classes))
        self._rows: list[np.ndarray] = []  # probabilities, class, weight; empty once they are counted in bins
        self._count, self._bins, self._exact, self.state = 0, np.zeros(0), True, np.zeros(0)

    def update(self, rows: ComparedRows) -> None:
        self._rows.append(np.column_stack([rows.prediction[:, self._columns], rows.target, rows.weight]))
        self._count += len(rows.target)
        if self._count * self._width > self.EXACT:
            self._to_bins()

    def share(self, rank: int, numbers: Callable[[int], Sequence[int]]) -> None:
        counts = list(map(int, numbers(self._count)))
        self._exact = sum(counts) * self._width <= self.EXACT
        if self._exact:
            state, start = np.zeros((sum(counts), self._width)), sum(counts[:rank])
            state[start : start + self._count] = np.concatenate([state[:0], *self._rows])
            self.state = state.reshape(-1)
        else:
            self._to_bins()
            self.state = self._bins

    def result(self) -> float:
        if not self.state.size:  # of one worker
            self.share(0, lambda count: [count])
        if self._exact:
            rows = self.state.reshape(-1, self._width)
            areas = [self._area(*_by_value(rows[:, i], rows[:, -2] == c, rows[:, -1])) for i, c in self._numbered]
        else:
            areas = [self._area(*counts) for counts in self.state.reshape(-1, 2, self._nbins)]
        defined = [area for area in areas if area is not None]
        return float(np.mean(defined)) if defined else float("nan")

    @property
    def _numbered(self) -> list[tuple[int, int]]:
        return list(enumerate(self._classes.tolist()))

    def _to_bins(self) -> None:
        if not self._bins.size:
            self._bins = np.zeros(len(self._classes) * 2 * self._nbins)
        for rows in self._rows:
            p, target, weight = rows[:, :-2], rows[:, -2:-1], rows[:, -1:]
            with np.errstate(divide="ignore"):
                logit = np.clip(np.log(p) - np.log1p(-p), -self.LIMIT, self.LIMIT)
            bins = np.minimum((logit + self.LIMIT) * (self._nbins / (2 * self.LIMIT)), self._nbins - 1).astype(np.intp)
            place = (np.arange(len(self._classes)) * 2 + (target == self._classes)) * self._nbins + bins
            np.add.at(self._bins, place, np.broadcast_to(weight, place.shape))
        self._rows.clear()

    @staticmethod
    def _area(negative: np.ndarray, positive: np.ndarray) -> float | None:
        """Of the weights at ascending scores; None if there is only one class."""
        pairs = negative.sum() * positive.sum()
        return (positive * (negative.cumsum() - negative / 2)).sum() / pairs if pairs > 0 else None


def _by_value(score: np.ndarray, positive: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of the negative and of the positive rows at each distinct score, ascending."""
    distinct, place = np.unique(score, return_inverse=True)
    negative, of_positive = (np.bincount(place, weight * which, distinct.size) for which in (~positive, positive))
    return negative, of_positive


class Confusion(SetMetric):
    """The confusion matrix, (N, N): rows (sums of weights) of actual class i that are predicted as class j."""

    is_number: ClassVar[bool] = False

    def __init__(self, classes: int) -> None:
        self._classes, self.state = classes, np.zeros(classes * classes)

    def update(self, rows: ComparedRows) -> None:
        prediction, target, weight, _ = rows
        np.add.at(self.state, target * self._classes + prediction.argmax(axis=1), weight)

    def result(self) -> list[list[float]]:
        whole = (self.state == self.state.round()).all()
        matrix = self.state.reshape(self._classes, self._classes)
        counts: list[list[float]] = (matrix.astype(np.int64) if whole else matrix).tolist()
        return counts


class _Errors(SetMetric):
    """Of each target: sums of weights, absolute and squared errors, targets, squared targets, and the number of rows.
    The result is the mean over targets, scikit-learn's `uniform_average`. Channels of fields are targets.

    Adding a constant to targets and predictions changes no result, so both can be relative to a mean.
    """

    def __init__(self, targets: int) -> None:
        self.state = np.zeros(6 * targets)

    def update(self, rows: ComparedRows) -> None:
        prediction, target, weight, _ = rows
        target = np.where(weight > 0, target, 0.0)
        error = np.where(weight > 0, prediction - target, 0.0)
        terms = np.ones_like(error), abs(error), error**2, target, target**2
        sums = [(weight * term).sum(axis=0) for term in terms]
        self.state += np.concatenate([*sums, (weight > 0).sum(axis=0)])

    def result(self) -> float:
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(self._of_targets(*self.state.reshape(6, -1)).mean())

    @abstractmethod
    def _of_targets(self, count: Any, absolute: Any, squared: Any, target: Any, target2: Any, rows: Any) -> Any: ...


class MAE(_Errors):
    """The mean absolute error, averaged over targets."""

    def _of_targets(self, count: Any, absolute: Any, squared: Any, target: Any, target2: Any, rows: Any) -> Any:
        return absolute / count


class MSE(_Errors):
    """The mean squared error, averaged over targets."""

    def _of_targets(self, count: Any, absolute: Any, squared: Any, target: Any, target2: Any, rows: Any) -> Any:
        return squared / count


class RMSE(_Errors):
    """The root of the mean squared error of each target, averaged over targets."""

    def _of_targets(self, count: Any, absolute: Any, squared: Any, target: Any, target2: Any, rows: Any) -> Any:
        return np.sqrt(squared / count)


class R2(_Errors):
    """1 - sum (y - p)^2 / sum (y - mean y)^2 of each target, averaged over targets.

    Of a constant target: 1 if there is no error, else 0. Of fewer than two rows it is undefined.
    """

    def _of_targets(self, count: Any, absolute: Any, squared: Any, target: Any, target2: Any, rows: Any) -> Any:
        total = target2 - target**2 / count
        varies = total > 1e-13 * target2  # of a constant target rounding leaves as much
        constant = np.where(squared > 0, 0.0, 1.0)
        return np.where(rows > 1, np.where(varies, 1 - squared / np.where(varies, total, 1), constant), np.nan)


def layout(shape: Sequence[int]) -> tuple[int, int]:
    """The targets and the positions of a sample of this shape in the net: its last axis counts the targets, and each
    position of the others counts as a sample.   () -> 1, 1; (K,) -> K, 1; (..., K) -> K, ..."""
    return (shape[-1], prod(shape[:-1])) if shape else (1, 1)


def r2(prediction: Any, target: Any, shape: Sequence[int], weight: Any = None) -> float:
    """`R2` of arrays of N samples of this shape in the net. weight: (N,)."""
    targets, positions = layout(shape)
    rows = [np.asarray(each, np.float64).reshape(-1, targets) for each in (prediction, target)]
    weights = np.ones(len(rows[1])) if weight is None else np.repeat(np.asarray(weight, np.float64), positions)
    counted = weights > 0
    rows = [each[counted] for each in rows]
    mean = np.average(rows[1], 0, weights[counted]) if counted.any() else 0.0
    metric = R2(targets)
    columns = np.broadcast_to(weights[counted, None], rows[1].shape)
    metric.update(ComparedRows(rows[0] - mean, rows[1] - mean, columns, np.flatnonzero(counted)))
    return metric.result()


# What a loss compares -> its metrics.
METRICS: dict[str, dict[str, Callable[[int], SetMetric]]] = {
    "classes": {
        "accuracy": TopKAccuracy,
        "auc": AUC,
        "confusion": Confusion,
        "dice": F1,
        "f1": F1,
        "iou": IoU,
        "precision": Precision,
        "recall": Recall,
    },
    "values": {"mae": MAE, "mse": MSE, "r2": R2, "rmse": RMSE},
}


def kind_of(name: str) -> str:
    """What the metric of this name compares: "classes" or "values". Raises ConfigError for an unknown name."""
    if _TOP.fullmatch(name):
        return "classes"
    for kind, metrics in METRICS.items():
        if name in metrics:
            return kind
    every = [name for metrics in METRICS.values() for name in metrics]
    hint = f"Choose from {', '.join(every)}, and top5 (or another number)."
    raise ConfigError(Problem("metric", "is not the name of a metric", name, hint))


def make_metric(name: str, size: int) -> SetMetric:
    """The metric of this name, for so many classes or targets. Raises ConfigError if it does not suit their number."""
    if top := _TOP.fullmatch(name):
        if int(top[1]) > size:
            raise ConfigError(Problem("metric", f"{name} needs at least {top[1]} classes", f"{size} classes"))
        return TopKAccuracy(size, int(top[1]))
    if name in ("auc", "confusion") and size > MAX_CLASSES:
        hint = "Use f1, precision, recall or accuracy."
        raise ConfigError(Problem("metric", f"{name} takes at most {MAX_CLASSES} classes", f"{size} classes", hint))
    return METRICS[kind_of(name)][name](size)
