"""The HDF5 file of a checkpoint: named arrays and attributes, read and written block by block, with a hash.

HDF5 lays out the file. Each array is one run of bytes in it, which is read and written past HDF5.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from singa_dask.data.flat_hdf5 import create, read_at, write_at
from singa_dask.errors import CheckpointError
from singa_dask.exchange.sharded import BLOCK, Gathered
from singa_dask.files import regular
from singa_dask.layers.partition import Shape
from singa_dask.training.memory import format_nbytes

_HASHED = ("format", "step", "seed", "data")
_HEADERS = 1 << 12  # bytes of HDF5's own beside an array, at most


class DiskFull(OSError):
    """The disk has no room for a file."""


class SavedArray:
    """An array in a checkpoint. np.asarray(saved) reads it; saved.flat[first:last] reads these elements, in C order.

    It stays readable when the file is replaced or removed.
    """

    def __init__(self, file: _File, offset: int, shape: Shape, dtype: np.dtype) -> None:
        self.shape, self.dtype, self.size = shape, dtype, prod(shape)
        self._file, self._offset = file, offset

    @property
    def flat(self) -> _Elements:
        return _Elements(self)

    def blocks(self) -> Iterator[np.ndarray]:
        """All elements, flat, block by block."""
        for first in range(0, self.size, BLOCK):
            yield self.flat[first : first + BLOCK]

    def read(self, first: int, out: np.ndarray) -> None:
        """Read as many elements as `out` has, from element `first`."""
        read_at(self._file.descriptor, self._offset + first * self.dtype.itemsize, out)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array in a file is copied when it is read")
        whole = np.empty(self.shape, self.dtype)
        self.read(0, whole.reshape(-1))
        return whole if dtype is None else whole.astype(dtype, copy=False)


class _Elements:
    """The elements of a saved array in C order."""

    def __init__(self, saved: SavedArray) -> None:
        self._saved = saved

    def __getitem__(self, where: slice) -> np.ndarray:
        first, last, _ = where.indices(self._saved.size)
        out = np.empty(max(last - first, 0), self._saved.dtype)
        self._saved.read(first, out)
        return out


class _File:
    """An open file, which is closed with the last object that uses it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.close = weakref.finalize(self, os.close, self.descriptor)

    @contextmanager
    def as_hdf5(self, mode: str) -> Iterator[h5py.File]:
        with io.FileIO(self.descriptor, "r" if mode == "r" else "r+", closefd=False) as raw, h5py.File(raw, mode) as f:
            yield f


def write(path: Path, attributes: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write a file.

    arrays: NumPy's, saved ones or Gathered, written in this order.
    Raises DiskFull before anything is gathered, OSError where writing fails.
    """
    file = _File(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666))
    _reserve(file, path, nbytes_of(arrays))
    os.ftruncate(file.descriptor, 0)  # HDF5 begins with an empty file
    with file.as_hdf5("w") as hdf5:
        offsets = {name: create(hdf5, name, array.shape, array.dtype) for name, array in arrays.items()}
        for name, value in {**attributes, "sha256": "0" * hashlib.sha256().digest_size * 2}.items():
            hdf5.attrs[name] = value
    _reserve(file, path, os.fstat(file.descriptor).st_size)
    for name, array in arrays.items():
        offset = offsets[name]
        for block in _blocks(array):
            write_at(file.descriptor, offset, block)
            offset += block.nbytes
    with file.as_hdf5("r+") as hdf5:
        hdf5.attrs.modify("sha256", _digest(hdf5, _saved_arrays(hdf5, file)))
    file.close()


def nbytes_of(arrays: Mapping[str, Any]) -> int:
    """Bytes of a file with these arrays, at most."""
    return sum(_nbytes(array) + _HEADERS for array in arrays.values())


def _reserve(file: _File, path: Path, nbytes: int) -> None:
    """Have the file system set the bytes of a file aside."""
    try:
        os.posix_fallocate(file.descriptor, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free = shutil.disk_usage(path.parent).free
        sizes = f"needs {format_nbytes(nbytes)}, and the disk has {format_nbytes(free)} free"
        raise DiskFull(f"{sizes} ({error.strerror})") from error


def read(path: Path, expected: str) -> tuple[dict[str, Any], dict[str, SavedArray]]:
    """The attributes and arrays of a file of format `expected`, whose hash is verified.

    Raises CheckpointError where it is of another format or was changed, and what h5py raises where it is damaged.
    """
    file = _File(regular(path, os.O_RDONLY))
    with file.as_hdf5("r") as hdf5:
        if hdf5.attrs.get("format") != expected:
            raise CheckpointError(
                f"it has the format {hdf5.attrs.get('format')!r}, and this version of singa_dask reads {expected!r}. "
                "Train again, or use the version that has written it."
            )
        arrays = _saved_arrays(hdf5, file)
        if hdf5.attrs.get("sha256") != _digest(hdf5, arrays):
            raise CheckpointError(
                "its contents do not match its hash: the file was changed or damaged. Use an older checkpoint."
            )
        return dict(hdf5.attrs), arrays


def _blocks(array: Any) -> Iterator[np.ndarray]:
    return array.blocks() if isinstance(array, Gathered | SavedArray) else iter([np.ravel(array)])


def _nbytes(array: Any) -> int:
    return prod(array.shape) * array.dtype.itemsize


def _saved_arrays(hdf5: h5py.File, file: _File) -> dict[str, SavedArray]:
    found: dict[str, SavedArray] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            offset = item.id.get_offset()
            if item.is_virtual or item.external or (offset is None and item.size):
                raise CheckpointError(f"{name} is not stored in one piece. Use an older checkpoint.")
            found[name] = SavedArray(file, offset or 0, item.shape, item.dtype)

    hdf5.visititems(visit)  # sorted by name; never follows soft or external links
    return found


def _digest(hdf5: h5py.File, arrays: Mapping[str, SavedArray]) -> str:
    digest = hashlib.sha256()
    for key in _HASHED:
        digest.update(f"{key}={hdf5.attrs[key]}\n".encode())
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        for block in array.blocks():
            digest.update(block.view(np.uint8).data)
    return digest.hexdigest()
