"""Writes shards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from singa_dask.data.columns import (
    FEW_CLASSES,
    MAX_RANK,
    NUMBERED,
    Channels,
    Column,
    Role,
    as_map,
    guess_channels,
    map_dtype,
    stored_dtype,
)
from singa_dask.data.containers import dense
from singa_dask.data.folders import replace_folder, sync
from singa_dask.data.manifest import MANIFEST_FILE, STATISTICS_FILE, Manifest, Shard
from singa_dask.data.plan import permutation
from singa_dask.data.schema import Schema
from singa_dask.data.shards import window_hash
from singa_dask.data.statistics import Statistics
from singa_dask.errors import DataError

MAX_WINDOW_SAMPLES = 256
MAX_WINDOW_NBYTES = 4 << 20
WINDOWS_WANTED = 64
MAX_SHARDS = 100_000
# The columns of `write_shards`.
X, Y, WEIGHT, MASK, ROW = "x", "y", "weight", "mask", "row"


class Samples(Protocol):
    """An array, or an object that returns the samples of an index array on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray: ...


def write_shards(
    out: str | Path,
    x: Samples,
    y: Any = None,
    nshards: int = 1,
    *,
    weight: Any = None,
    mask: Any = None,
    classes: Sequence[str] | int | None = None,
    channels: Channels | str | None = None,
    window: int | None = None,
    shuffle_seed: int | None = None,
    notes: Sequence[str] = (),
    overwrite: bool = False,
    durable: bool = True,
) -> Manifest:
    """Write arrays as a folder of `nshards` shards with a manifest and statistics.

    x: (N, ...) numbers, the column "x"; up to four dimensions of a sample. Read window by window, so it may be a
        memory map or an object that decodes samples on demand.
    y: the column "y": (N,) whole numbers are labels, (N, H, W) those of positions, other numbers (N, ...) targets.
    weight, mask: of the samples, (N,), and of the targets' values, shaped as y.
    classes: of y; without y, the symbols that x holds. channels: of x: "first", "last" or "none"; by default the shape
        decides (`guess_channels`), and images of bytes have them last.
    window: samples per window; by default there are about 64 windows or more, each of at most 256 samples and 4 MiB.
    shuffle_seed: write the samples in this random order, with the column "row" of their places in x; None keeps the
        order. Training reads neighbouring samples
        together, so data sorted by class must be shuffled.
    durable: flush to the disk.
    The shards are written to a temporary folder next to `out` and renamed at the end: a crash leaves no partial data
    set. Raises DataError if `out` exists (and overwrite is False), or if the data has a wrong shape, type or label.
    """
    out = Path(out).absolute()
    x, y, weight, mask = map(dense, (x, y, weight, mask))
    if weight is not None and (np.asarray(weight) < 0).any():
        raise DataError(f"weight: must not be negative. Received: {np.asarray(weight).min():g}. Correct it.")
    arrays: dict[str, Samples] = {X: x}
    columns = [_feature(x, channels, classes if y is None else None)]
    total = x.shape[0]
    if y is not None:
        column, arrays[Y] = _answers(np.asarray(y), total, classes)
        columns.append(column)
    for name, given, role in ((WEIGHT, weight, Role.WEIGHT), (MASK, mask, Role.MASK)):
        if given is not None:
            column, arrays[name] = _numbers(name, role, np.asarray(given), total)
            columns.append(column)
    if shuffle_seed is not None:
        columns.append(Column(ROW, Role.ROW, "int64", ()))
        arrays[ROW] = np.arange(total)
    if window is None:
        window = choose_window(total, sum(column.nbytes for column in columns))
    if window < 1:
        raise DataError(f"window: must be at least 1 sample. Received: {window}.")
    if not 1 <= nshards <= min(total, MAX_SHARDS):
        raise DataError(
            f"nshards: must be from 1 to {min(total, MAX_SHARDS)} for {total} samples. Received: {nshards}."
        )
    order = np.arange(total) if shuffle_seed is None else permutation((shuffle_seed, total), total)
    with replace_folder(out, overwrite, durable=durable) as folder:
        shards = []
        statistics = {column.name: Statistics.none(column.values) for column in columns}
        for index in range(nshards):
            rows = order[total * index // nshards : total * (index + 1) // nshards]
            path = folder / shard_name(index)
            batches = _batches(arrays, columns, rows, window)
            shard, own = write_shard(path, columns, rows.size, window, batches, durable=durable)
            shards.append(shard)
            statistics = {name: statistics[name].merge(of) for name, of in own.items()}
        finish(
            folder,
            Schema(tuple(columns)),
            statistics,
            shards,
            window,
            order="source" if shuffle_seed is None else f"shuffled, seed {shuffle_seed}",
            notes=notes,
            durable=durable,
        )
    return Manifest.load(out)


def shard_name(index: int) -> str:
    """The file of a shard."""
    return f"shard-{index:05d}.h5"


def choose_window(total: int, sample_nbytes: int) -> int:
    """Samples per window, a power of two: at most 256 and 4 MiB, and small enough for 64 windows."""
    most = min(MAX_WINDOW_SAMPLES, MAX_WINDOW_NBYTES // sample_nbytes, total // WINDOWS_WANTED)
    return 1 << (max(1, most).bit_length() - 1)


def write_shard(
    path: Path,
    columns: Sequence[Column],
    samples: int,
    window: int,
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    durable: bool = True,
) -> tuple[Shard, dict[str, Statistics]]:
    """Write one shard of `samples` samples, and return it with the statistics of its columns.

    batches: consecutive samples, in any portions, by column: (n, *shape) of the column's type.
    Raises DataError if the disk is full.
    """
    hashes = []
    statistics = {column.name: Statistics.none(column.values) for column in columns}
    needed = samples * sum(column.nbytes for column in columns)
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise DataError(f"{path}: needs {needed:,} bytes, but only {free:,} are free on its disk. Make room.")
    offsets = _create(path, columns, samples)
    position = 0
    try:
        with open(path, "r+b", buffering=0) as file:
            for arrays in _portions(batches, columns, window):
                weight = weight_of(columns, arrays)
                for column in columns:
                    rows = arrays[column.name]
                    _write_at(file.fileno(), rows, offsets[column.name] + position * column.nbytes)
                    if column.role not in NUMBERED:
                        of_samples = None if column.role is Role.WEIGHT else weight
                        own = Statistics.of(rows, of_samples, mask_of(column, columns, arrays))
                        statistics[column.name] = statistics[column.name].merge(own)
                count = len(arrays[columns[0].name])
                for start in range(0, count, window):
                    hashes.append(window_hash(arrays[column.name][start : start + window] for column in columns))
                position += count
            if durable:
                os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"{path}: could not be written ({error.strerror}). Is the disk full?") from error
    if position != samples:
        raise DataError(f"{path}: {samples} samples were announced, but {position} came.")
    return Shard(path.name, samples, tuple(hashes)), statistics


def weight_of(columns: Sequence[Column], arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The weights of samples among the arrays of these columns: (n,)."""
    return next((arrays[column.name].reshape(-1) for column in columns if column.role is Role.WEIGHT), None)


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


def finish(
    folder: Path,
    schema: Schema,
    statistics: Mapping[str, Statistics],
    shards: Sequence[Shard],
    window: int,
    *,
    order: str,
    in_place: bool = False,
    notes: Sequence[str] = (),
    durable: bool = True,
) -> Manifest:
    """Write statistics and manifest of shards that lie in `folder`. schema: without statistics; statistics: of all
    shards together.

    Raises DataError if all weights are 0.
    """
    for column in schema.columns:
        if column.role is Role.WEIGHT and not statistics[column.name].mean.any():
            raise DataError(f"column {column.name!r}: the weights of all samples are 0. At least one must count.")
    described = [
        column if column.role in NUMBERED else statistics[column.name].in_column(column) for column in schema.columns
    ]
    total = sum(shard.samples for shard in shards)
    fitted = "; ".join([f"mean and deviation: the {total:,} samples of these shards", *filter(None, [schema.fitted])])
    notes = [*notes, *(_loses_digits(column) for column in described if _is_far_from_zero(column))]
    manifest = Manifest(
        total,
        replace(schema, columns=tuple(described), fitted=fitted),
        window,
        tuple(shards),
        order,
        in_place,
        tuple(notes),
        folder,
    )
    features = manifest.features
    statistics[features.name].write(folder / STATISTICS_FILE, features.shape)
    (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    if durable:
        sync(folder / STATISTICS_FILE)
        sync(folder / MANIFEST_FILE)
    return Manifest.load(folder)


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


def _feature(x: Samples, channels: Channels | str | None, symbols: Sequence[str] | int | None) -> Column:
    shape = tuple(x.shape)
    if not 1 <= len(shape) <= MAX_RANK + 1 or 0 in shape:
        raise DataError(
            f"x: must have the samples along its first axis and up to {MAX_RANK} further axes, none of them 0. "
            f"Received: {shape}. Reshape the array first."
        )
    dtype = stored_dtype(x.dtype)
    if dtype is None:
        raise DataError(f"x: must be numbers. Received: {x.dtype}.")
    where = guess_channels(shape[1:]) if channels is None else Channels(channels)
    if where is None and dtype == np.uint8:  # images
        where = Channels.LAST
    if where is None:
        raise DataError(
            f"x: samples of shape {shape[1:]} do not tell which axis is that of the channels. "
            'Set channels to "first", "last" or "none".'
        )
    if where is not Channels.NONE and len(shape) < 4:
        raise DataError(f"x: samples of shape {shape[1:]} have no channels: they need three dimensions or more.")
    return Column(X, Role.FEATURE, dtype.name, shape[1:], where, _frozen(symbols))


def _answers(y: np.ndarray, total: int, classes: Sequence[str] | int | None) -> tuple[Column, np.ndarray]:
    y = as_map(y) if y.dtype.kind in "biu" else y
    if y.dtype.kind == "f" or y.ndim not in (1, 3):
        if classes is not None:
            raise DataError(
                f"y: must be {total} whole numbers, one for each sample, if there are classes. "
                f"Received: {y.dtype} {y.shape}."
            )
        return _numbers(Y, Role.TARGET, y, total)
    if len(y) != total or y.dtype.kind not in "bui" or 0 in y.shape:
        raise DataError(f"y: must be numbers of {total} samples. Received: {y.dtype} {y.shape}.")
    count = classes if classes is None or isinstance(classes, int) else len(classes)
    if y.min() < 0 or (count is not None and y.max() >= count):
        told = "at least 0" if count is None else f"0 to {count - 1} for {count} classes"
        raise DataError(f"y: labels must be {told}. Received: {y.min()} to {y.max()}.")
    if y.ndim > 1 and count is None:
        count = classes = int(y.max()) + 1
        if count > FEW_CLASSES:
            raise DataError(
                f"y: has integers up to {count - 1} for each position, which are hardly classes. Set classes to "
                f"{count} if they are, or give them as float32 to predict the numbers."
            )
    dtype = np.dtype(np.int64) if y.ndim == 1 or count is None else map_dtype(count)
    return Column(Y, Role.LABEL, dtype.name, y.shape[1:], classes=_frozen(classes)), y.astype(dtype, copy=False)


def _numbers(name: str, role: Role, array: np.ndarray, total: int) -> tuple[Column, np.ndarray]:
    dtype = stored_dtype(array.dtype)
    if dtype is None or len(array) != total or array.ndim > MAX_RANK + 1:
        raise DataError(f"{name}: must be numbers for {total} samples. Received: {array.dtype} {array.shape}.")
    channels = guess_channels(array.shape[1:])
    if channels is None:
        raise DataError(
            f"{name}: values of shape {array.shape[1:]} do not tell which axis is that of the channels. "
            "Transpose the array so that the channels come last, and are the axis with another size."
        )
    return Column(name, role, dtype.name, tuple(array.shape[1:]), channels), array


def _frozen(classes: Sequence[str] | int | None) -> tuple[str, ...] | int | None:
    return classes if classes is None or isinstance(classes, int) else tuple(classes)


def _batches(
    arrays: Mapping[str, Samples], columns: Sequence[Column], rows: np.ndarray, window: int
) -> Iterator[dict[str, np.ndarray]]:
    for start in range(0, rows.size, window):
        members = rows[start : start + window]
        batch = {}
        for column in columns:
            part = batch[column.name] = np.ascontiguousarray(arrays[column.name][members], dtype=column.dtype)
            bad = members[_not_finite(part)]
            if bad.size:
                raise DataError(
                    f"{column.name}: sample {bad[0]} holds a value that is not a finite float32. Remove or fill it."
                )
        yield batch


def _not_finite(part: np.ndarray) -> np.ndarray:
    """The positions of samples with values that nets cannot read."""
    if part.dtype.kind != "f":
        return np.empty(0, np.int64)
    with np.errstate(over="ignore"):
        finite = np.isfinite(part.astype(np.float32, copy=False))
    return np.flatnonzero(~finite.reshape(len(part), -1).all(axis=1))


def _portions(
    batches: Iterable[Mapping[str, np.ndarray]], columns: Sequence[Column], window: int
) -> Iterator[dict[str, np.ndarray]]:
    """The same samples in portions of whole windows, but for the last one."""
    rest: dict[str, np.ndarray] = {}
    for batch in batches:
        arrays = {
            column.name: np.ascontiguousarray(batch[column.name], dtype=column.dtype).reshape(-1, column.values)
            for column in columns
        }
        if rest:
            arrays = {name: np.concatenate([rest[name], array]) for name, array in arrays.items()}
        count = len(arrays[columns[0].name])
        whole = count - count % window
        if whole:
            yield {name: array[:whole] for name, array in arrays.items()}
        rest = {name: array[whole:] for name, array in arrays.items()} if whole < count else {}
    if rest:
        yield rest


def _create(path: Path, columns: Sequence[Column], samples: int) -> dict[str, int]:
    """Create the file with room for the columns. Returns the place of each.

    The data are written past HDF5, which crashes the process when the disk is full.
    """
    offsets = {}
    with h5py.File(path, "w", alignment_threshold=1, alignment_interval=64) as file:
        for column in columns:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            plist.set_obj_track_times(False)  # equal data make equal files
            space = h5py.h5s.create_simple((samples, *column.shape))
            kind = h5py.h5t.py_create(np.dtype(column.dtype).newbyteorder("<"))
            dataset = h5py.h5d.create(file.id, (column.dataset or column.name).encode(), kind, space, plist)
            offsets[column.name] = dataset.get_offset()
    return offsets


def _write_at(descriptor: int, rows: np.ndarray, offset: int) -> None:
    left: memoryview = rows.reshape(-1).view(np.uint8).data
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
