"""What an estimator is given, as shards and the model take it: checked, paired and described as in `fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from singa_dask.data import labelled, rows
from singa_dask.data.columns import stored_dtype
from singa_dask.data.containers import columns_of, is_lazy, is_table
from singa_dask.data.encoders import DATES
from singa_dask.data.listed import listed, names_in
from singa_dask.data.manifest import Manifest
from singa_dask.data.native import check_at_hand
from singa_dask.data.schema import COLUMN, Along, check_turned, check_units, of_columns
from singa_dask.data.windows import Step
from singa_dask.estimators import arrays
from singa_dask.estimators.sequences import (
    LENGTH,
    Padded,
    is_ragged,
)
from singa_dask.estimators.windows import Windows, at_hand, check_order, check_steps, dates_of, steps_of
from singa_dask.inference.model import Model
from singa_dask.inference.predicting import arrays_of


class EstimatorInputs(BaseEstimator):
    """X, y and weights of an estimator's calls. model_, _windows, _steps: of the last training."""

    missing: Any
    model_: Model
    _windows: Windows | None
    _steps: dict[str, Step]

    def predict(self, X: Any) -> Any:
        raise NotImplementedError

    def _checked_answers(self, y: Any) -> Any:
        """A NumPy array of labels or targets that are not those of Dask, checked as scikit-learn does."""

    def _named(self, x: Any) -> Any:
        """An array as a DataFrame if the columns of the table in fit had names, which the model knows then. Raises
        ValueError if it has another number of them."""
        names = getattr(self, "feature_names_in_", None)
        if names is None or is_table(x) or self.missing == "mask":
            return x
        if is_lazy(x):
            if x.ndim != 2 or x.shape[1] != len(names):
                raise ValueError(f"X has samples of shape {x.shape[1:]}, but it was fitted to {', '.join(names)}.")
            from dask.dataframe import from_dask_array

            return from_dask_array(x.rechunk({1: -1}), columns=[*names])
        import pandas

        table = pandas.DataFrame(x, columns=names)
        table.attrs["units"] = self._units
        return table

    @property
    def _fills(self) -> bool:
        return self.missing != "error"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._fills
        return tags

    def _taken(self, x: Any, y: Any, weight: Any = None, *, first: bool) -> tuple[Any, Any, Any]:
        """Features, labels or targets, and weights: see `_features`; y of NumPy arrays is one too."""
        x, y, weight = self._without_labels(x, y, weight, first=first)
        x = self._features(x, first=first)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        if is_lazy(y) and is_table(y):
            y = y[y.columns[0]] if len(y.columns) == 1 else y
        if not (is_lazy(x) and is_lazy(y)):
            y = self._checked_answers(y)
        if not is_lazy(x):
            check_consistent_length(x.x if isinstance(x, Padded) else x, y)
        return x, y, weight

    def _features(self, x: Any, *, first: bool = False) -> Any:
        """X as shards and the model take it: a table, whose columns have encoders, a Dask collection, or an array that
        is checked as scikit-learn does. Raises ValueError."""
        lengths = None
        if isinstance(x, Mapping) and not hasattr(x, "shape"):
            raise ValueError(arrays.of_mapping(x, "X", "an array or a DataFrame"))
        if not first:
            self._check_kind(x)
        x = arrays.known_container(x)
        if first:
            self._tabular, self._ragged = is_table(x) and (is_lazy(x) or not arrays.of_numbers(x)), is_ragged(x)
        if is_lazy(x):
            if first:
                validate_data(self, x, reset=True, skip_check_array=True)
                if self._tabular:
                    self.feature_names_in_ = np.array([str(name) for name in x.columns], dtype=object)
            elif is_table(x) and not self._tabular:
                x = columns_of(x, getattr(self, "feature_names_in_", None))
        elif is_table(x) and self._tabular:
            validate_data(self, x, reset=first, skip_check_array=True)
        else:
            if self._ragged:
                padded = Padded.of(x, None if first else self._sample_shape[0])
                x, lengths = padded.x, padded.lengths
            if not first and getattr(x, "ndim", 0) > 2:
                self._check_samples(x)
            arrays.check_numbers(x, "X")
            finite = "allow-nan" if self._fills else True
            try:
                x = validate_data(self, x, reset=first, allow_nd=True, ensure_all_finite=finite)
            except ValueError as error:
                if "contains NaN" not in str(error):
                    raise
                hint = 'Say what replaces them: missing="mean", a number, or "mask"; or leave out these samples.'
                raise ValueError(f"Input X contains NaN: it has missing values. {hint}") from error
            x = x if stored_dtype(x.dtype) else x.astype(np.float64)
        if first:
            self._sample_shape: tuple[int, ...] = tuple(map(int, x.shape[1:]))
        elif not is_table(x):
            self._check_samples(x)
        return x if lengths is None else Padded(x, lengths)

    def _check_samples(self, x: Any) -> None:
        """Raise ValueError if an array has other samples than those of `fit`."""
        shape = tuple(x.shape[1:])
        if len(shape) != len(self._sample_shape) or (shape != self._sample_shape and not is_lazy(x)):
            raise ValueError(f"X has samples of shape {shape}, but it was fitted to {self._sample_shape}.")

    def _check_kind(self, x: Any) -> None:
        """Raise ValueError if X is no table, and must be one for its texts or dates."""
        encoders = self._known().encoders if self._tabular and hasattr(self, "model_") else ()
        others = [each.column for each in encoders if each.kind != "number"]
        if others and not is_table(arrays.known_container(x)):
            names = ", ".join(each.column for each in encoders)
            raise ValueError(
                f"X must be a DataFrame with the columns {names}, as in fit, where {others[0]!r} had texts or dates. "
                f"Received: {type(x).__name__} of shape {np.shape(x)}. Give it as pandas.DataFrame(X, columns=[...])."
            )

    def _without_labels(self, x: Any, y: Any, weight: Any = None, *, first: bool = False) -> tuple[Any, Any, Any]:
        """The values of DataArrays, and of Datasets with their variables as channels; all else as it is. Raises
        DataError for samples that do not suit those of fit, and for answers and weights of other rows."""
        self._index = rows.order_of(x)
        for what, each in (("X", x), ("y", y), ("sample_weight", weight)):
            check_at_hand(what, each)
        x, y, weight = map(labelled.with_gaps, (x, y, weight))
        fitted = (None, None) if first else self._labels
        # Beside an array or a Dataset, the answers stay one: its coordinates pair the rows.
        y = y if labelled.is_labelled(x) else labelled.as_table(y)
        x = x if labelled.as_table(x) is not x else labelled.stacked(x, "X", fitted[0].variables if fitted[0] else ())
        of_y = labelled.stacked(y, "y", fitted[1].variables if fitted[1] else ())
        if of_y is not y and labelled.has_other_variables(of_y, x):
            of_y = of_y.rename({labelled.VARIABLE: labelled.OUTPUT})
        y = of_y
        if hasattr(weight, "data_vars"):
            one = len(weight.data_vars) == 1
            weight = labelled.first_array(weight) if one else labelled.stacked(weight, "sample_weight")
        if labelled.is_labelled(x) and labelled.is_labelled(y) and not hasattr(x, "data_vars"):
            x, y = labelled.paired(x, y)
        y, weight = _beside(x, y, weight)
        sequences = listed(x, "X", fitted[0].along if fitted[0] else None)
        x = sequences.values if sequences else arrays.known_container(labelled.as_table(x))
        if is_table(x) and fitted[0] and not hasattr(self, "feature_names_in_"):
            x = columns_of(x, names_in(fitted[0].along, x.columns, 1))
        y = arrays.known_answers(y)
        weight = arrays.known_weights(weight)
        answers = [str(name) for name in y.columns] if is_table(y) else None
        if first:
            self._answer_names = answers
        elif answers is not None and self._answer_names is not None:
            y = columns_of(y, self._answer_names, "y")
        units = dict(getattr(x, "attrs", {}).get("units", {})) if is_table(x) else {}
        if first:
            self._units = units
            of_x = sequences.labels if sequences else labelled.labels_of(x, "X")
            if is_table(x):
                of_x = labelled.Labels((), {}, Along((COLUMN,), of_columns(x.columns)))
            self._labels: tuple[labelled.Labels | None, ...] = (of_x, labelled.labels_of(y, "y"))
        for name, own in units.items():
            check_units(self._units.get(name, ""), own, f"X: column {name!r}", "fit")
        given = {"X": x, "y": y}
        x, y = (
            labelled.turned(each, of.along, what) if of else each
            for each, what, of in zip((x, y), "Xy", self._labels, strict=True)
        )
        labelled.check_turned(given, {"X": x, "y": y})
        if labelled.is_labelled(x):
            self._index = rows.order_of(x)  # with the samples along its first dimension
        if sequences and not labelled.is_labelled(y):
            check_turned(sequences.moved, {"y": np.shape(y)[1:]}, "the training data")
        x, y, weight = map(labelled.values_of, (x, y, arrays.known_container(weight)))
        return x, y, weight

    def _labelled(self, predicted: Any, x: Any, last: str = "output", classes: Any = None) -> Any:
        """Predictions as a DataArray if x is one or a Dataset. last: the name of their last axis, of the classes."""
        of, answers = self._labels
        if not labelled.is_labelled(x) or of is None or self._windows is not None:
            return predicted
        if labelled.as_table(x) is not x:  # only its rows matter
            given = x = labelled.first_array(x)
        else:
            given = labelled.stacked(x, "X", of.variables)
            x = labelled.turned(given, of.along, "X", warns=Along())
        own, name = {} if classes is None else {last: classes}, None
        dims: Sequence[str] = labelled.dims_of(x, predicted.shape[1:], last)
        coords: Mapping[str, Any] = own
        if answers is not None and len(answers.dims) + len(own) == predicted.ndim:
            dims, coords, name = (*answers.dims[1:], *own), {**answers.coords, **own}, answers.name
        return labelled.as_given(labelled.labelled(predicted, x, dims, coords, name), given)

    def _known(self) -> Manifest:
        """The description of the data so far."""
        return Manifest(0, self.model_.known.inputs[self.model_.net.input_layers[0]].schema, 1, ())

    def _output(self, x: Any) -> Any:
        """The net's output for every row, lazily for a Dask collection; for every window if the net reads these."""
        check_is_fitted(self, "model_")
        given, first = self._features(self._without_labels(x, None)[0]), self.model_.net.input_layers[0]
        if isinstance(given, Padded):
            given = {first: given.x, LENGTH: given.lengths[:, np.newaxis]}
        if self._windows is not None:
            if is_lazy(given):
                raise ValueError("Windows are predicted from arrays in memory: give X.compute(), or a part of X.")
            dates = [each.column for each in self._known().encoders if each.kind in DATES]
            starts = self._series(given, self._index, dates)
            given, _ = arrays_of(self.model_, given)
            given, inside = self._windows.features(given[first] if isinstance(given, dict) else given, starts)
            return self.model_.predict(given)[inside]
        found = self.model_.predict(given)
        return found.to_numpy() if is_table(found) and not is_lazy(found) else found

    def _series(self, x: Any, index: Any, dates: Sequence[str] = (), *, fits: bool = False) -> list[int]:
        """The first record of each series but the first one, if the net reads windows. x: as `_features` returns it.
        dates: columns. Raises ValueError if the records of a series are not in the order of time."""
        if self._windows is None:
            return []
        starts = self._windows.starts(x, getattr(self, "feature_names_in_", ()))
        known, index = {name: x[name] for name in dates}, at_hand(index)
        check_order(index, known, starts, warns=not (fits and is_table(x)))
        steps = steps_of(index, dates_of(x) | known, starts)
        check_steps(steps, self._steps)
        self._steps = self._steps or steps
        return starts

    def _scored(self, x: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """Predictions, the answers to these, and weights, row by row; of windows those whose horizon is in y."""
        given = x
        x, y, weight = self._without_labels(x, y, weight)
        if self._windows is not None:
            starts = self._windows.starts(self._features(x), getattr(self, "feature_names_in_", ()))
            return *self._windows.pair(self.predict(given), len(x), y, weight, starts), None
        predicted = self.predict(x)
        if any(map(is_lazy, (predicted, y, weight))):
            import dask

            predicted, y, weight = dask.compute(predicted, y, weight)
            y, weight = _beside(predicted, arrays.known_answers(y), weight)
        return predicted, y, weight


def _beside(x: Any, y: Any, weight: Any) -> tuple[Any, Any]:
    """Answers and weights with the rows of X, or else the weights with those of y. Raises DataError."""
    y, weight = (rows.beside(x, each, what) for each, what in ((y, "y"), (weight, "sample_weight")))
    return y, rows.in_rows(y, weight, "sample_weight", other="y")
