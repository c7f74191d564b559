"""NumPy archives (.npz): x and y, or x_train, y_train, x_test, y_test, or any named arrays."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from singa_dask.data.sources.arrays import arrays_format
from singa_dask.data.sources.datasets import Dataset
from singa_dask.data.sources.files import MAX_BLOCK_NBYTES, Rows, reading
from singa_dask.errors import DataError

_REMEDY = "Write it with numpy.savez, or copy it again."
_SUFFIX = ".npy"
_LOCAL_HEADER_NBYTES = 30


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with reading(path, _REMEDY), zipfile.ZipFile(path) as archive:
        yield archive


def _list(path: Path) -> dict[str, Dataset]:
    found = {}
    with _opened(path) as archive:
        for info in archive.infolist():
            if info.filename.endswith(_SUFFIX):
                with archive.open(info) as file:
                    found[info.filename.removesuffix(_SUFFIX)] = _describe(*_header(file), info)
    return found


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """(shape, Fortran order, type) of an array; the file is then at the values."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def _describe(shape: tuple[int, ...], fortran: bool, dtype: np.dtype, info: zipfile.ZipInfo) -> Dataset:
    packed = info.compress_type != zipfile.ZIP_STORED
    together = shape[0] if fortran and shape else 1
    if packed and shape:
        # Each block is unpacked from the start of the array: few blocks.
        together = max(1, MAX_BLOCK_NBYTES * shape[0] // max(1, info.file_size))
    fault = ""
    if dtype.hasobject:
        fault = "holds pickled objects, which are not read. Save numbers or texts: array.astype(...)."
    elif math.prod(shape) * dtype.itemsize > info.file_size:
        fault = f"ends early: its header says {shape} of {dtype}, and {info.file_size:,} bytes are there. {_REMEDY}"
    return Dataset(
        shape,
        dtype,
        max(together, shape[0] if fortran and shape else 1),
        "compressed" if packed else "",
        dtype.kind in "SU",
        fault=fault,
    )


def _read(rows: Rows, names: Sequence[str]) -> list[np.ndarray]:
    with _opened(rows.path) as archive:
        return [_read_one(rows.path, archive, archive.getinfo(name + _SUFFIX), *rows.index(name)) for name in names]


def _read_one(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, rows: slice, *others: slice) -> np.ndarray:
    with archive.open(info) as file:
        shape, fortran, dtype = _header(file)
        if shape[0] < rows.stop:
            raise DataError(f"{path}: has changed since the command began. Start it again.")
        begin = file.tell()
        whole = (rows.start, rows.stop) == (0, shape[0])
        if fortran or whole:  # to its end, where the checksum is compared
            values = np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran else "C")
            return values[rows, *others]
        width = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        place, nbytes = begin + rows.start * width, (rows.stop - rows.start) * width
        if info.compress_type == zipfile.ZIP_STORED:
            data = _stored(path, info, place, nbytes)
        else:
            file.seek(place)
            data = file.read(nbytes)
    if len(data) < nbytes:
        raise EOFError(f"{info.filename} ends early")
    return np.frombuffer(data, dtype).reshape(-1, *shape[1:])[:, *others]


def _stored(path: Path, info: zipfile.ZipInfo, place: int, nbytes: int) -> bytes:
    """A range of an uncompressed member. `ZipExtFile.seek` would read everything before it."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER_NBYTES)
        name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        file.seek(name + extra + place, io.SEEK_CUR)
        return file.read(nbytes)


FORMAT = arrays_format("npz", (".npz",), _list, _read)
