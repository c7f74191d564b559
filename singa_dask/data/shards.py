"""Opening and reading shards. A shard may come from anywhere, so its contents are checked before use."""

from __future__ import annotations

import hashlib
import math
import mmap
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from singa_dask.data.columns import Column, Role
from singa_dask.data.manifest import MANIFEST_FILE, WAY_OUT, Manifest, Shard
from singa_dask.errors import DataError, reason, way_out
from singa_dask.files import FILE, kind_of


class ShardReader:
    """One shard, mapped into memory.

    Raises DataError if the file contradicts the manifest.
    """

    def __init__(self, manifest: Manifest, index: int):
        self.manifest = manifest
        self.shard: Shard = manifest.shards[index]
        self.path = manifest.path_in(self.shard.file)
        with open_untrusted(self.path) as file:
            offsets = [self._offset(file, column) for column in manifest.columns]
        self._mapped = self._map()
        self._columns = {
            column.name: np.frombuffer(
                self._mapped, np.dtype(column.dtype), self.shard.samples * column.values, offset
            ).reshape(self.shard.samples, column.values)
            for column, offset in zip(manifest.columns, offsets, strict=True)
        }
        self._checked = np.zeros(len(self.shard.windows), dtype=bool)

    def column(self, name: str) -> np.ndarray:
        """A column as a read-only view of the file: (samples, values of a sample)."""
        return self._columns[name]

    def _offset(self, file: h5py.File, column: Column) -> int:
        shape = (self.shard.samples, *column.shape)
        return contiguous_range(file, self.path, column.dataset or column.name, shape, np.dtype(column.dtype))

    def release(self) -> None:
        """Give back the memory of pages that were read; the system may still cache them."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def _map(self) -> mmap.mmap:
        try:
            with open(self.path, "rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            help_ = way_out(error, WAY_OUT)
            raise DataError(f"{self.path}: cannot be mapped into memory ({reason(error)}). {help_}") from error

    def check_windows(self, windows: np.ndarray) -> None:
        """Compare the hash of each of these windows with the manifest, once per reader.

        Raises DataError that names the file and the window.
        """
        for window in windows[~self._checked[windows]]:
            rows = slice(int(window) * self.manifest.window, (int(window) + 1) * self.manifest.window)
            if (
                window_hash([self._columns[column.name][rows] for column in self.manifest.columns])
                != (self.shard.windows[window])
            ):
                last = min(rows.stop, self.shard.samples) - 1
                raise DataError(
                    f"{self.path}: window {window} (samples {rows.start} to {last}) is damaged: "
                    f"its hash differs from {MANIFEST_FILE}. {WAY_OUT}"
                )
            for column in self.manifest.columns:
                if column.role is Role.LABEL:
                    self._check_labels(column, self._columns[column.name][rows], int(window))
            self._checked[window] = True

    def _check_labels(self, column: Column, labels: np.ndarray, window: int) -> None:
        classes = column.num_classes
        if classes is None or not labels.size:
            return
        low = labels.min() if column.of_positions else 0  # a negative number marks positions that do not count
        wrong = ((labels < 0) & (labels != low)) | (labels >= classes)
        if wrong.any():
            bad = labels[wrong][0]
            raise DataError(
                f"{self.path}: window {window} has the label {bad} in {column.name!r}, which has {classes} classes "
                f"(0 to {classes - 1}). {WAY_OUT}"
            )


class ShardFolder:
    """The shards of one data set in one process. Each is opened and mapped at its first use."""

    def __init__(self, manifest: Manifest):
        self.manifest = manifest
        self._readers: dict[int, ShardReader] = {}
        self._lock = threading.Lock()

    def reader(self, index: int) -> ShardReader:
        """Shard number `index`, opened if necessary. Raises DataError."""
        with self._lock:
            reader = self._readers.get(index)
            if reader is None:
                reader = self._readers[index] = ShardReader(self.manifest, index)
            return reader

    def checked(self, index: int, positions: np.ndarray) -> ShardReader:
        """Shard number `index`, after comparing the hashes of the windows with these samples. Raises DataError."""
        reader = self.reader(index)
        reader.check_windows(np.flatnonzero(np.bincount(positions // self.manifest.window)))
        return reader

    def rows(self, first: int, last: int, most: int = 1 << 62) -> Iterator[tuple[ShardReader, slice]]:
        """Where the samples [first, last) are: the shards and the places in them, at most so many at a time."""
        starts = self.manifest.shard_starts
        while first < last:
            shard = int(np.searchsorted(starts, first, side="right")) - 1
            stop = min(last, first + most, int(starts[shard + 1]))
            yield self.reader(shard), slice(first - int(starts[shard]), stop - int(starts[shard]))
            first = stop

    def check(self) -> None:
        """Open every shard, to find bad files before the first step. Raises DataError."""
        for index in range(len(self.manifest.shards)):
            self.reader(index)

    def verify(self) -> None:
        """Read all data and compare every hash. Raises DataError that names the first damaged window."""
        for index, shard in enumerate(self.manifest.shards):
            self.reader(index).check_windows(np.arange(len(shard.windows)))


def window_hash(columns: Iterable[np.ndarray]) -> str:
    """blake2b-128 of the columns of one window, one after the other: 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for rows in columns:
        digest.update(np.ascontiguousarray(rows).data)
    return digest.hexdigest()


def open_untrusted(path: Path) -> h5py.File:
    """Open an HDF5 file for reading; regular files only, since opening a pipe would block.

    It takes no lock: shards never change, and network file systems often refuse locks.
    Raises DataError if the file is missing or not an HDF5 file.
    """
    try:
        if (kind := kind_of(path)) not in (None, FILE):
            raise DataError(f"{path}: is {kind}, not a file. {WAY_OUT}")
        try:
            return h5py.File(path, "r", locking=False)
        except OSError as error:
            if "locking flag" not in str(error):  # the process has opened the file already, with locks
                raise
            return h5py.File(path, "r")
    except FileNotFoundError:
        raise DataError(f"{path}: does not exist. {WAY_OUT}") from None
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened as HDF5 ({reason(error)}). {way_out(error, WAY_OUT)}") from error


def read_small(path: Path, name: str, max_nbytes: int) -> np.ndarray:
    """A dataset of floats of at most `max_nbytes` as an array, under the same rules as a shard. Raises DataError."""
    with open_untrusted(path) as file:
        offset = contiguous_range(file, path, name, None, None)
        dataset = h5py.h5d.open(file.id, name.encode())
        dtype, shape = dataset.dtype, dataset.shape
    if math.prod(shape) * dtype.itemsize > max_nbytes:
        raise DataError(f"{path}: {name!r} is larger than {max_nbytes:,} bytes. {WAY_OUT}")
    array = np.fromfile(path, dtype, math.prod(shape), offset=offset)
    return array.reshape(shape)


def contiguous_range(
    file: h5py.File, path: Path, name: str, shape: tuple[int, ...] | None, dtype: np.dtype | None
) -> int:
    """The offset in bytes of a dataset that is stored contiguously in this file.

    shape, dtype: the expected ones; None accepts any that the file can hold.
    Raises DataError for links, external storage, virtual datasets, chunks, filters, other types, other shapes and
    sizes that the file cannot hold.
    """
    dataset = _own_dataset(file, path, name)
    plist = dataset.get_create_plist()
    if plist.get_layout() == h5py.h5d.VIRTUAL:
        raise DataError(f"{path}: {name!r} is a virtual dataset, which may read other files. {WAY_OUT}")
    if plist.get_layout() == h5py.h5d.CONTIGUOUS and plist.get_external_count():
        raise DataError(f"{path}: {name!r} is stored in another file (external storage). {WAY_OUT}")
    if plist.get_layout() != h5py.h5d.CONTIGUOUS or plist.get_nfilters():
        raise DataError(f"{path}: {name!r} is chunked, compact or filtered; it must be contiguous. {WAY_OUT}")
    kind = dataset.get_type()
    if not isinstance(kind, h5py.h5t.TypeIntegerID | h5py.h5t.TypeFloatID):
        raise DataError(f"{path}: {name!r} holds {type(kind).__name__}; only plain numbers are allowed. {WAY_OUT}")
    if dtype is not None and kind.dtype != dtype:
        raise DataError(f"{path}: {name!r} holds {kind.dtype}, but must hold {dtype}. {WAY_OUT}")
    if shape is not None and dataset.shape != shape:
        raise DataError(f"{path}: {name!r} has the shape {dataset.shape}, but must have {shape}. {WAY_OUT}")
    nbytes = math.prod(dataset.shape) * kind.get_size()
    size = path.stat().st_size
    offset = dataset.get_offset()
    if offset is None or offset + nbytes > size:
        raise DataError(
            f"{path}: {name!r} ({nbytes:,} bytes) ends beyond the file ({size:,} bytes): it is truncated. {WAY_OUT}"
        )
    return offset


def _own_dataset(file: h5py.File, path: Path, name: str) -> h5py.h5d.DatasetID:
    # The low-level calls inspect each link of the path itself; `name in file` would follow them.
    place: Any = file.id
    for part in name.split("/"):
        if not isinstance(place, h5py.h5g.GroupID | h5py.h5f.FileID) or not place.links.exists(part.encode()):
            raise DataError(f"{path}: has no dataset {name!r}. {WAY_OUT}")
        if place.links.get_info(part.encode()).type != h5py.h5l.TYPE_HARD:
            raise DataError(f"{path}: {name!r} is a soft or external link, which may lead to other files. {WAY_OUT}")
        try:
            place = h5py.h5o.open(place, part.encode())
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            raise DataError(f"{path}: {name!r} cannot be read ({reason(error)}). {way_out(error, WAY_OUT)}") from error
    if not isinstance(place, h5py.h5d.DatasetID):
        raise DataError(f"{path}: {name!r} is not a dataset. {WAY_OUT}")
    return place
