"""A classifier with the interface of scikit-learn."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_y

from singa_dask.data.columns import as_map
from singa_dask.data.containers import is_lazy, is_table
from singa_dask.errors import ConfigError, Problem
from singa_dask.estimators.arrays import MISSING, codes, is_missing, unique, weights_of
from singa_dask.estimators.base import Estimator, Examples
from singa_dask.job.job_pb2 import JobProto, LayerType
from singa_dask.job.outputs import keep_their_numbers, outputs_for_classes

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Classifier(ClassifierMixin, Estimator):
    """A net that predicts classes, with scikit-learn's interface.

        classifier = Classifier(epochs=20, validation=0.1, patience=5).fit(X, y)
        classifier.predict(X), classifier.predict_proba(X), classifier.score(X, y)

    net: a Module or a list of layers, with or without input layer and loss; a Job, or the path of a job file, whose
    training inputs get the data; None for one that suits the data.
    epochs: how often the samples of training are read, without those held out: 100 by default; with a job, what it
    says.
    batch_size: 64 by default; with a job, what it says.
    learning_rate: of Adam, 0.002 by default; with a job, what it says.
    updater: an updater of `singa_dask.updaters` in place of Adam.
    validation: the share of the data that is held out, or a set, (X, y) or (X, y, sample_weight).
    transform: a function f(batch, rng) that changes the mini-batches of training, see `singa_dask.transforms`.
    patience: end after so many validations in a row without a smaller loss. The best parameters are kept.
    class_weight: {class: factor}, or "balanced": the sum of all sample weights / (classes x that of the class).
    normalise: whether the net scales features to mean 0 and standard deviation 1, per column or channel.
    channels: where images have them, "first", "last" or "none"; by default the shape decides, and where it does not,
    that is an error.
    missing: what replaces missing values of X: "mean" of the training samples, a number, or "mask", as in `shard`; by
    default they are an error.
    random_state: the seed of the initial parameters, of the order of samples and of random changes, such as dropout
    and a transform; calls of partial_fit go on with the numbers that follow.
    workspace: the folder of the run, which all workers must share; None keeps nothing, and `result_` has no files.
    callbacks: see `train`.
    client: a client of the Dask cluster whose workers train; None trains in this process.
    cluster: a ClusterTopology, how training is distributed on the cluster.
    gpu: the GPUs on which to train and predict, as in a job: [0, 1], or [] for CPUs; by default all, or what a job
    says.
    verbose: whether to show the progress.

    X: (N, D), images (N, H, W, C) or (N, C, H, W), any array (N, ...) of up to four further dimensions, or a
    DataFrame, of which texts, categories and dates are encoded as `shard` does.
    y: (N,) of any type, or maps (N, H, W) with the class of each pixel.

    Both may be Dask collections: predictions of these are lazy. Nets with recurrent layers read X (N, T, ...) as
    sequences of T time steps, with an embedding also (N, T), and so do nets with attention if X is (N, T, D). The
    layers after these read the last step, unless y of a given net is (N, T), a class for each step. For such nets X
    may be a list of arrays (T_i, ...) of different lengths. With RecordInput(sequence=T, horizon=1) as the first
    layer, X and y are records in the order of time, and the class follows a window of T records.

    classes_: the classes.
    n_features_in_, feature_names_in_: number and names of the features.
    n_iter_: epochs.
    history_: metrics over the steps.
    model_: the Model.
    result_: what `train` returns.
    """

    class_weight: Any = field(default=None, kw_only=True)

    classifies: ClassVar[bool] = True

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from new parameters. sample_weight: (N,), how much each sample counts."""
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one more epoch, on these samples. classes: all of them, for the first call."""
        goes_on = hasattr(self, "model_")
        if not goes_on and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if goes_on and classes is not None and not np.isin(classes, self.classes_).all():
            raise ValueError(f"classes must be those of the first call to partial_fit, {self.classes_.tolist()}.")
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            hint = "Give them: class_weight={class: factor}, as sklearn.utils.class_weight computes of all samples."
            raise ValueError(
                f'class_weight="balanced" is not for partial_fit, which sees some samples at a time. {hint}'
            )
        return self._fit(X, y, sample_weight, epochs=1, goes_on=goes_on, classes=classes)

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class.   (N, ...) -> (N, classes) or (N, H, W, classes), in the order
        of classes_."""
        scores = self._scores(X)
        if is_table(scores):
            scores = scores.map_partitions(_as_probabilities, meta=scores._meta)
        elif is_lazy(scores):
            scores = scores.map_blocks(_as_probabilities, dtype=scores.dtype)
        else:
            _as_probabilities(scores)
        return self._labelled(scores, X, "class", self.classes_)

    def predict(self, X: Any) -> Any:
        """The most probable class.   (N, ...) -> (N,) or (N, H, W)"""
        scores = self._scores(X)
        if not is_lazy(scores):
            return self._labelled(_best(scores, self.classes_), X)
        if is_table(scores):
            meta = _best_of_table(scores._meta, self.classes_)
            return scores.map_partitions(_best_of_table, self.classes_, meta=meta)
        best = scores.map_blocks(_best, self.classes_, dtype=self.classes_.dtype, drop_axis=scores.ndim - 1)
        return self._labelled(best, X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy, of maps over all pixels, of a net that reads windows over those whose horizon is in y."""
        predicted, y, sample_weight = self._scored(X, y, sample_weight)
        y = self._checked_answers(y if self._windows is None else y.reshape(-1))
        if sample_weight is not None:
            sample_weight = weights_of(sample_weight, y, scaled=True)
        if self._positions:
            predicted, true = np.asarray(predicted), as_map(y)
            if predicted.shape != true.shape:
                raise ValueError(f"y must be maps of the shape {predicted.shape}. Received: {np.shape(y)}.")
            counted = _counted(true)
            if sample_weight is not None:
                sample_weight = np.repeat(sample_weight, counted[0].size).reshape(true.shape)[counted]
            y, predicted = true[counted], predicted[counted]
        self._check_kind_of_answers(np.asarray(y))
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def _check_kind_of_answers(self, y: np.ndarray) -> None:
        """Raise ValueError if booleans would be compared with numbers other than 0 and 1."""
        classes = self.classes_
        booleans, others = (y, classes) if y.dtype.kind == "b" else (classes, y)
        if booleans.dtype.kind == "b" and others.dtype.kind in "iuf" and not np.isin(others, (0, 1)).all():
            told = f"y holds {y.dtype}, and the classes are {classes.tolist()[:8]}"
            raise ValueError(f"{told}: booleans are compared with 0 and 1 only. Give labels of the type as in fit.")

    def _scores(self, x: Any) -> Any:
        """The output of the net. Raises ValueError if it has more values than there are classes."""
        scores = self._output(x)
        if scores.shape[-1] != len(self.classes_):
            told = f"the net has {scores.shape[-1]} outputs, and y had {len(self.classes_)} classes"
            raise ValueError(f"{told}: {self.classes_[:8].tolist()}. Let it have as many.")
        return scores

    def _checked_answers(self, y: Any) -> Any:
        array = np.asarray(y)
        if array.dtype == object and any(map(is_missing, array.flat)):
            raise ValueError(MISSING)
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise ValueError(MISSING)
        of_steps = self.net is not None and array.ndim == 2 and array.shape[1] > 1
        if array.ndim <= 2 and not of_steps:
            y = _check_y(y, estimator=self)
            check_classification_targets(y)
            return y
        y = as_map(array)
        if y.ndim > 3 and y.dtype.kind in "biu" and ((y == 0) | (y == 1)).all() and (y.sum(axis=-1) == 1).all():
            raise ValueError(f"y must be the classes, but is one-hot, {y.shape}. Give y.argmax(axis=-1).")
        if y.dtype.kind == "f" and not (y == np.floor(y)).all():
            raise ValueError("y must be classes, but holds numbers with fractions. Use a Regressor for numbers.")
        return y

    def _describe_answers(self, y: Any, classes: Any) -> None:
        self._positions = tuple(map(int, y.shape[1:]))
        found = unique(y) if classes is None else np.unique(classes)
        self._uncounted = bool(self._positions) and not _counted(found).all()
        if self._uncounted:
            logger.warning("y: positions with negative numbers do not count.")
            found = found[_counted(found)]
        self.classes_ = self._classes(found)

    def _classes(self, found: np.ndarray) -> np.ndarray:
        """The classes; all outputs of a given net, if the classes are integers among their numbers."""
        told = self.net is not None and found.dtype.kind in "iu"
        outputs = outputs_for_classes(self._given_job().proto.neuralnet.layer) if told else None
        if outputs is None or not len(found) < outputs or found[0] < 0 or found[-1] >= outputs:
            return found
        logger.warning("y: %s.", keep_their_numbers(found.tolist(), outputs))
        return np.arange(outputs, dtype=found.dtype)

    def _answers(self, y: Any) -> Any:
        return codes(y, self.classes_, uncounted=bool(self._positions))

    def _outputs(self) -> int:
        return len(self.classes_)

    def _options(self) -> dict[str, Any]:
        return {"labels": True, "classes": [str(name) for name in self.classes_], "places": True}

    def _set_loss(self, proto: JobProto, examples: Examples) -> None:
        losses = [layer for layer in proto.neuralnet.layer if layer.type == LayerType.kSoftmaxLoss]
        for layer in losses if self._uncounted else ():
            layer.softmaxloss_conf.ignore_label = -1
        if self.class_weight is None:
            return
        mapped = isinstance(self.class_weight, Mapping)
        counts = self._counts(examples.y, None if mapped else examples.weight)
        present = counts > 0
        factors = np.ones(len(self.classes_))
        if mapped:
            factors[present] = _factors(self.class_weight, self.classes_[present].tolist())
        elif isinstance(self.class_weight, str) and self.class_weight == "balanced":
            factors[present] = counts.sum() / (present.sum() * counts[present])
        else:
            names = self.classes_.tolist()
            hint = f"For example class_weight={dict.fromkeys(names[:8], 1.0)}, by the classes of y."
            message = 'must be {class: factor} or "balanced"'
            raise ConfigError(Problem("class_weight", message, repr(self.class_weight), hint))
        if not factors[present].any():
            hint = "Give at least one of them a factor above 0."
            raise ConfigError(Problem("class_weight", "is 0 for all classes of y", repr(self.class_weight), hint))
        if not losses:
            hint = "Leave it out, or let your loss count classes."
            raise ConfigError(Problem("class_weight", "is of a SoftmaxLoss, and the net has none", hint=hint))
        for layer in losses:
            layer.softmaxloss_conf.class_weight[:] = factors

    def _counts(self, y: Any, weight: Any) -> np.ndarray:
        """The sum of the weights of each class, of all its positions; by default the number of these."""
        y = np.asarray(y)
        weights = np.ones(len(y)) if weight is None else np.asarray(weight, np.float64)
        weights = np.repeat(weights, y.size // len(y))
        places = codes(y.reshape(-1), self.classes_, uncounted=bool(self._positions))
        return np.bincount(places[places >= 0], weights[places >= 0], len(self.classes_))


def _factors(given: Mapping[Any, float], classes: Sequence[Any]) -> list[float]:
    """Those of the classes. Raises ConfigError if one has none, and a key is no class."""
    strange, lacking = [key for key in given if key not in classes], [name for name in classes if name not in given]
    if strange and lacking:
        hint = f"The classes of y are {', '.join(map(repr, classes[:8]))}."
        raise ConfigError(Problem("class_weight", "names a class that y does not have", repr(strange[0]), hint))
    return [given.get(name, 1.0) for name in classes]


def _as_probabilities(scores: Any) -> Any:
    """The scores. Raises ValueError if they are no probabilities."""
    values = np.asarray(scores)
    if (values < 0).any() or not np.allclose(values.sum(axis=-1), 1, atol=1e-3, equal_nan=True):
        hint = (
            "End it with a SoftmaxLoss, or with a Softmax below a loss of your own. `predict` takes the largest score."
        )
        raise ValueError(f"the net gives scores of the classes, and no probabilities. {hint}")
    return scores


def _counted(y: np.ndarray) -> np.ndarray:
    """Which positions have a class; negative numbers mark the others."""
    return y >= 0 if y.dtype.kind in "if" else np.ones(y.shape, bool)


def _best(scores: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return classes[np.argmax(scores, axis=-1)]


def _best_of_table(scores: Any, classes: np.ndarray) -> Any:
    import pandas

    return pandas.Series(_best(scores.to_numpy(), classes), scores.index, name="prediction")
