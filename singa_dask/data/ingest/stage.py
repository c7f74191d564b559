"""The first pass: one task reads a block, encodes it as far as it can alone, and writes its part.

A part file holds the columns one after another, raw. Rows of training come first, then those of validation and test;
within each, the rows have a random order if the data set is shuffled. So every shard can take consecutive rows of
every part.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import Column, Role
from singa_dask.data.containers import dense
from singa_dask.data.flat_hdf5 import write_at
from singa_dask.data.ingest.columns import channels_of
from singa_dask.data.ingest.facts import CHECKED_NBYTES, ColumnPiece, Facts, Kind, Part, note_rounded
from singa_dask.data.ingest.options import Encoding
from singa_dask.data.ingest.shuffle import batches, permutation
from singa_dask.data.ingest.splits import Rules
from singa_dask.data.ingest.values import as_texts, encode, encode_series
from singa_dask.data.schema import AS_THEY_ARE
from singa_dask.data.sources.files import Block
from singa_dask.data.sources.patches import NUMBER
from singa_dask.data.sources.source import Source
from singa_dask.errors import DataError, disk_full, no_room

WRITTEN_NBYTES = 1 << 20
TABLE_ROWS = 4096
# The pieces of a part with the columns of a table, by kind; those of arrays have the column's name after a slash.
TABLE_DTYPES: dict[Kind, np.dtype] = {
    Kind.NUMBER: np.dtype("<f4"),
    Kind.DATE: np.dtype("<f8"),
    Kind.ZONED: np.dtype("<f8"),
    Kind.TIMEDELTA: np.dtype("<f4"),
    Kind.TEXT: np.dtype("<i4"),
}
NUMERIC = TABLE_DTYPES.keys() - {Kind.TEXT}


class StagingMemory:
    """Room for parts of up to so many bytes together, which need no files."""

    def __init__(self, nbytes: int) -> None:
        self._free, self._lock = nbytes, threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Whether a part of this size may stay in memory."""
        with self._lock:
            fits = nbytes <= self._free
            self._free -= nbytes * fits
        return fits


@dataclass(frozen=True)
class StagePlan:
    """What every task of the first pass has to know. source: without its blocks. memory: None where other processes
    read the parts."""

    folder: Path
    source: Source
    encoding: Encoding
    seed: int
    shuffle: bool
    rules: Rules
    memory: StagingMemory | None = None


def stage(plan: StagePlan, index: int, block: Block) -> Part:
    """The part of a block: in memory if there is room, else in a file. Raises DataError."""
    part = encoded(plan, index, block)
    if plan.memory is None or not plan.memory.take(part.nbytes):
        part = _write(plan.folder / f"{index:06d}.part", part)
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()  # else it keeps that of a block, which Dask counts
    return part


def encoded(plan: StagePlan, index: int, block: Block) -> Part:
    """The part of a block, in memory. Raises DataError."""
    turns = plan.source.turns
    raw = {name: turns.get(name, AS_THEY_ARE).of(dense(values)) for name, values in block.read().items()}
    try:
        rows = _rows(plan, raw)
        order, segments = _order(plan, index, raw, rows)
        train = np.arange(rows) if order is None else order[: segments[0]]
        facts, found = _encoded(plan.source, plan.encoding, raw, train)
    except DataError as error:
        raise DataError(f"{error} (In {block.key.partition('@')[0]}.)") from None  # without the file's size and time
    found[Role.ROW] = raw.get(NUMBER, np.arange(rows))
    if not plan.shuffle and (times := plan.rules.times(raw, plan.source.time)) is not None:
        found[Role.TIME] = times
    for known in facts.values():
        known.rows = rows
    held = {name: np.ascontiguousarray(values) for name, values in found.items()}
    starts = np.cumsum([0, *(values.nbytes for values in held.values())]).tolist()
    pieces = {
        name: ColumnPiece(values.dtype.str, values.shape[1:], start)
        for (name, values), start in zip(held.items(), starts, strict=False)
    }
    return Part(block.key, segments, starts[-1], pieces, facts, held=(held, order))


def _encoded(
    source: Source, encoding: Encoding, raw: Mapping[str, Any], train: np.ndarray
) -> tuple[dict[str, Facts], dict[str, np.ndarray]]:
    """What is known of each column of a block, and the pieces of its part. train: the rows that train.

    Raises DataError.
    """
    facts: dict[str, Facts] = {}
    pieces: dict[str, np.ndarray] = {}
    if source.table:
        pieces |= _stage_table(source, encoding, raw, train, facts)
    else:
        for name in source.x:
            values, facts[name] = encode(name, raw[name], Role.FEATURE)
            note_rounded(facts[name], values)
            if len(values) and encoding.fill_of(name) in ("mean", "mask"):
                where = channels_of(name, values.shape[1:], source.channels.get(name))
                _add_up(facts[name], values, train, Column(name, Role.FEATURE, "", values.shape[1:], where))
            pieces[f"x/{name}"] = values
    mask = None if source.mask is None else np.asarray(raw[source.mask])
    for name in source.y:
        role = source.roles.get(name)
        given = raw[name] if mask is None else _without_masked(raw[name], mask, role)
        pieces[f"y/{name}"], known = encode(name, given, role)
        if mask is not None and role is Role.LABEL and given is not raw[name] and not mask.any():
            known = Facts(Kind.EMPTY, known.dtype, shape=known.shape)
        facts[f"y/{name}"] = known
    for role, factor in ((Role.WEIGHT, source.weight), (Role.MASK, source.mask)):
        if factor is not None:
            pieces[role], facts[role] = encode(role, raw[factor], role)
    return facts, pieces


def _rows(plan: StagePlan, raw: Mapping[str, Any]) -> int:
    source = plan.source
    more = (own for own in (source.weight, source.mask, *plan.rules.columns.values()) if own is not None)
    lengths = {name: len(raw[name]) for name in (*source.x, *source.y, *more)}
    (first, rows), *others = lengths.items()
    for other, length in others:
        if length != rows:
            raise DataError(
                f"{first!r} has {rows:,} rows, but {other!r} has {length:,}. Every sample needs one of each: "
                "check how they were made."
            )
    return rows


def _order(
    plan: StagePlan, index: int, raw: Mapping[str, Any], rows: int
) -> tuple[np.ndarray | None, tuple[int, ...]]:
    """The rows of the block in the order of its part, None for as they are, and how many are of each split."""
    if not plan.rules.splits.given:
        return (permutation((plan.seed, index, 0), rows) if plan.shuffle else None), (rows, 0, 0)
    order, segments = plan.rules.order(index, raw, permutation((plan.seed, index, 0), rows))
    if not plan.shuffle:
        for stop, count in zip(np.cumsum(segments), segments, strict=True):
            order[stop - count : stop].sort()
    return order, segments


def _stage_table(
    source: Source, encoding: Encoding, raw: Mapping[str, Any], train: np.ndarray, facts: dict[str, Facts]
) -> dict[str, np.ndarray]:
    columns: dict[Kind, list[np.ndarray]] = {kind: [] for kind in TABLE_DTYPES}
    for name in source.x:
        if np.ndim(raw[name]) != 1:
            raise DataError(f"column {name!r}: a column of a table has one value for each row, not {raw[name].shape}.")
        values, known = encode_series(name, raw[name])
        if not len(values):
            known.kind = Kind.EMPTY
        if known.kind is Kind.NUMBER and encoding.is_category(name):
            values, known = as_texts(values, known)
        if known.kind is Kind.NUMBER:
            note_rounded(known, values)
        if known.kind is Kind.TEXT:
            codes = values[train]
            present = known.values or []
            known.counts = np.bincount(codes[codes >= 0], minlength=len(present)).tolist()
        elif known.kind in NUMERIC and encoding.fill_of(name) == "mean":
            _add_up(known, values, train, Column(name, Role.FEATURE, "", ()))
        if known.kind in (Kind.DATE, Kind.ZONED):
            valid = values[~np.isnan(values)]
            known.low = float(valid.min())
        if known.kind is not Kind.EMPTY:
            known.place = len(columns[known.kind])
            columns[known.kind].append(values)
        facts[name] = known
    return {kind.value: _table(values, TABLE_DTYPES[kind]) for kind, values in columns.items() if values}


def _add_up(facts: Facts, values: np.ndarray, train: np.ndarray, column: Column) -> None:
    """Note sums and numbers of the values that are there, a few rows at a time."""
    axes = (0, *(axis + 1 for axis in column.statistics_axes))
    sums, there = np.zeros(column.num_statistics), np.zeros(column.num_statistics, np.int64)
    step = max(1, CHECKED_NBYTES // max(1, values[:1].nbytes))
    for start in range(0, len(train), step):
        part = values[train[start : start + step]]
        known = ~np.isnan(part)
        sums += part.sum(axes, np.float64, where=known)
        there += np.count_nonzero(known, axes)
    facts.sums, facts.there = sums.tolist(), there.tolist()


def _without_masked(raw: Any, mask: np.ndarray, role: Role | None) -> Any:
    """Targets with 0, and labels with one that counts, where the mask is 0: there they may be missing."""
    values = np.asarray(raw)
    if values.dtype.kind != "f" or mask.size not in (values.size, len(values)):
        return raw
    counts = mask.reshape(values.shape if mask.size == values.size else (-1,) + (1,) * (values.ndim - 1)) != 0
    there = counts & ~np.isnan(values)
    fill = values[there].min() if role is Role.LABEL and there.any() else values.dtype.type(0)
    return np.where(counts, values, fill)


def _table(columns: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Columns side by side. Some rows at a time, since every column passes through all their memory."""
    values = np.empty((len(columns[0]), len(columns)), dtype)
    for start in range(0, len(values), TABLE_ROWS):
        rows = slice(start, start + TABLE_ROWS)
        for place, column in enumerate(columns):
            values[rows, place] = column[rows]
    return values


def _write(path: Path, part: Part) -> Part:
    """The same part in a file."""
    assert part.held is not None
    held, order = part.held
    temporary = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    try:
        with open(temporary, "wb", buffering=0) as file:
            for name, values in held.items():
                position = part.pieces[name].offset
                for batch in batches(values, order, max(1, WRITTEN_NBYTES // max(1, values[:1].nbytes))):
                    write_at(file.fileno(), position, batch)
                    position += batch.nbytes
        os.replace(temporary, path)
        temporary.write_text(json.dumps(part.to_json()))
        os.replace(temporary, path.with_suffix(".json"))
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritable(path.parent, error) from error
    return replace(part, path=path, held=None)


def unwritable(folder: Path, error: OSError) -> DataError:
    """What to say of a folder that could not be written."""
    if no_room(error):
        return DataError(f"{disk_full(folder.parent, error)} Sharding can need room for the samples twice.")
    if isinstance(error, FileNotFoundError):
        hint = "Does another command write there at the same time? Give each a folder or workspace of its own."
        return DataError(f"{folder}: was removed while it was written. {hint}")
    return DataError(f"{folder.parent}: could not be written ({error.strerror}). Check its permissions.")
