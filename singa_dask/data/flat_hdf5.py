"""Contiguous arrays in files, which are read and written past HDF5, as bytes at offsets.

HDF5 itself would crash the process where the disk is full.
"""

from __future__ import annotations

import os

import h5py
import numpy as np


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
