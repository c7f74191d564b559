"""Input layers: they bring the loader's samples into the shape of the net.

B samples of sample shape S.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np

from singa_dask.errors import ConfigError, DataError
from singa_dask.files import check_regular
from singa_dask.job.job_pb2 import LayerProto
from singa_dask.job.stores import answers_of, net_shape, records_of, row_shape, store_of
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.normalisation import Normalisation
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops import Ops
from singa_dask.ops.arrays import Array


class InputLayer(Layer):
    """A layer without sources: `forward(ctx, features)` gets the loader's samples."""

    num_sources: ClassVar[tuple[int, int | None]] = (0, 0)
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH,)

    def _computed(self, sources: tuple[Any, ...]) -> Any:
        hint = "Use it in a net: call it on layers, or put it into a list."
        raise self.problem(f"{type(self).__name__} cannot be called on arrays", hint=hint)

    @property
    def sample_shape(self) -> Shape:
        """The sample shape from store_conf.shape: (C, ...) -> (..., C), (H, W) -> (H, W, 1), (D,) -> (D,).

        Raises ConfigError if it is missing or not positive.
        """
        return self._net_shape("shape", "Set it, or take it from the shards: check without --no-data.")

    @property
    def target_shape(self) -> Shape | None:
        """The shape of a sample's target in the net, or of its labels if these are of positions; None where a sample
        has one label."""
        return None

    @property
    def labels_positions(self) -> bool:
        """Whether a sample has labels of positions, of the shape `target_shape`."""
        return False

    def labels(self, ops: Ops, labels: Array) -> Array:
        """The labels on the device: class labels as they are given, targets in their shape in the net.

        Raises DataError if targets have another shape.
        """
        return ops.asarray(labels)

    def no_labels(self, rows: int) -> np.ndarray:
        """Zeros in place of the labels or targets of `rows` rows."""
        return np.zeros(rows, np.int64)

    @cached_property
    def normalisation(self) -> Normalisation:
        """That of samples in their shape in the net."""
        return Normalisation()

    @cached_property
    def target_normalisation(self) -> Normalisation:
        """That of targets in their shape in the net."""
        return Normalisation()

    def normalised(self, ops: Ops, x: Array) -> Array:
        """Samples in the units of the data, (B, ...), as the loader would give them to `forward`.

        Raises DataError if they have another shape.
        """
        return self.normalisation.apply(ops.xp, self.forward(Context(ops), x))

    def normalised_labels(self, ops: Ops, labels: Array) -> Array:
        """Labels, or targets in the units of the data, as the loader would give them."""
        labels = self.labels(ops, labels)
        return labels if self.target_shape is None else self.target_normalisation.apply(ops.xp, labels)

    def _net_shape(self, field: str, hint: str) -> Shape:
        shape = tuple(getattr(self.proto.store_conf, field))
        if not 1 <= len(shape) <= 4 or min(shape) < 1:
            message = f"store_conf.{field} must be values; height, width; or channels and 2 or 3 positive dimensions"
            raise self.problem(message, list(shape) or "none", hint)
        return net_shape(shape)


class RecordInput(InputLayer):
    """y = x: records of HDF5 shards, read and normalised by the loader.   x, y: (B, S).

    store_conf: shape (one sample: values; height, width; channels, height, width; or channels and three dimensions),
    target_shape (of one target, likewise) or label_shape (of the labels of one sample, such as height, width; without
    both it has one), and what the loader reads: backend, path, column, label, batchsize, normalisation, shuffle,
    random_skip, has_label, sequence, lookahead, horizon, stride, series, time_steps, lengths.

    With sequence a row is K = sequence + lookahead consecutive records, each of shape S: x, y: (B, K) if S is one
    value, else (B, K, S). Row b of the next mini-batch starts `sequence` records later; with horizon or stride, rows
    are windows in random order, and with horizon H the target of a row is that of the H records after it. With
    time_steps K each sample is such a row, with one label or target; lengths: the column with the steps that count.
    """

    known_by_type: ClassVar[bool] = True
    type: ClassVar[str] = "kRecordInput"
    conf_field: ClassVar[str | None] = "store_conf"

    @property
    def sample_shape(self) -> Shape:
        return row_shape(records_of(self.proto.store_conf), super().sample_shape)

    def setup(self, *src: Shape) -> Shape:
        self.sources(src)
        self._shape = self.sample_shape
        return self._shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        return self._arranged(ctx.ops, x[0], "shape", self._shape, records_of(self.proto.store_conf))

    @property
    def target_shape(self) -> Shape | None:
        """From store_conf.target_shape or label_shape by the rule of `sample_shape`; of a sequence (K, ...), with a
        horizon of H records (H, ...), or (H,) if a target is one value."""
        store = self.proto.store_conf
        if not (store.target_shape or store.label_shape):
            return None
        if store.target_shape and store.label_shape:
            message = "store_conf.target_shape is given, and label_shape too"
            raise self.problem(message, list(store.label_shape), "Labels are classes, targets are numbers: give one.")
        shape = self._net_shape(self._answers, "Write target_shape: 1 for one number.")
        if store.horizon:
            return row_shape(store.horizon, shape)
        return (answers, *shape) if (answers := answers_of(store)) else shape

    @property
    def labels_positions(self) -> bool:
        return bool(self.proto.store_conf.label_shape)

    @property
    def _answers(self) -> str:
        return "label_shape" if self.labels_positions else "target_shape"

    def no_labels(self, rows: int) -> np.ndarray:
        answers, target = answers_of(self.proto.store_conf), self.target_shape
        if target is not None:
            none = np.zeros((rows, *target), np.float32)
            none[..., : len(target[-1:])] = 1  # labels of classes, and shares of classes that add up to 1
            return none
        return np.zeros((rows, answers) if answers else rows, np.int64)

    def labels(self, ops: Ops, labels: Array) -> Array:
        shape = self.target_shape
        if shape is None:
            return super().labels(ops, labels)
        return self._arranged(ops, labels, self._answers, shape, answers_of(self.proto.store_conf))

    @cached_property
    def normalisation(self) -> Normalisation:
        return self._normalisation("shape", target=False)

    @cached_property
    def target_normalisation(self) -> Normalisation:
        return self._normalisation("target_shape", target=True)

    def _normalisation(self, field: str, *, target: bool) -> Normalisation:
        store = self.proto.store_conf
        shape = net_shape(tuple(getattr(store, field)))
        try:
            return Normalisation.of(store, shape, target=target) if shape else Normalisation()
        except ConfigError as error:
            raise ConfigError([replace(p, key=f"layer {self.name!r}.{p.key}") for p in error.problems]) from None

    def _arranged(self, ops: Ops, x: Array, field: str, shape: Shape, records: int) -> Array:
        x = ops.asarray(x, ops.dtype)
        try:
            return ops.xp.ascontiguousarray(arrange(ops.xp, x, shape, records))
        except ValueError:
            what, store = {"shape": "samples", "label_shape": "labels"}.get(field, "targets"), self.proto.store_conf
            read = f" of sequence {store.sequence} + lookahead {store.lookahead} records" if store.sequence else ""
            read += " (give whole windows, or shards in the order of time)" if store.horizon else ""
            read += f" of {store.time_steps} time steps" if store.time_steps else ""
            larger = field == "shape" and not records and _is_larger(x.shape[1:], shape)
            way = ". `Model.predict_field` predicts fields that are larger than the net's input" if larger else ""
            raise DataError(
                f"layer {self.name!r}: {what} of shape {x.shape[1:]} do not fit store_conf.{field} "
                f"{list(getattr(store, field))}{read} ({shape} inside){way}"
            ) from None


class CSVInput(RecordInput):
    """y = x: rows of a CSV file that `singa-dask shard csv` converted to shards.   x, y: (B, S).

    store_conf: as RecordInput.
    """

    type: ClassVar[str] = "kCSVInput"


class CharRNN(RecordInput):
    """y = x: the numbers of K = unroll_len + 1 consecutive characters of a text.   x, y: (B, K), B = batchsize.

    Row b of the next mini-batch starts with the last character of this one, so that a net can carry over its state.
    char_rnn_conf: path (a folder of shards from `singa-dask shard text`, or a named data set), vocab_path (optional: a
    file or shards with the same vocabulary as path), unroll_len, batchsize.
    """

    type: ClassVar[str] = "kCharRNN"
    conf_field: ClassVar[str | None] = "char_rnn_conf"

    def setup(self, *src: Shape) -> Shape:
        # The loader reads store_conf. Keep it out of the job, which may be written to a file.
        proto = LayerProto()
        proto.CopyFrom(self.proto)
        proto.store_conf.CopyFrom(store_of(proto))
        self.proto = proto
        return super().setup(*src)


def _is_larger(field: Shape, shape: Shape) -> bool:
    """Whether a field, with its channels last, first or none, is at least as large as `shape` along each axis."""
    orders = [(*field, 1), field, (*field[1:], *field[:1])]
    same = [order for order in orders if len(order) == len(shape) > 1 and order[-1] == shape[-1]]
    return any(all(n >= least for n, least in zip(order, shape, strict=True)) for order in same)


def arrange(xp: Array, x: Array, shape: Shape, records: int = 0) -> Array:
    """x (B, ...) with samples of `shape`: (C, ...) fields with channels in front become (..., C). records: that a
    sample has, along its first axis, 0 if it is a single one.

    Values that are all on one axis are records one after the other, and fields with the channels in front; samples of
    any shape become vectors, in their order. Raises ValueError if samples have another shape.
    """
    sample = tuple(x.shape[1:])
    if sample == shape:
        return x
    if prod(sample) != prod(shape):
        raise ValueError(f"samples of shape {sample} are not of shape {shape}")
    if records:
        if len(sample) > 1 and sample[0] != records:
            raise ValueError(f"samples of shape {sample} are not {records} records")
        record = sample[1:] or (prod(shape[1:]),)
        return arrange(xp, x.reshape(-1, *record), shape[1:] or (1,)).reshape(len(x), *shape)
    if len(shape) == 1:
        return x.reshape(len(x), *shape)
    *size, channels = shape
    first = channels, *size
    if sample in (first, (prod(shape),)) or (channels == 1 and sample == tuple(size)):
        return xp.moveaxis(x.reshape(len(x), *first), 1, -1)
    raise ValueError(f"samples of shape {sample} are not fields of shape {shape}")


def read_statistic(layer: Layer, path: str, name: str, shape: Shape) -> np.ndarray:
    """Data set `name` of an HDF5 file, in the sample shape. Raises ConfigError if it is missing or does not fit."""
    import h5py

    try:
        check_regular(path)
        with h5py.File(path, "r") as file:
            if name not in file or not isinstance(file[name], h5py.Dataset):
                hint = f"It has: {', '.join(file) or 'none'}."
                raise layer.problem(f"the file has no data set {name!r}", path, hint)
            array = file[name][()]
    except OSError as error:
        raise layer.problem(f"the file with the {name} cannot be read: {error}", path) from error
    try:
        return np.ascontiguousarray(arrange(np, np.asarray(array, np.float64)[None], shape)[0])
    except ValueError:
        received = f"shape {np.shape(array)} in {path}"
        raise layer.problem(f"the {name} must have the shape of a sample, {shape}", received) from None
