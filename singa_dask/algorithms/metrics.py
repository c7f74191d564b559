"""Metrics by name, which evaluations measure over a whole set.   R rows, N classes, K targets.

A metric's state is a vector of sums over rows. The sum of the states of several workers is the state of all rows, so
that a metric depends on the number of workers only by rounding. The definitions are those of scikit-learn, the weights
of rows its `sample_weight`: a row with weight 0 does not count.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from singa_dask.errors import ConfigError, Problem

# Of a matrix or histogram per class.
MAX_CLASSES = 1000
_TOP = re.compile(r"top([1-9]\d*)")


class Rows(NamedTuple):
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
    def update(self, rows: Rows) -> None:
        """Add rows to the state."""

    @abstractmethod
    def result(self) -> Any:
        """The metric of all rows of the state; NaN if it is undefined for them."""


class Accuracy(SetMetric):
    """The share of rows whose class is among the `topk` most probable ones (of equal ones the first)."""

    def __init__(self, classes: int, topk: int = 1) -> None:
        self._topk, self.state = topk, np.zeros(2)

    def update(self, rows: Rows) -> None:
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

    def update(self, rows: Rows) -> None:
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

    Probabilities p are counted in BINS equal bins of log(p / (1 - p)) from -LIMIT to LIMIT. Rows of one bin count as
    equal: their odds differ by at most 1.6 %. A class without rows, or with all of them, is left out of the mean.
    """

    BINS, LIMIT = 2048, 16.0

    def __init__(self, classes: int) -> None:
        self._columns = slice(1, 2) if classes == 2 else slice(None)
        self.state = np.zeros((1 if classes == 2 else classes) * 2 * self.BINS)

    def update(self, rows: Rows) -> None:
        prediction, target, weight, _ = rows
        classes = np.arange(prediction.shape[1])[self._columns]
        p = prediction[:, self._columns].astype(np.float64)
        with np.errstate(divide="ignore"):
            logit = np.clip(np.log(p) - np.log1p(-p), -self.LIMIT, self.LIMIT)
        bins = np.minimum((logit + self.LIMIT) * (self.BINS / (2 * self.LIMIT)), self.BINS - 1).astype(np.intp)
        positive = (target[:, None] == classes).astype(np.intp)
        place = (np.arange(len(classes)) * 2 + positive) * self.BINS + bins
        np.add.at(self.state, place, np.broadcast_to(weight[:, None], place.shape))

    def result(self) -> float:
        negative, positive = np.moveaxis(self.state.reshape(-1, 2, self.BINS), 1, 0)
        below = negative.cumsum(axis=1) - negative / 2
        pairs = negative.sum(axis=1) * positive.sum(axis=1)
        areas = (positive * below).sum(axis=1)[pairs > 0] / pairs[pairs > 0]
        return float(areas.mean()) if areas.size else float("nan")


class Confusion(SetMetric):
    """The confusion matrix, (N, N): rows (sums of weights) of actual class i that are predicted as class j."""

    is_number: ClassVar[bool] = False

    def __init__(self, classes: int) -> None:
        self._classes, self.state = classes, np.zeros(classes * classes)

    def update(self, rows: Rows) -> None:
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

    def update(self, rows: Rows) -> None:
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


# What a loss compares -> its metrics.
METRICS: dict[str, dict[str, Callable[[int], SetMetric]]] = {
    "classes": {
        "accuracy": Accuracy,
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
        return Accuracy(size, int(top[1]))
    if name in ("auc", "confusion") and size > MAX_CLASSES:
        hint = "Use f1, precision, recall or accuracy."
        raise ConfigError(Problem("metric", f"{name} takes at most {MAX_CLASSES} classes", f"{size} classes", hint))
    return METRICS[kind_of(name)][name](size)
