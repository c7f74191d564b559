"""A classifier with the interface of scikit-learn."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, validate_data

from singa_dask.data.columns import as_map
from singa_dask.data.containers import is_lazy, is_table
from singa_dask.errors import ConfigError, Problem
from singa_dask.estimators.arrays import codes, unique
from singa_dask.estimators.base import Estimator
from singa_dask.job.job_pb2 import JobProto, LayerType
from singa_dask.job.outputs import keep_their_numbers

logger = logging.getLogger(__name__)


class Classifier(ClassifierMixin, Estimator):
    """A net that predicts classes, with scikit-learn's interface.

        classifier = Classifier(epochs=20, validation=0.1, patience=5).fit(X, y)
        classifier.predict(X), classifier.predict_proba(X), classifier.score(X, y)

    net: a Module or a list of layers, with or without input layer and loss; a Job, or the path of a job file, whose
    training inputs get the data; None for one that suits the data. epochs [100], batch_size [64], learning_rate
    [0.002] of Adam, or an updater; with a job, None means what it says. validation: the share of the data that is held
    out, or a set (X, y). transform: f(batch, rng), which changes the mini-batches of training, see
    `singa_dask.transforms`. patience: end after so many validations in a row without a smaller loss; the best
    parameters are kept. class_weight: {class: factor} or "balanced". normalise: features to mean 0 and std 1, per
    column or channel, inside of the net. missing: what replaces missing values of X: "mean" of the training samples, a
    number, or "mask", as in `shard`; by default they are an error. random_state: of the initial parameters and the
    order of samples. workspace: folder of the run, which all workers must share; None keeps nothing. callbacks: see
    `train`. client: trains on its Dask workers as the cluster block says; without, in this process. verbose: show the
    progress.

    X: (N, D), images (N, H, W, C) or any array (N, ...) of up to four further dimensions; y: (N,) of any type, or maps
    (N, H, W) with the class of each pixel. Both may be Dask collections: predictions of these are lazy. Nets with
    recurrent layers read X (N, T, ...) as sequences of T time steps, and so do nets with attention if X is (N, T, D);
    the layers after these read the last step. For such nets X may be a list of arrays (T_i, ...) of different lengths.
    With RecordInput(sequence=T, horizon=1) as the first layer, X and y are records in the order of time, and the class
    follows a window of T records.

    classes_, n_features_in_, feature_names_in_, n_iter_ (epochs), history_ (metrics over the steps), model_ (the
    Model), result_ (of `train`).
    """

    def __init__(
        self,
        net: Any = None,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        updater: Any = None,
        validation: Any = None,
        transform: Any = None,
        patience: int | None = None,
        class_weight: Any = None,
        normalise: bool = True,
        missing: Any = "error",
        random_state: Any = None,
        workspace: str | Path | None = None,
        callbacks: Any = (),
        client: Any = None,
        cluster: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            net,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            updater=updater,
            validation=validation,
            transform=transform,
            patience=patience,
            normalise=normalise,
            missing=missing,
            random_state=random_state,
            workspace=workspace,
            callbacks=callbacks,
            client=client,
            cluster=cluster,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from new parameters. sample_weight: (N,), how much each sample counts."""
        X, y = self._taken(X, y, first=True)
        self.classes_, self._positions = self._classes(unique(y)), tuple(map(int, y.shape[1:]))
        return self._train(self._examples(X, y, sample_weight), self._validation_set())

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one more epoch, on these samples. classes: all of them, for the first call."""
        goes_on = hasattr(self, "model_")
        if not goes_on and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        X, y = self._taken(X, y, first=not goes_on)
        if not goes_on:
            self.classes_, self._positions = self._classes(np.unique(classes)), tuple(map(int, y.shape[1:]))
        return self._train(self._examples(X, y, sample_weight, goes_on=goes_on), None, epochs=1, goes_on=goes_on)

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class.   (N, ...) -> (N, classes) or (N, H, W, classes), in the order
        of classes_."""
        return self._labelled(self._output(X), X, "class", self.classes_)

    def predict(self, X: Any) -> Any:
        """The most probable class.   (N, ...) -> (N,) or (N, H, W)"""
        scores = self._output(X)
        if not is_lazy(scores):
            return self._labelled(_best(scores, self.classes_), X)
        if is_table(scores):
            meta = _best_of_table(scores._meta, self.classes_)
            return scores.map_partitions(_best_of_table, self.classes_, meta=meta)
        best = scores.map_blocks(_best, self.classes_, dtype=self.classes_.dtype, drop_axis=scores.ndim - 1)
        return self._labelled(best, X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy, of maps over all pixels, of a net that reads windows over those whose horizon is in y."""
        X, y = self._without_labels(X, y)
        if self._positions:
            predicted, true = np.asarray(self.predict(X)), as_map(np.asarray(y))
            if predicted.shape != true.shape:
                raise ValueError(f"y must be maps of the shape {predicted.shape}. Received: {np.shape(y)}.")
            correct = predicted == true
            return float(np.average(correct.reshape(len(correct), -1).mean(axis=1), weights=sample_weight))
        if self._windows is None:
            return float(super().score(X, y, sample_weight))
        predicted, true = self._windows.pair(self.predict(X), y, sample_weight)
        return float(np.mean(predicted == true.reshape(-1)))

    def _checked_answers(self, x: Any, y: Any, *, first: bool) -> tuple[Any, Any]:
        if (np.ndim(y) if isinstance(y, list) else getattr(y, "ndim", 1)) <= 2:
            x, y = validate_data(self, x, y, reset=first, allow_nd=True, ensure_all_finite=self._finite)
            check_classification_targets(y)
            return x, y
        x = validate_data(self, x, reset=first, allow_nd=True, ensure_all_finite=self._finite)
        y = as_map(np.asarray(y))
        check_consistent_length(x, y)
        if y.dtype.kind == "f" and not (y == np.floor(y)).all():
            raise ValueError("y must be classes, but holds numbers with fractions. Use a Regressor for numbers.")
        return x, y

    def _classes(self, found: np.ndarray) -> np.ndarray:
        """The classes; all outputs of a given net, if the classes are integers among their numbers."""
        outputs = self._outputs_for_classes() if found.dtype.kind in "iu" else None
        if outputs is None or not len(found) < outputs or found[0] < 0 or found[-1] >= outputs:
            return found
        logger.warning("y: %s.", keep_their_numbers(found.tolist(), outputs))
        return np.arange(outputs, dtype=found.dtype)

    def _answers(self, y: Any) -> Any:
        return codes(y, self.classes_)

    def _outputs(self, y: Any) -> tuple[int, bool]:
        return len(self.classes_), True

    def _options(self) -> dict[str, Any]:
        return {"labels": True, "classes": [str(name) for name in self.classes_], "places": True}

    def _set_loss(self, proto: JobProto, y: Any) -> None:
        if self.class_weight is None:
            return
        y = np.asarray(y).reshape(-1)
        present = np.isin(self.classes_, y)
        factors = np.ones(len(self.classes_))
        factors[present] = compute_class_weight(self.class_weight, classes=self.classes_[present], y=y)
        losses = [layer for layer in proto.neuralnet.layer if layer.type == LayerType.kSoftmaxLoss]
        if not losses:
            hint = "Leave it out, or let your loss count classes."
            raise ConfigError(Problem("class_weight", "is of a SoftmaxLoss, and the net has none", hint=hint))
        for layer in losses:
            layer.softmaxloss_conf.class_weight[:] = factors


def _best(scores: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return classes[np.argmax(scores, axis=-1)]


def _best_of_table(scores: Any, classes: np.ndarray) -> Any:
    import pandas

    return pandas.Series(_best(scores.to_numpy(), classes), scores.index, name="prediction")
