"""HDF5 files of contiguous arrays, which are read and written past HDF5, as bytes at offsets.

HDF5 itself would crash the process where the disk is full, and follows links to other files.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from singa_dask.data.manifest import WAY_OUT
from singa_dask.errors import DataError, reason, way_out


def create(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Reserve the place of an array in a new file. Returns the offset in bytes."""
    kept = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    kept.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    kept.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    kept.set_obj_track_times(False)  # equal data make equal files
    link = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    link.set_char_encoding(h5py.h5t.CSET_UTF8)
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    kind = h5py.h5t.py_create(dtype, logical=True)
    return h5py.h5d.create(file.id, name.encode(), kind, space, kept, link).get_offset() or 0


def write_at(descriptor: int, offset: int, array: np.ndarray) -> None:
    """Write all of a contiguous array. Raises OSError."""
    left: memoryview = array.reshape(-1).view(np.uint8).data
    while left:
        count = os.pwrite(descriptor, left, offset)
        left, offset = left[count:], offset + count


def read_at(descriptor: int, offset: int, out: np.ndarray) -> None:
    """Fill a contiguous array. Raises OSError, also where the file ends before."""
    left: memoryview = out.reshape(-1).view(np.uint8).data
    while left:
        count = os.preadv(descriptor, [left], offset)
        if not count:
            raise OSError("the file ends too early")
        left, offset = left[count:], offset + count


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
