"""The second pass: one task takes its rows of every part, encodes them, and writes a shard; then the manifest."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import h5py
import numpy as np

from singa_dask.data.columns import IDENTITY, NUMBERED, Column, Role
from singa_dask.data.flat_hdf5 import create, write_at
from singa_dask.data.folders import sync
from singa_dask.data.ingest.facts import Kind
from singa_dask.data.ingest.layout import SPLITS, Layout
from singa_dask.data.ingest.progress import Bar
from singa_dask.data.ingest.run import run_all
from singa_dask.data.ingest.shuffle import batches, permutation
from singa_dask.data.ingest.stage import TABLE_DTYPES, unwritable
from singa_dask.data.manifest import STATISTICS_FILE, Manifest, Shard
from singa_dask.data.schema import Schema
from singa_dask.data.shards import window_hash
from singa_dask.data.statistics import Statistics, mask_of
from singa_dask.errors import DataError, reason

logger = logging.getLogger(__name__)

BATCH_NBYTES = 1 << 20
MAX_NAMES_SHOWN = 5
# A shard and the statistics of its columns.
Written = tuple[Shard, dict[str, Statistics]]
# Of a key of permutation, next to those of stage.py.
ASSEMBLY = 2


def assemble(layout: Layout, path: Path, client: Any, bar: Bar, *, trains: bool, durable: bool) -> dict[str, Manifest]:
    """The second pass: the manifest of each split, in a folder of its own below `path`; the only one is named "".

    trains: whether the first split is for training. Raises DataError, ClusterError.
    """
    splits = {split: name for split, name in enumerate(SPLITS) if layout.nshards[split]}
    told = [layout.window, layout.nshards, layout.schema.columns, layout.schema.encoders.to_json()]
    digest = hashlib.blake2b(json.dumps(told, default=repr).encode(), digest_size=8).hexdigest()
    folders = {split: path / f"shards-{digest}" / name for split, name in splits.items()}
    tasks = [(folders[split], split, index, durable) for split in splits for index in range(layout.nshards[split])]
    bar.begin("writing", len(tasks))
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    nbytes = sum(column.nbytes for column in layout.schema.columns)
    results = run_all(
        assemble_shard,
        dict(enumerate(tasks)),
        client,
        lambda _, written: bar.advance(written[0].samples, written[0].samples * nbytes),
        {place: f"shard {index}" for place, (_, _, index, _) in enumerate(tasks)},
        [layout],
    )
    manifests = {}
    for split, name in splits.items():
        folder = folders[split]
        for made in folder.glob("shard-*.npz"):
            made.unlink()
        manifests[name if len(splits) > 1 else ""] = finish(
            folder,
            layout.schema,
            layout.window,
            [results[place] for place, task in enumerate(tasks) if task[1] == split],
            order=layout.order if split == 0 else f"{layout.order}, {name}",
            notes=layout.notes,
            trains=trains and split == 0,
            durable=durable,
        )
    return manifests


def assemble_shard(layout: Layout, folder: Path, split: int, index: int, durable: bool) -> Written:
    """Write a shard, unless it is there from an earlier attempt. Raises DataError."""
    path = folder / f"shard-{index:05d}.h5"
    if (done := _noted(path, layout)) is not None:
        return done
    first, counts = layout.shard_rows(split, index)
    samples = int(counts.sum())
    arrays = {column.name: np.empty((samples, *column.shape), column.dtype) for column in layout.schema.columns}
    position = 0
    for part, (row, count) in enumerate(zip(first.tolist(), counts.tolist(), strict=True)):
        if count:
            _read(layout, part, row, {name: array[position : position + count] for name, array in arrays.items()})
            position += count
    order = permutation((layout.seed, index, ASSEMBLY + split), samples) if layout.shuffle else None
    try:
        written = write_shard(path, layout.schema.columns, arrays, order, layout.window, durable=durable)
        _note(path, *written)
    except OSError as error:
        raise unwritable(folder, error) from error
    return written


def _noted(path: Path, layout: Layout) -> Written | None:
    """A shard that is there and complete, with its statistics."""
    try:
        with np.load(path.with_suffix(".npz")) as told:
            names = [column.name for column in layout.schema.columns if column.role not in NUMBERED]
            moments = [[told[f"{place} {of}"] for of in ("count", "mean", "squares")] for place in range(len(names))]
            samples, nbytes = told["size"].tolist()
            shard = Shard(path.name, samples, tuple(told["windows"].tolist()))
        found = {
            name: Statistics(count if count.ndim else count.item(), *of)
            for name, (count, *of) in zip(names, moments, strict=True)
        }
        return (shard, found) if path.stat().st_size == nbytes else None
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _note(path: Path, shard: Shard, statistics: Mapping[str, Statistics]) -> None:
    moments = {f"{i} {of}": value for i, found in enumerate(statistics.values()) for of, value in vars(found).items()}
    temporary = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(temporary, windows=shard.windows, size=[shard.samples, path.stat().st_size], **moments)
    os.replace(temporary, path.with_suffix(".npz"))


def _read(layout: Layout, number: int, row: int, out: dict[str, np.ndarray]) -> None:
    """Rows of a part, from `row` on, into arrays of the columns."""
    part = layout.parts[number]
    try:
        for column in layout.schema.columns:
            name, target = layout.pieces.get(column.name), out[column.name]
            if name is None:
                _read_table(layout, number, row, target)
                continue
            piece = part.pieces[name]
            plain = column.role not in IDENTITY and name not in layout.codes and column.fill is None
            if plain and np.dtype(piece.dtype) == target.dtype:
                part.read(name, row, target)
                continue
            values = np.empty((len(target), *piece.shape), piece.dtype)
            part.read(name, row, values)
            if column.role in IDENTITY:
                target[...] = layout.origins[number].of(column.role, values)
            elif name in layout.codes:
                target[...] = _recoded(values, layout.codes[name][number])
            else:
                target[...] = column.filled(values.astype(target.dtype, copy=False))
    except FileNotFoundError:
        raise DataError(
            f"{part.path}: is not there. All workers must share the folder of the shards; "
            "write to a folder on a shared file system."
        ) from None
    except OSError as error:
        raise DataError(f"{part.path}: {reason(error)}. Remove {part.path.parent} and start again.") from error


def _recoded(values: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Codes of texts by a table; integers by a search among all, where the mask is 0 with any of them."""
    if values.dtype == TABLE_DTYPES[Kind.TEXT]:
        return codes[values]
    return np.searchsorted(codes, values).clip(max=len(codes) - 1)


def _read_table(layout: Layout, number: int, row: int, target: np.ndarray) -> None:
    part = layout.parts[number]
    blocks: dict[Kind, np.ndarray] = {}
    for kind, dtype in TABLE_DTYPES.items():
        if kind.value in part.pieces:
            piece = part.pieces[kind.value]
            plain = kind is Kind.NUMBER and piece.shape == target.shape[1:]
            blocks[kind] = target if plain else np.empty((len(target), *piece.shape), dtype)
            part.read(kind.value, row, blocks[kind])
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
            values = layout.codes[encoder.column][number][values]
        if blocks.get(kind) is not target or encoder.fill is not None:
            encoder.features(values, target[:, start:stop])
        start = stop


def batch_rows(columns: Sequence[Column], window: int) -> int:
    """How many samples are worked on at a time: whole windows."""
    return window * max(1, BATCH_NBYTES // (window * sum(column.nbytes for column in columns)))


class SampleStatistics:
    """The hashes of the windows, and the statistics of the columns, of samples that come one after the other."""

    def __init__(self, columns: Sequence[Column], window: int) -> None:
        self.hashes: list[str] = []
        self.statistics = {column.name: Statistics.none(column.values) for column in columns}
        self._columns, self._window = columns, window

    def add(self, arrays: Mapping[str, np.ndarray]) -> None:
        """The next samples, which are whole windows but for the last ones: (n, *shape) by column."""
        weight = next((arrays[of.name].reshape(-1) for of in self._columns if of.role is Role.WEIGHT), None)
        for column in self._columns:
            if column.role not in NUMBERED:
                of_samples = None if column.role is Role.WEIGHT else weight
                own = Statistics.of(arrays[column.name], of_samples, mask_of(column, self._columns, arrays))
                self.statistics[column.name] = self.statistics[column.name].merge(own)
        for start in range(0, len(arrays[self._columns[0].name]), self._window):
            rows = slice(start, start + self._window)
            self.hashes.append(window_hash(arrays[column.name][rows] for column in self._columns))


def write_shard(
    path: Path,
    columns: Sequence[Column],
    arrays: Mapping[str, np.ndarray],
    order: np.ndarray | None,
    window: int,
    *,
    durable: bool = True,
) -> Written:
    """Write one shard, and return it with the statistics of its columns.

    arrays: (samples, *shape) of the column's type, by column. order: in which the shard has the samples; None for as
        they are.
    Raises DataError if the disk is full.
    """
    samples, nbytes = len(arrays[columns[0].name]), sum(column.nbytes for column in columns)
    free = shutil.disk_usage(path.parent).free
    if free < samples * nbytes:
        needed = f"needs {samples * nbytes:,} bytes, but only {free:,} are free on its disk"
        raise DataError(f"{path}: {needed}. Make room.")
    measured = SampleStatistics(columns, window)
    with h5py.File(path, "w", alignment_threshold=1, alignment_interval=64) as hdf5:
        kinds = {column.name: np.dtype(column.dtype).newbyteorder("<") for column in columns}
        places = {of.name: create(hdf5, of.name, (samples, *of.shape), kinds[of.name]) for of in columns}
    step = batch_rows(columns, window)
    streams = [batches(arrays[column.name], order, step) for column in columns]
    try:
        with open(path, "r+b", buffering=0) as file:
            for number, rows in enumerate(zip(*streams, strict=True)):
                measured.add({column.name: own for column, own in zip(columns, rows, strict=True)})
                for column, own in zip(columns, rows, strict=True):
                    write_at(file.fileno(), places[column.name] + number * step * column.nbytes, own)
            if durable:
                os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"{path}: could not be written ({error.strerror}). Is the disk full?") from error
    return Shard(path.name, samples, tuple(measured.hashes)), measured.statistics


def finish(
    folder: Path,
    schema: Schema,
    window: int,
    shards: Sequence[Written],
    *,
    order: str,
    notes: Sequence[str] = (),
    trains: bool = True,
    in_place: bool = False,
    durable: bool = True,
) -> Manifest:
    """Write statistics and manifest of shards that lie in `folder`. schema: without statistics. trains: whether the
    samples are for training.

    Raises DataError if all weights, or all values of a mask, are 0.
    """
    statistics = shards[0][1]
    for _, other in shards[1:]:
        statistics = {name: found.merge(other[name]) for name, found in statistics.items()}
    described = [
        column if column.role in NUMBERED else statistics[column.name].in_column(column) for column in schema.columns
    ]
    for column in described:
        if column.role in (Role.WEIGHT, Role.MASK) and not any(column.mean):
            what = "weights of all samples are" if column.role is Role.WEIGHT else "mask of all samples is"
            raise DataError(f"column {column.name!r}: the {what} 0. At least one must count.")
    total = sum(shard.samples for shard, _ in shards)
    fitted = "; ".join([f"mean and deviation: the {total:,} samples of these shards", *filter(None, [schema.fitted])])
    manifest = Manifest(
        total,
        replace(schema, columns=tuple(described), fitted=fitted),
        window,
        tuple(shard for shard, _ in shards),
        order,
        in_place,
        (
            *notes,
            *(_constant(described) if trains and total > 1 else ()),
            *(_loses_digits(column) for column in described if _is_far_from_zero(column)),
        ),
        folder,
    )
    features = manifest.features
    statistics[features.name].write(folder / STATISTICS_FILE, features.shape)
    if durable:
        sync(folder / STATISTICS_FILE)
    manifest.write(folder, durable=durable)
    return manifest


def _constant(columns: Sequence[Column]) -> list[str]:
    """What to say of features and targets that have the same value in all samples."""
    notes = []
    for column in columns:
        same = [place for place, std in enumerate(column.std) if std == 0]
        if column.role not in (Role.FEATURE, Role.TARGET) or not same:
            continue
        names = [column.names[place] if column.names else str(place) for place in same[:MAX_NAMES_SHOWN]]
        shown = ", ".join(names) + (", ..." if len(same) > MAX_NAMES_SHOWN else "")
        whole = column.num_statistics == 1
        which = "" if whole else f": {len(same)} of {column.num_statistics} values ({shown})"
        notes.append(f"column {column.name!r} is constant in the training samples{which}")
        logger.warning("%s. Leave it out unless new samples differ.", notes[-1])
    return notes


def _is_far_from_zero(column: Column) -> bool:
    """Whether float32, in which nets compute, cannot tell the values of a column apart. Columns of a table are float32
    already."""
    wide = column.dtype in ("float64", "int64") or bool(column.names)
    return wide and column.role in (Role.FEATURE, Role.TARGET) and any(map(_is_far, column.mean, column.std))


def _is_far(mean: float, std: float) -> bool:
    return 0 < std < abs(mean) * 2.0**-20


def _loses_digits(column: Column) -> str:
    far = [name for name, *moments in zip(column.names, column.mean, column.std, strict=False) if _is_far(*moments)]
    return (
        f"column {', '.join(far) or column.name!r} has values far from 0 that differ little, such as times. Nets "
        "compute in float32, which cannot tell them apart: subtract their mean before"
    )
