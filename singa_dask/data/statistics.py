"""Mean and standard deviation of the samples of a column, gathered piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from singa_dask.data.columns import Channels, Column, Role
from singa_dask.data.manifest import Manifest
from singa_dask.data.plan import StreamConf, own_windows
from singa_dask.data.shards import ShardFolder
from singa_dask.data.windows import own_spans

_NBYTES = 16 << 20  # read at a time

# N samples, D values of a sample


@dataclass(frozen=True)
class Statistics:
    """Of every position of a sample: mean and sum of squared distances from it, (D,) float64, over `count` samples.

    A sample of weight w is as good as w samples. count: with a mask (D,), one for each position.
    """

    count: float | np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def none(cls, values: int) -> Statistics:
        """Of no samples with this many values."""
        return cls(0, np.zeros(values), np.zeros(values))

    @classmethod
    def of(cls, x_ND: np.ndarray, weight_N: np.ndarray | None = None, mask_ND: np.ndarray | None = None) -> Statistics:
        """Of these samples, at least one. mask: how much each value counts, times the weight of its sample."""
        from singa_dask.data import numba_statistics  # imports Numba

        x_ND = x_ND.reshape(len(x_ND), -1)
        if x_ND.dtype == np.float16:  # which Numba does not compute with
            x_ND = x_ND.astype(np.float32)
        weight = np.empty(0) if weight_N is None else weight_N.astype(np.float64)
        if mask_ND is not None:
            mask = mask_ND.astype(np.float64)
            centre = x_ND[np.argmax(mask > 0, axis=0), np.arange(x_ND.shape[1])].astype(np.float64)
            x = np.ascontiguousarray(x_ND)
            counts, sums, squares = numba_statistics.counted_sums(x, centre, weight, mask)
            mean = sums / np.where(counts > 0, counts, 1)
            return cls(counts, np.where(counts > 0, centre + mean, 0), np.maximum(squares - sums * mean, 0))
        count = len(x_ND) if weight_N is None else float(weight.sum())
        if not count:
            return cls.none(x_ND.shape[1])
        first = 0 if weight_N is None else int(np.flatnonzero(weight)[0])
        sums, squares = numba_statistics.shifted_sums(np.ascontiguousarray(x_ND), first, weight)
        mean = sums / count
        return cls(count, x_ND[first] + mean, np.maximum(squares - sums * mean, 0))

    def merge(self, other: Statistics) -> Statistics:
        """Of both sets of samples (Chan et al. 1979)."""
        if not np.any(self.count) or not np.any(other.count):
            return self if np.any(self.count) else other
        count = self.count + other.count
        share = other.count / np.where(count > 0, count, 1)
        delta = other.mean - self.mean
        squares = self.squares + other.squares + np.square(delta) * (self.count * share)
        return Statistics(count, self.mean + delta * share, squares)

    def in_column(self, column: Column) -> Column:
        """The column with its `mean` and `std`."""
        axes = column.statistics_axes
        # Each position counts as its samples do.
        count = np.broadcast_to(self.count, self.mean.shape).reshape(column.shape)
        share = count / count.max() if count.any() else np.ones(column.shape)
        total = share.sum(axis=axes, keepdims=True)
        total = np.where(total > 0, total, 1)
        mean = self.mean.reshape(column.shape)
        centre = (share * mean).sum(axis=axes, keepdims=True) / total
        spread = self.squares.reshape(column.shape) / np.where(count > 0, count, 1) + np.square(mean - centre)
        std = np.sqrt((share * spread).sum(axis=axes, keepdims=True) / total).squeeze(axis=axes)
        return replace(
            column,
            mean=tuple(np.atleast_1d(centre.squeeze(axis=axes)).tolist()),
            std=tuple(np.atleast_1d(std).tolist()),
        )

    def write(self, path: Path, shape: tuple[int, ...]) -> None:
        """`mean` and `std`, float32, in the sample's shape. std is 1 at constant positions, where (x - mean) / std is
        then 0."""
        std = np.sqrt(self.squares / np.where(np.equal(self.count, 0), 1, self.count))
        with h5py.File(path, "w") as file:
            file.create_dataset("mean", data=self.mean.astype("<f4").reshape(shape))
            file.create_dataset("std", data=np.where(std > 0, std, 1).astype("<f4").reshape(shape))


def mask_of(column: Column, columns: Sequence[Column], arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """What the mask among the arrays of these columns says of each value of a target: (n, values); None if there is no
    mask, or none that fits."""
    mask = next((other for other in columns if other.role is Role.MASK), None)
    if mask is None or column.role is not Role.TARGET or column.values % mask.values:
        return None
    own, channels = arrays[mask.name].reshape(-1, mask.values), column.values // mask.values
    if column.channels is Channels.FIRST:
        return np.tile(own, (1, channels))
    return np.repeat(own, channels, axis=1)


def with_statistics(column: Column, manifest: Manifest, conf: StreamConf, lengths: str = "") -> Column:
    """The column with the statistics of the records of all worker groups that train, each as its weight says, and of
    single time steps if `column` is of these. lengths: the column with the number of these that count. Reads the
    shards once. Raises DataError."""
    if conf.sequence:
        spans = own_spans(manifest, replace(conf, held_out=False))
    else:
        windows = own_windows(manifest, replace(conf, held_out=False))
        spans = [(window.start, window.start + window.samples) for window in windows]
    found, shards = Statistics.none(column.values), ShardFolder(manifest)
    weight = next((of.name for of in manifest.columns if of.role is Role.WEIGHT), "")
    mask = next((of.name for of in manifest.columns if of.role is Role.MASK), "")
    at_a_time = max(1, _NBYTES // column.nbytes)
    for rows, counts, weights, masks in _read(shards, [column.name, lengths, weight, mask], spans, at_a_time):
        steps = rows.reshape(len(rows), -1, column.values)
        read = np.ones(steps.shape[:2], bool) if counts is None else np.arange(steps.shape[1]) < counts.reshape(-1, 1)
        each = None if weights is None else np.broadcast_to(weights.reshape(-1, 1), read.shape)[read]
        of_values = None if masks is None else mask_of(column, manifest.columns, {mask: masks})
        found = found.merge(Statistics.of(steps[read], each, of_values))
    return found.in_column(column)


def _read(shards: ShardFolder, names: list[str], spans: list[tuple[int, int]], at_a_time: int) -> Iterator[list[Any]]:
    """Rows of these columns, and None in place of those without a name."""
    for begin, end in spans:
        for reader, rows in shards.rows(begin, end, at_a_time):
            yield [reader.column(name)[rows] if name else None for name in names]
