"""What a trained net knows of its data: names of classes, targets and columns, and the encoders of tables."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from singa_dask.data.columns import Channels, Column, Fill, Role
from singa_dask.data.encoders import DATES, is_plain_number
from singa_dask.data.listed import names_in
from singa_dask.data.manifest import Manifest
from singa_dask.data.manifest_reader import read_description
from singa_dask.data.schema import COLUMN, SEPARATOR, STEP, Along, Schema, check_units, of_columns
from singa_dask.data.store import columns_of
from singa_dask.errors import DataError, nearest
from singa_dask.job.job_pb2 import StoreProto
from singa_dask.job.stores import answers_of, records_of, row_shape
from singa_dask.layers.input import InputLayer, arrange
from singa_dask.net import Net, inputs_of
from singa_dask.net.rows import mixing

logger = logging.getLogger(__name__)

_NUMBERS = set("?bBhHiIlLqQefd")


@dataclass(frozen=True)
class Described:
    """The data of one input layer. column: what it outputs; answers: its labels or targets, or None."""

    column: Column
    answers: Column | None
    schema: Schema

    @classmethod
    def of(cls, store: StoreProto, text: str) -> Described:
        """From `Manifest.description`. Raises DataError, ConfigError."""
        schema = _schema(text)
        trained = StoreProto()
        trained.CopyFrom(store)  # of data to predict, which may have no labels
        trained.has_label = any(column.role in (Role.LABEL, Role.TARGET) for column in schema.columns)
        return cls(*columns_of(trained, Manifest(0, schema, 1, ())), schema)

    @property
    def raw_names(self) -> tuple[str, ...]:
        """The columns of the table that the features are made of; empty if they have no names."""
        return tuple(encoder.column for encoder in self.schema.encoders) or self.column.names

    @property
    def fill(self) -> Fill | None:
        """Of arrays; of those in place of a table, NaN for columns without one."""
        if self.column.role is not Role.FEATURE or not self.schema.encoders:
            return self.column.fill
        values = [one.fill_of_number for one in self.schema.encoders for _ in one.names]
        return None if all(map(math.isnan, values)) else Fill(tuple(values))

    def along(self, column: Column) -> Along:
        """What is known of the samples of the column or of the answers; of a table, the names of its columns."""
        known = self.schema.reading.along(column.name)
        if known.dims or not column.names or len(column.shape) != 1:
            return known
        return known._replace(dims=(COLUMN,), coordinates=of_columns(column.names))

    def names(self, column: Column, columns: Iterable[Any]) -> Sequence[str]:
        """Those of the columns of a table that are the values of the column or of the answers; none if these have no
        names."""
        return column.names or names_in(self.along(column), columns, 1) or ()

    def filled(self, x: np.ndarray, store: StoreProto) -> np.ndarray:
        """Samples as an input layer takes them, (n, ...), without missing values. Those of another number of values
        stay."""
        fill, raw, flat = self.fill, self.column.raw, len(store.shape) == 1
        records = 0 if store.time_steps else records_of(store)
        if fill is None or not len(x) or prod(x.shape[1:]) != prod(_stored(raw, records)):
            return x
        if len(raw.shape) > 1 and not flat:
            try:
                return fill.apply(arrange(np, x, row_shape(records, raw.net_shape), records))
            except ValueError:
                return x
        first = raw.channels is Channels.FIRST
        return fill.apply(x.reshape(-1, *(raw.shape or (1,))), 1 if first else -1).reshape(len(x), -1)

    def check_shape(self, sample: tuple[int, ...], store: StoreProto) -> None:
        """Raise DataError for samples of another shape than in training that a net of vectors would flatten."""
        records = 0 if store.time_steps else records_of(store)
        known = [_stored(column, records) for column in (self.column.raw, self.column)]
        if len(store.shape) == 1 < len(sample) and len(known[0]) > 1 and sample not in known:
            raise DataError(f"x: samples have the shape {sample}, and those of the training data {known[0]}.")

    @property
    def texts_and_dates(self) -> dict[str, str]:
        """The types of the columns of a table that a CSV file would not tell: texts that may look like numbers or
        dates, and dates."""
        types = {encoder.column: encoder.kind for encoder in self.schema.encoders if encoder.kind in DATES}
        for encoder in self.schema.encoders:
            if encoder.categorical and not all(map(is_plain_number, encoder.categories)):
                types[encoder.column] = "text"
        for column in self.schema.columns:
            if isinstance(column.classes, tuple) and not all(map(is_plain_number, column.classes)):
                types[raw_name(column)] = "text"
        return types

    def features(self, table: Any, filled: Counter[str] | None = None) -> np.ndarray:
        """The features of a DataFrame, or of a mapping from columns to arrays: (rows, D) float32. filled: see `apply`.

        Raises DataError that names the column.
        """
        for name, units in getattr(table, "attrs", {}).get("units", {}).items():
            known = self.schema.reading.units.get(name, "")
            check_units(known, units, f"column {name!r}", "the training data")
        if self.schema.encoders:
            return self.schema.encoders.apply(table, filled)
        named = {str(name): name for name in table}  # names may be numbers, or tuples
        names = self.names(self.column, named)
        if not names:
            logger.warning("the net knows no names of columns: those of the table are taken by their places.")
        return numbers(table, names or tuple(named))


def _stored(column: Column, records: int) -> tuple[int, ...]:
    """The shape of a sample as it is stored, of a sequence with its records first."""
    return (records, *column.shape) if records else column.shape


@lru_cache(maxsize=16)
def _schema(text: str) -> Schema:
    return read_description(text)


@dataclass(frozen=True)
class KnownData:
    """What a net and the descriptions of its data say about its inputs and outputs. texts: by input layer."""

    net: Net
    texts: Mapping[str, str]

    @cached_property
    def inputs(self) -> dict[str, Described]:
        """The data of the input layers that are described, by layer."""
        return {
            name: Described.of(self.store(name), self.texts[name])
            for name in self.net.input_layers
            if name in self.texts
        }

    @cached_property
    def needed(self) -> list[str]:
        """The input layers whose samples the predictions depend on."""
        names = {name for output in self.net.predictions() for name in inputs_of(self.net, output)}
        return [name for name in self.net.input_layers if name in names]

    @property
    def answering(self) -> list[str]:
        """The input layers with the labels or targets of the predictions."""
        names = {self.answered_by(output) for output in self.net.predictions()}
        return [name for name in self.net.input_layers if name in names]

    @property
    def read(self) -> list[str]:
        """The input layers that are needed or answer."""
        return [name for name in self.net.input_layers if name in {*self.needed, *self.answering}]

    def filled(self, layer: str, x: Any) -> Any:
        """The samples of an input layer without those missing values that its training data had a replacement for.
        Raises DataError if they have another shape than the training data."""
        known = self.inputs.get(layer)
        if known is not None:
            known.check_shape(tuple(x.shape[1:]), self.store(layer))
        if known is None or known.fill is None or not (known.fill.flags or x.dtype.kind == "f"):
            return x
        return known.filled(self.net.ops.to_host(x), self.store(layer))

    def along(self, layer: str, *, answers: bool = False) -> Along:
        """What is known of the samples that an input layer reads, or of its labels or targets: of rows of several
        records, these are along STEP."""
        known = self.inputs.get(layer)
        column = None if known is None else known.answers if answers else known.column
        if known is None or column is None:
            return Along()
        along = known.along(column)
        steps = along.dims and self.has_steps(layer, answers=answers)
        return along._replace(dims=(STEP, *along.dims)) if steps else along

    def has_steps(self, layer: str, *, answers: bool = False) -> bool:
        """Whether a row that an input layer reads, or its labels or targets, are of several records."""
        store = self.store(layer)
        return (answers_of(store) if answers else store.sequence and records_of(store)) > 0

    def store(self, name: str) -> StoreProto:
        """The store_conf of an input layer."""
        return self.net.layers[name].proto.store_conf

    def answered_by(self, output: str) -> str | None:
        """The input layer with the labels or targets of an output."""
        names = [layer.name for layer in self.net.labels_from(output) if isinstance(layer, InputLayer)]
        return names[0] if names else None

    def classifies(self, output: str) -> bool:
        """Whether an output is class probabilities."""
        return self.net.predictions()[output]

    def labels_positions(self, output: str) -> bool:
        """Whether an output is classes of positions."""
        name = self.answered_by(output)
        return name is not None and self.net.input_layer(name).labels_positions

    def classes(self, output: str) -> tuple[str, ...] | None:
        """The names of the classes of the labels of an output, if they are known."""
        return class_names(self.answers(output))

    def names(self, output: str) -> list[str]:
        """The names of the values of an output: of classes, of the values of the target, or else numbers."""
        shape, classifies = self.net.shapes[output], self.classifies(output)
        width = shape[-1] if classifies else prod(shape)
        answered = self.answered_by(output)
        horizon = self.store(answered).horizon if answered else 0
        return value_names(self.answers(output), width, classifies=classifies, horizon=horizon)

    def units(self, output: str) -> dict[str, str]:
        """The units of the values of an output by their names, of those whose target has units."""
        known = self.inputs.get(self.answered_by(output) or "")
        if known is None or known.answers is None or self.classifies(output):
            return {}
        units, column = known.schema.reading.units, known.answers
        found = {name: units.get(name, units.get(column.name, "")) for name in self.names(output)}
        return {name: each for name, each in found.items() if each and SEPARATOR not in each}

    def comparable(self, layer: str, own: Column | None, where: object) -> Column | None:
        """Labels or targets of new data, or None, with a warning, if they are others than the net predicts."""
        trained = self.inputs[layer].answers if layer in self.inputs else None
        if own is None or trained is None:
            return own
        swapped = own.names != trained.names and {*own.names} == {*trained.names}
        if own.role is trained.role and prod(own.shape) == prod(trained.shape) and not swapped:
            return own
        told = ", and the net predicts the ".join(map(_in_words, (own, trained)))
        if (where, told) not in self._told:  # for another block
            self._told.add((where, told))
            hint = "no true values are written. For them, give the targets as in training"
            logger.warning("%s: has the %s: %s.", where, told, hint)
        return None

    def count_filled(self, x: Mapping[str, Any]) -> None:
        """Log how many of the samples have missing values that are replaced. x: arrays by input layer."""
        for layer in x.keys() & self.inputs.keys():
            array, known = x[layer], self.inputs[layer]
            if known.fill is not None and getattr(getattr(array, "dtype", None), "kind", "") == "f" and len(array):
                missing = (array != array).reshape(len(array), -1).any(axis=1)
                self.tell_of_filled({known.column.name: int(missing.sum())}, len(array))

    def tell_of_filled(self, filled: Mapping[str, int], rows: int) -> None:
        """Log in how many samples missing values of each column were replaced: the first time as a warning."""
        counts = {name: count for name, count in filled.items() if count}
        if counts:
            level = logging.WARNING if counts.keys() - self._filled else logging.INFO
            told = ", ".join(f"{name!r} in {count:,}" for name, count in counts.items())
            logger.log(level, "missing values were replaced as in training: %s of %s samples", told, f"{rows:,}")
            self._filled.update(counts)

    @cached_property
    def _filled(self) -> set[str]:
        return set()

    @cached_property
    def _told(self) -> set[tuple[object, str]]:
        return set()

    @cached_property
    def _mixing(self) -> list[str]:
        return mixing(self.net)

    def warn_of_mixing(self, batchsize: int, *, measures: bool = False) -> None:
        """Log once that results depend on the mini-batch, if rows of a layer depend on each other, which for those of
        a loss no prediction shows."""
        if found := [name for name in self._mixing if measures or not self.net.layers[name].is_loss]:
            told = "layer %r: its rows depend on each other, so results depend on the mini-batches, of %d samples. "
            hint = "BatchNorm, for one, computes with the statistics of training instead."
            logger.warning(told + hint, found[0], batchsize)
            self._mixing.clear()

    def answers(self, output: str) -> Column | None:
        """The labels or targets of an output, if they are described, with the name of their dataset."""
        known = self.inputs.get(self.answered_by(output) or "")
        if known is None or known.answers is None:
            return None
        path = known.schema.reading.datasets.get(known.answers.name, known.answers.name)
        return replace(known.answers, name=path.rpartition("/")[2])


def class_names(column: Column | None) -> tuple[str, ...] | None:
    """The names of the classes of labels."""
    return column.classes if column is not None and isinstance(column.classes, tuple) else None


def _in_words(column: Column) -> str:
    names = ", ".join(column.names[:8]) if column.names else f"{column.name!r} of shape {list(column.shape)}"
    return f"{column.role.value} {names}"


def raw_name(column: Column) -> str:
    """The name of labels or of a target of one value in the table that they come from."""
    return column.names[0] if column.shape == () and column.names else column.name


def value_names(column: Column | None, width: int, *, classifies: bool, horizon: int = 0) -> list[str]:
    """The names of the `width` values of one prediction: of the classes, or of the values of the target; with a
    horizon of each record ahead, counted from 1."""
    if horizon > 1 and not classifies and width % horizon == 0:
        names = value_names(column, width // horizon, classifies=False)
        return [f"{name}_{ahead}" for ahead in range(1, horizon + 1) for name in names]
    if classifies:
        classes = class_names(column) or ()
        return [classes[i] if i < len(classes) else str(i) for i in range(width)]
    if column is None or column.role is not Role.TARGET or prod(column.shape) != width:
        return [f"output_{i}" for i in range(width)]
    if column.shape == ():
        return [raw_name(column)]
    return list(column.names) or [f"{column.name}_{i}" for i in range(width)]


def numbers(table: Any, names: Iterable[str]) -> np.ndarray:
    """Columns of numbers, side by side: (rows, columns) float32. names: as texts. Raises DataError."""
    named, wanted = {str(name): name for name in table}, [*names]
    missing = [name for name in wanted if name not in named]
    if missing:
        hint = nearest(missing[0], named)
        raise DataError(f"the net was trained with the columns {', '.join(missing)}, which are missing. {hint}")
    names = [named[name] for name in wanted]
    if hasattr(table, "dtypes") and all(getattr(dtype, "char", "") in _NUMBERS for dtype in table.dtypes):
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(table[list(names)], np.float32)
    columns = [np.asarray(table[name]) for name in names]
    wrong = [str(name) for name, values in zip(names, columns, strict=True) if values.dtype.kind not in "biuf"]
    if wrong:
        raise DataError(f"the columns {', '.join(wrong)} are not numbers, and the net has no encoders for them.")
    return np.stack(columns, axis=1, dtype=np.float32, casting="unsafe")
