"""The columns of a data set: what shards hold of each sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

DTYPES = ("uint8", "int16", "int32", "int64", "float16", "float32", "float64")
MAX_SAMPLE_NBYTES = 256 << 20
MAX_RANK = 4
# The columns of data sets that have one of their kind.
X, Y, WEIGHT, MASK = "x", "y", "weight", "mask"
# Integers with more distinct values are labels only if that is said, or if there are many of each.
FEW_CLASSES = 20
SHOWN_FILLS = 4


class Role(StrEnum):
    """What a column is for. Labels are numbers of classes, one for a sample or for each of its positions; targets are
    the numbers that a net is to predict; a mask says which values of a target count. Row and file tell where a sample
    comes from, and time by what it was split; nets do not read them."""

    FEATURE = "feature"
    LABEL = "label"
    TARGET = "target"
    WEIGHT = "weight"
    MASK = "mask"
    ROW = "row"
    FILE = "file"
    TIME = "time"


# Of columns whose numbers have no mean.
NUMBERED = (Role.LABEL, Role.ROW, Role.FILE, Role.TIME)
IDENTITY = (Role.ROW, Role.FILE, Role.TIME)


class Channels(StrEnum):
    """Where a sample has its channels."""

    FIRST = "first"
    LAST = "last"
    NONE = "none"


# Of the names of columns, which are names of datasets.
NAME_RULE = "text of 1 to 200 characters without /"


def is_name(value: object) -> bool:
    """Whether a column may have this name."""
    return isinstance(value, str) and 0 < len(value) <= 200 and "/" not in value and value not in (".", "..")


@dataclass(frozen=True)
class Fill:
    """What replaces the missing values of an array. values: one, or one per channel or value of a vector. flags:
    whether as many channels or values follow, with 1 where a value is there, and 0 where it was missing."""

    values: tuple[float, ...]
    flags: bool = False

    def __str__(self) -> str:
        shown = ", ".join(f"{value:.5g}" for value in self.values[:SHOWN_FILLS])
        return f"{shown}{', ...' if len(self.values) > SHOWN_FILLS else ''}{' and flags' if self.flags else ''}"

    def apply(self, x: np.ndarray, axis: int = -1) -> np.ndarray:
        """Samples (n, ...) without missing values, and with the flags. axis: that of the channels."""
        there = ~np.isnan(x)
        if not there.all():
            shape = [1] * x.ndim
            shape[axis] = len(self.values)
            x = np.where(there, x, np.asarray(self.values, x.dtype).reshape(shape))
        return np.concatenate([x, there.astype(x.dtype)], axis) if self.flags else x


@dataclass(frozen=True)
class Column:
    """One column of a data set.

    dtype: as stored, one of DTYPES. shape: of one stored sample, () to 4 dimensions. classes: of a label, or the
    symbols of a text: their names, their number, or None if unknown. mean, std: over all samples: per channel; of a
    vector per value; else one value. names: of the values of a vector,
    or of the only value, as in the table that it comes from; or none. dataset: its path in the HDF5 files. fill: of
    missing values, which are an error without one. coded: labels were given as the places of their classes, although
    other numbers are the names of these.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    channels: Channels = Channels.NONE
    classes: tuple[str, ...] | int | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    names: tuple[str, ...] = ()
    dataset: str = ""
    fill: Fill | None = None
    coded: bool = False

    def with_fill(self, fill: Fill) -> Column:
        """The column of these samples after missing values were filled."""
        return replace(self._widened(2 if fill.flags else 1), fill=fill)

    @property
    def raw(self) -> Column:
        """The column before missing values were filled."""
        return replace(self._widened(0.5 if self.fill is not None and self.fill.flags else 1), fill=None)

    def _widened(self, factor: float) -> Column:
        shape = list(self.shape)
        if factor != 1:
            shape[self.channel_axis] = int(shape[self.channel_axis] * factor)
        return replace(self, shape=tuple(shape))

    def filled(self, x: np.ndarray) -> np.ndarray:
        """The samples (n, ...) of the raw column without missing values."""
        return x if self.fill is None else self.fill.apply(x, 1 if self.channels == Channels.FIRST else -1)

    def filled_like(self, trained: Column) -> bool:
        """Whether these samples are filled as those that a net was trained on; some without a fill have all values."""
        return self.fill == trained.fill or (self.fill is None and trained.fill is not None and not trained.fill.flags)

    @property
    def has_channels(self) -> bool:
        """Whether a sample has channels, or is a vector."""
        return self.channels != Channels.NONE or len(self.shape) == 1

    @property
    def channel_axis(self) -> int:
        """The axis of a sample with the channels, or the values of a vector."""
        return 0 if self.channels == Channels.FIRST else -1

    @property
    def num_classes(self) -> int | None:
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    @cached_property
    def values(self) -> int:
        """Values of a sample."""
        return math.prod(self.shape)

    @property
    def of_positions(self) -> bool:
        """Whether these are labels of positions, such as the pixels of an image or the steps of a sequence."""
        return self.role is Role.LABEL and (len(self.shape) > 1 or self.values > 1)

    @property
    def nbytes(self) -> int:
        """Bytes of a sample."""
        return self.values * np.dtype(self.dtype).itemsize

    @property
    def num_statistics(self) -> int:
        """Entries of `mean` and `std`."""
        if self.role in NUMBERED:
            return 1
        if self.channels == Channels.NONE:
            return self.shape[0] if len(self.shape) == 1 else 1
        return self.shape[0] if self.channels == Channels.FIRST else self.shape[-1]

    @property
    def statistics_axes(self) -> tuple[int, ...]:
        """The axes of a sample over which the statistics are taken."""
        rank = len(self.shape)
        if self.channels == Channels.NONE:
            return () if rank == 1 else tuple(range(rank))
        return tuple(range(1, rank)) if self.channels == Channels.FIRST else tuple(range(rank - 1))

    @property
    def job_shape(self) -> tuple[int, ...]:
        """The shape in the order of `store_conf.shape`: channels first. A scalar has the shape (1,)."""
        net = self.net_shape
        return net if len(net) == 1 else (net[-1], *net[:-1])

    @property
    def net_shape(self) -> tuple[int, ...]:
        """The shape in a net: channels last, of which a plane or volume without channels has one; a scalar is (1,)."""
        if self.channels == Channels.FIRST:
            return *self.shape[1:], self.shape[0]
        if self.channels == Channels.LAST or len(self.shape) == 1:
            return self.shape
        return (*self.shape, 1)


def guess_channels(shape: tuple[int, ...]) -> Channels | None:
    """Where samples of this shape have their channels; None if the shape does not tell.

    Of the first and the last axis, the channels are the one with at most 4 entries, or the one that differs where all
    other axes are equal. Samples of up to two dimensions have none.
    """
    if len(shape) < 3:
        return Channels.NONE
    first, last = shape[0] <= 4, shape[-1] <= 4
    if first == last:
        first = shape[0] != shape[-1] and len(set(shape[1:])) == 1
        last = shape[0] != shape[-1] and len(set(shape[:-1])) == 1
    if first == last:
        return None
    return Channels.FIRST if first else Channels.LAST


def as_map(raw: np.ndarray) -> np.ndarray:
    """Maps (rows, H, W) if these are (rows, H, W, 1) or (rows, 1, H, W), else the same array."""
    if raw.ndim != 4 or 1 not in (raw.shape[1], raw.shape[3]):
        return raw
    return raw[..., 0] if raw.shape[3] == 1 else raw[:, 0]


def map_dtype(classes: int, low: int = 0) -> np.dtype:
    """The type of labels of positions in shards, of which `low` is the least."""
    return np.dtype(np.uint8 if low >= 0 and classes <= 1 << 8 else np.int32)


def stored_dtype(dtype: np.dtype) -> np.dtype | None:
    """The type in which shards hold numbers of this one, without a loss; None if there is none.

    Integers of more than 63 bits have none.
    """
    dtype = dtype.newbyteorder("=")
    if dtype.name in DTYPES:
        return dtype
    wider = {"bool": "uint8", "int8": "int16", "uint16": "int32", "uint32": "int64"}
    return np.dtype(wider[dtype.name]) if dtype.name in wider else None
