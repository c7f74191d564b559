"""A manifest for HDF5 files as they lie, which training then reads in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from singa_dask.data.columns import Channels, Column, Role, guess_channels, stored_dtype
from singa_dask.data.folders import replace_folder
from singa_dask.data.manifest import WAY_OUT, Manifest, Shard
from singa_dask.data.schema import Reading, Schema
from singa_dask.data.shards import contiguous_range, open_untrusted, window_hash
from singa_dask.data.sources.conventions import packing
from singa_dask.data.statistics import Statistics
from singa_dask.data.writer import choose_window, finish, mask_of, weight_of
from singa_dask.errors import DataError

_CONVERT = "Leave out --in-place: the samples are then copied into shards."
_BATCH_NBYTES = 16 << 20


def index(
    files: Sequence[Path],
    out: str | Path,
    datasets: Mapping[str, tuple[str, Role]],
    *,
    channels: Mapping[str, Channels] | None = None,
    window: int | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Write a folder with a manifest of HDF5 files that stay where they are; each file is a shard.

    datasets: by the name of a column, the path of its dataset in every file, and its role. Datasets must be stored
    contiguously, without filters, as numbers that shards can hold. channels: of columns whose shape does not tell.
    Reads every value once, for the hashes and statistics. Raises DataError where a dataset does not suit or holds
    values that are not finite.
    """
    paths = [Path(file).expanduser().absolute() for file in files]
    columns = [_column(paths[0], name, *given, (channels or {}).get(name)) for name, given in datasets.items()]
    arrays = {path: _mapped(path, columns) for path in paths}
    totals = [len(next(iter(of.values()))) for of in arrays.values()]
    window = window or choose_window(sum(totals), sum(column.nbytes for column in columns))
    statistics = {column.name: Statistics.none(column.values) for column in columns}
    shards = []
    for (path, of), total in zip(arrays.items(), totals, strict=True):
        shards.append(Shard(str(path), total, _hashes(of, total, window)))
        for column in columns:
            weight = None if column.role is Role.WEIGHT else weight_of(columns, of)
            own = _statistics(path, column, of[column.name], weight, mask_of(column, columns, of))
            statistics[column.name] = statistics[column.name].merge(own)
    labelled = [_with_classes(column, [of[column.name] for of in arrays.values()]) for column in columns]
    schema = Schema(tuple(labelled), reading=Reading("hdf5"))
    with replace_folder(Path(out).absolute(), overwrite) as folder:
        finish(folder, schema, statistics, shards, window, order="source", in_place=True)
    return Manifest.load(out)


def _column(path: Path, name: str, dataset: str, role: Role, channels: Channels | None) -> Column:
    with open_untrusted(path) as file:
        _offset(file, path, dataset, None, None)
        shape, kind = file[dataset].shape, file[dataset].dtype
        packed = packing(file[dataset].attrs, kind)
    if packed:
        told = ", ".join(f"{key} {value}" for key, value in packed.items())
        raise DataError(f"{path}: {dataset!r} is packed, or says which values are missing ({told}). {_CONVERT}")
    dtype = stored_dtype(kind)
    if dtype != kind or dtype is None:
        raise DataError(f"{path}: {dataset!r} holds {kind}, which is not read in place. {_CONVERT}")
    where = channels or guess_channels(shape[1:])
    if where is None:
        raise DataError(
            f"{path}: samples of shape {shape[1:]} in {dataset!r} do not tell which axis is that of the channels. "
            "Add --channels first, last or none."
        )
    return Column(name, role, dtype.name, tuple(shape[1:]), where, dataset=dataset)


def _mapped(path: Path, columns: Sequence[Column]) -> dict[str, np.ndarray]:
    """The columns as (samples, values of a sample)."""
    mapped = {}
    with open_untrusted(path) as file:
        for column in columns:
            dtype, dataset = np.dtype(column.dtype), column.dataset
            total = file[dataset].shape[0] if dataset in file else 0
            offset = _offset(file, path, dataset, (total, *column.shape), dtype)
            mapped[column.name] = np.asarray(np.memmap(path, dtype, "r", offset, (total, column.values)))
    lengths = {column.dataset: len(mapped[column.name]) for column in columns}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{length:,} in {dataset!r}" for dataset, length in lengths.items())
        raise DataError(f"{path}: all datasets must have as many samples. Received: {told}.")
    return mapped


def _offset(file: object, path: Path, dataset: str, shape: tuple[int, ...] | None, dtype: np.dtype | None) -> int:
    try:
        return contiguous_range(file, path, dataset, shape, dtype)
    except DataError as error:
        raise DataError(str(error).replace(WAY_OUT, _CONVERT)) from error


def _hashes(arrays: Mapping[str, np.ndarray], total: int, window: int) -> tuple[str, ...]:
    starts = range(0, total, window)
    return tuple(window_hash(array[start : start + window] for array in arrays.values()) for start in starts)


def _statistics(
    path: Path, column: Column, array: np.ndarray, weight: np.ndarray | None, mask: np.ndarray | None
) -> Statistics:
    found = Statistics.none(column.values)
    rows = max(1, _BATCH_NBYTES // column.nbytes)
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        factors = (None if factor is None else factor[start : start + rows] for factor in (weight, mask))
        own = Statistics.of(part, *factors)
        with np.errstate(over="ignore"):
            finite = np.isfinite(part.astype(np.float32, copy=False)).all(axis=1)
        if not finite.all():
            bad = start + int(np.flatnonzero(~finite)[0])
            raise DataError(
                f"{path}: sample {bad} of {column.dataset!r} holds a value that is not finite. Remove or fill it; "
                "without --in-place, --missing fills it."
            )
        found = found.merge(own)
    return found


def _with_classes(column: Column, arrays: Sequence[np.ndarray]) -> Column:
    """A label's column with the number of its classes."""
    if column.role is not Role.LABEL:
        return column
    single = column.shape in ((), (1,))
    if not (single or (len(column.shape) > 1 and column.channels is Channels.NONE)) or column.dtype.startswith(
        "float"
    ):
        message = "labels must be one whole number per sample, or per position of images (H, W)"
        raise DataError(f"{column.dataset!r}: {message}. {_CONVERT}")
    least, most = min(int(array.min()) for array in arrays), max(int(array.max()) for array in arrays)
    if least < 0:
        raise DataError(f"{column.dataset!r}: labels must be at least 0. Received: {least}. {_CONVERT}")
    return replace(column, classes=most + 1)
