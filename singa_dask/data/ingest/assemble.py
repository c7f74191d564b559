"""The second pass: one task takes its rows of every part, encodes them, and writes a shard."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from singa_dask.data.columns import IDENTITY
from singa_dask.data.flat_hdf5 import read_at
from singa_dask.data.ingest.facts import Kind
from singa_dask.data.ingest.layout import Layout, Part
from singa_dask.data.ingest.shuffle import permutation
from singa_dask.data.ingest.stage import TABLE_DTYPES, unwritable
from singa_dask.data.manifest import Shard
from singa_dask.data.statistics import Statistics
from singa_dask.data.writer import Written, shard_name, write_shard
from singa_dask.errors import DataError, reason

# Of a key of permutation, next to those of stage.py.
ASSEMBLY = 2


def assemble(layout: Layout, folder: Path, split: int, index: int, durable: bool) -> Written:
    """Write a shard, unless it is there from an earlier attempt. Raises DataError."""
    path = folder / shard_name(index)
    done = assembled(path)
    if done is not None:
        return done
    first, counts = layout.shard_rows(split, index)
    samples = int(counts.sum())
    arrays = {column.name: np.empty((samples, *column.shape), column.dtype) for column in layout.schema.columns}
    position = 0
    for part, row, count in zip(layout.parts, first.tolist(), counts.tolist(), strict=True):
        if count:
            _read(layout, part, row, {name: array[position : position + count] for name, array in arrays.items()})
            position += count
    order = permutation((layout.seed, index, ASSEMBLY + split), samples) if layout.shuffle else None
    shard, statistics = write_shard(path, layout.schema.columns, arrays, order, layout.window, durable=durable)
    _note(path, shard, statistics)
    return shard, statistics


def assembled(path: Path) -> Written | None:
    """A shard that is there and complete, with its statistics."""
    try:
        told = json.loads(path.with_suffix(".json").read_text())
        counts, means, squares = np.fromfile(path.with_suffix(".moments")).reshape(3, -1)
        statistics, start = {}, 0
        for name, (count, values) in told["statistics"].items():
            place = slice(start, start + values)
            statistics[name] = Statistics(counts[place] if count is None else count, means[place], squares[place])
            start += values
        shard = Shard(told["file"], told["samples"], tuple(told["windows"]))
        return (shard, statistics) if path.stat().st_size == told["nbytes"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _note(path: Path, shard: Shard, statistics: dict[str, Statistics]) -> None:
    told = {
        "file": shard.file,
        "samples": shard.samples,
        "windows": shard.windows,
        "nbytes": path.stat().st_size,
        "statistics": {
            name: (None if isinstance(found.count, np.ndarray) else found.count, found.mean.size)
            for name, found in statistics.items()
        },
    }
    moments = [
        np.concatenate([np.broadcast_to(getattr(found, of), found.mean.shape) for found in statistics.values()])
        for of in ("count", "mean", "squares")
    ]
    try:
        np.concatenate(moments).tofile(path.with_suffix(".moments"))
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(told))
        os.replace(temporary, path.with_suffix(".json"))
    except OSError as error:
        raise unwritable(path.parent, error) from error


def _read(layout: Layout, part: Part, row: int, out: dict[str, np.ndarray]) -> None:
    """Rows of a part, from `row` on, into arrays of the columns."""
    try:
        with open(part.path, "rb", buffering=0) as file:
            for column in layout.schema.columns:
                target = out[column.name]
                if column.name not in layout.pieces:
                    _read_table(layout, part, file.fileno(), row, target)
                    continue
                name = layout.pieces[column.name]
                piece = part.pieces[name]
                plain = column.role not in IDENTITY and name not in part.codes and column.fill is None
                if plain and np.dtype(piece.dtype) == target.dtype:
                    _read_into(file.fileno(), part, name, row, target)
                    continue
                values = np.empty((len(target), *piece.shape), piece.dtype)
                _read_into(file.fileno(), part, name, row, values)
                if column.role in IDENTITY:
                    target[...] = part.origin.of(column.role, values)
                else:
                    target[...] = (
                        column.filled(values.astype(target.dtype, copy=False))
                        if name not in part.codes
                        else _recoded(values, part.codes[name])
                    )
    except FileNotFoundError:
        raise DataError(
            f"{part.path}: is not there. All workers must share the folder of the shards; "
            "write to a folder on a shared file system."
        ) from None
    except OSError as error:
        raise DataError(f"{part.path}: {reason(error)}. Remove {part.path.parent} and start again.") from error


def _recoded(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Codes of texts by a table; whole numbers by a search among all."""
    return codes[values] if values.dtype == TABLE_DTYPES[Kind.TEXT] else np.searchsorted(codes, values)


def _read_table(layout: Layout, part: Part, descriptor: int, row: int, target: np.ndarray) -> None:
    blocks: dict[Kind, np.ndarray] = {}
    for kind, dtype in TABLE_DTYPES.items():
        if kind.value in part.pieces:
            piece = part.pieces[kind.value]
            plain = kind is Kind.NUMBER and piece.shape == target.shape[1:]
            blocks[kind] = target if plain else np.empty((len(target), *piece.shape), dtype)
            _read_into(descriptor, part, kind.value, row, blocks[kind])
    start = 0
    for encoder in layout.schema.encoders:
        stop = start + len(encoder.names)
        kind = encoder.holds
        place = part.places[encoder.column]
        if place < 0:
            values = np.full(len(target), -1 if encoder.categorical else np.nan).astype(TABLE_DTYPES[kind])
        else:
            values = blocks[kind][:, place]
        if encoder.categorical:
            values = part.codes[encoder.column][values]
        if blocks.get(kind) is not target or encoder.fill is not None:
            encoder.features(values, target[:, start:stop])
        start = stop


def _read_into(descriptor: int, part: Part, name: str, row: int, target: np.ndarray) -> None:
    if target.size:
        read_at(descriptor, part.pieces[name].offset + row * (target.nbytes // len(target)), target)
