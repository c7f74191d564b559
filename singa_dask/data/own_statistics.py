"""Statistics of the records that train, where those of a manifest are of others too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from singa_dask.data.columns import Column, Role
from singa_dask.data.manifest import Manifest
from singa_dask.data.plan import StreamConf, own_windows
from singa_dask.data.shards import ShardFolder
from singa_dask.data.statistics import Statistics, mask_of
from singa_dask.data.windows import own_spans

_NBYTES = 16 << 20  # read at a time


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
