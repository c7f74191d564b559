"""A regressor with the interface of scikit-learn."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import Tags, check_array, check_consistent_length

from singa_dask.algorithms.metrics import r2
from singa_dask.data.columns import Channels
from singa_dask.data.containers import is_lazy, is_table
from singa_dask.estimators import arrays
from singa_dask.estimators.base import Estimator
from singa_dask.job.stores import row_shape


class Regressor(RegressorMixin, Estimator):
    """A net that predicts numbers, with scikit-learn's interface.

        regressor = Regressor(epochs=200, random_state=0).fit(X, y)
        regressor.predict(X), regressor.score(X, y)

    y: (N,), (N, outputs), or fields (N, ...). normalise: features and targets; predictions are in the units of y.
    With RecordInput(sequence=48, horizon=24) as the first layer, X and y are records in the order of time, and windows
    of 48 predict the next 24 values of y. All else is as in Classifier, but for class_weight, classes_ and
    predict_proba.
    """

    classifies: ClassVar[bool] = False
    # As scikit-learn's regressors do: the same prediction for a row, whatever rows are beside it.
    in_float64: ClassVar[bool] = True

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from new parameters. sample_weight: (N,), how much each sample counts."""
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one more epoch, on these samples."""
        return self._fit(X, y, sample_weight, epochs=1, goes_on=hasattr(self, "model_"))

    def predict(self, X: Any) -> Any:
        """The predicted targets, shaped as those in `fit`.   (N, ...) -> (N,), (N, outputs) or (N, ...)

        Of a net that reads windows of T records, the `horizon` targets after each window: (N - T + 1, horizon, ...).
        The last one is the forecast from all of X.
        """
        predicted = self._output(X)
        shape = self._shape_of_answers
        column = self._known().targets
        first = column is not None and column.channels is Channels.FIRST
        channels = len(shape) - len(self._target_shape) + 1 if first else None
        shaped = partial(_shaped, shape=shape, channels=channels)
        if not is_lazy(predicted):
            return self._labelled(shaped(predicted), X)
        if is_table(predicted):
            return predicted if shape else predicted[predicted.columns[0]]
        chunks = (predicted.chunks[0], *((size,) for size in shape))
        axes = {"drop_axis": [*range(1, predicted.ndim)], "new_axis": [*range(1, len(shape) + 1)] or None}
        return self._labelled(predicted.map_blocks(shaped, dtype=predicted.dtype, chunks=chunks, **axes), X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R2, the mean over targets, as `Model.evaluate` measures it. Of fields, channels are the targets, and each
        position counts as a sample; of windows with several targets, so does each record of the horizon. With one
        target, each record of the horizon is a target. Of windows, over those whose horizon is in y.

        Raises ValueError if y has another shape than the predictions."""
        predicted, y, sample_weight = self._scored(X, y, sample_weight)
        y = self._checked_answers(y)
        check_consistent_length(predicted, y, sample_weight)
        if [size for size in y.shape[1:] if size > 1] != [size for size in predicted.shape[1:] if size > 1]:
            raise ValueError(f"y must have the shape of the predictions, {predicted.shape}. Received: {y.shape}.")
        y = y.reshape(predicted.shape)
        if sample_weight is not None:
            sample_weight = arrays.weights_of(sample_weight, y, scaled=True)
        column, shape = self._known().targets, tuple(predicted.shape[1:])
        if column is not None:
            shape = row_shape(0 if self._windows is None else self._windows.horizon, column.net_shape)
            if column.channels is Channels.FIRST:
                last = -len(column.shape)
                predicted, y = (np.moveaxis(np.asarray(each), last, -1) for each in (predicted, y))
        return r2(predicted, y, shape, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _checked_answers(self, y: Any) -> Any:
        arrays.check_numbers(y, "y")
        arrays.check_known(y)
        y = check_array(y, ensure_2d=False, allow_nd=True, input_name="y", estimator=self)
        return y if y.dtype in (np.float32, np.float64) else y.astype(np.float64)

    def _describe_answers(self, y: Any, classes: Any) -> None:
        self._target_shape = tuple(map(int, y.shape[1:]))

    def _options(self) -> dict[str, Any]:
        return {"targets": True}

    def _outputs(self) -> int:
        return prod(self._target_shape)

    @property
    def _shape_of_answers(self) -> tuple[int, ...]:
        """The shape of a prediction: of one target, of a window (horizon, ...)."""
        return self._target_shape if self._windows is None else (self._windows.horizon, *self._target_shape)


def _shaped(predicted: np.ndarray, shape: tuple[int, ...], channels: int | None) -> np.ndarray:
    """Predictions in the shape of the targets. channels: the axis of these that has them; nets have them last."""
    if channels is None:
        return predicted.reshape(len(predicted), *shape)
    inside = (*shape[: channels - 1], *shape[channels:], shape[channels - 1])
    return np.moveaxis(predicted.reshape(len(predicted), *inside), -1, channels)
