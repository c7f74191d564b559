"""Statistics of the records that train, for what the statistics of a manifest do not tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from singa_dask.data.columns import Column
from singa_dask.data.manifest import Manifest
from singa_dask.data.plan import StreamConf, own_windows
from singa_dask.data.shards import ShardFolder
from singa_dask.data.statistics import Statistics
from singa_dask.data.windows import own_spans

_ROWS = 1 << 16


def with_statistics(column: Column, manifest: Manifest, conf: StreamConf, lengths: str = "") -> Column:
    """The column with the statistics of the records of all worker groups that train, those of single time steps if
    `column` is of these. lengths: the column with the number of these that count. Reads the shards once. Raises
    DataError."""
    if conf.sequence:
        spans = own_spans(manifest, replace(conf, held_out=False))
    else:
        windows = own_windows(manifest, replace(conf, held_out=False))
        spans = [(window.start, window.start + window.samples) for window in windows]
    found, shards = Statistics.none(column.values), ShardFolder(manifest)
    for rows, counts in _read(shards, [column.name, lengths or column.name], spans):
        steps = rows.reshape(len(rows), -1, column.values)
        read = np.arange(steps.shape[1]) < counts.reshape(-1, 1) if lengths else np.ones(steps.shape[:2], bool)
        found = found.merge(Statistics.of(steps[read]))
    return found.in_column(column)


def _read(shards: ShardFolder, names: list[str], spans: list[tuple[int, int]]) -> Iterator[list[np.ndarray]]:
    starts = shards.manifest.shard_starts
    for begin, end in spans:
        while begin < end:
            shard = int(np.searchsorted(starts, begin, side="right")) - 1
            stop = min(end, begin + _ROWS, int(starts[shard + 1]))
            rows = slice(begin - int(starts[shard]), stop - int(starts[shard]))
            yield [shards.reader(shard).column(name)[rows] for name in names]
            begin = stop
