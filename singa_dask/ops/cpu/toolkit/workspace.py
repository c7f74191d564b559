"""Arrays aligned to cache lines; several of them in one buffer."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from singa_dask.ops.arrays import Array

LINE = 16  # float32 elements of a cache line
_LINE_BYTES = 4 * LINE


def aligned(make: Callable[..., Array], shape: tuple[int, ...], dtype: Any) -> Array:
    """np.empty, or np.zeros, of this shape, aligned to a cache line."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    memory = make(nbytes + _LINE_BYTES, np.uint8)
    begin = -memory.ctypes.data % _LINE_BYTES
    return memory[begin : begin + nbytes].view(dtype).reshape(shape)


def _whole_lines(shape: tuple[int, ...]) -> int:
    return -(-prod(shape) // LINE) * LINE


def elements(*shapes: tuple[int, ...]) -> int:
    """Elements of a float32 buffer from which `cut` can make arrays of these shapes, at any alignment."""
    return LINE + sum(map(_whole_lines, shapes))


def cut(buffer: Array, *shapes: tuple[int, ...]) -> list[Array]:
    """Arrays of these shapes in a flat float32 buffer of at least `elements`."""
    begin, arrays = -(buffer.ctypes.data // buffer.itemsize) % LINE, []
    for shape in shapes:
        arrays.append(buffer[begin : begin + prod(shape)].reshape(shape))
        begin += _whole_lines(shape)
    return arrays
