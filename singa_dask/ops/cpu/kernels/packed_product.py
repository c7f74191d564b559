"""Products with a matrix that is packed once and stays in a core's cache.

A matrix (K, N) lies in panels of PANEL columns, (N / PANEL, K, PANEL), the last one filled up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singa_dask.ops.cpu.kernels.numba_kernel import kernel
from singa_dask.ops.cpu.kernels.row_tile import PANEL, ROWS, tile

Array = Any

_LINE = 4 * PANEL
_CACHE_LINE = 64


def pack(matrices: Sequence[Array], panels: Array) -> Array:
    """panels: matrices (K, N) of any strides, side by side."""
    column = 0
    for matrix in matrices:
        begin = 0
        while begin < matrix.shape[1]:
            panel, place = divmod(column + begin, PANEL)
            width = min(PANEL - place, matrix.shape[1] - begin)
            panels[panel, :, place : place + width] = matrix[:, begin : begin + width]
            begin += width
        column += matrix.shape[1]
    return panels


@kernel
def product(a, panels, out, accumulate):
    """out = a (the packed matrix), or out += it.   a: (M, K), out: (M, N); rows are contiguous.

    Panel by panel: for a few rows, which stay in the cache.
    """
    rows, length = a.shape
    a_row, c_row = a.strides[0], out.strides[0]
    for p in range(panels.shape[0]):
        b, width = panels.ctypes.data + p * length * _LINE, min(PANEL, out.shape[1] - p * PANEL)
        for r in range(0, rows, ROWS):
            left, c, height = a.ctypes.data + r * a_row, out.ctypes.data + r * c_row + p * _LINE, min(ROWS, rows - r)
            tile(left, a_row, 4, length, b, _LINE, c, c_row, height, width, accumulate, b, 0)


@kernel
def tall_product(a, panels, first, last, out, accumulate):
    """The rows [first, last) of `product`, row by row: for many, which are written in the order of memory.

    a: (M, K), of any strides; its columns that come next are fetched.
    """
    length, columns = a.shape[1], out.shape[1]
    a_row, a_step, c_row = a.strides[0], a.strides[1], out.strides[0]
    for r in range(first, last, ROWS):
        left, height = a.ctypes.data + r * a_row, min(ROWS, last - r)
        for p in range(panels.shape[0]):
            b, width = panels.ctypes.data + p * length * _LINE, min(PANEL, columns - p * PANEL)
            c, ahead = out.ctypes.data + r * c_row + p * _LINE, left + _CACHE_LINE
            tile(left, a_row, a_step, length, b, _LINE, c, c_row, height, width, accumulate, ahead, a_step)


@kernel
def long_product(a, b, first, last, panels, out, accumulate):
    """out[:, first:last] = a b[:, first:last], or out += it, for a long sum.   a: (M, K), of any strides; b: (K, N),
    out: (M, N), whose rows are contiguous.

    panels: (P, D, PANEL), which should stay in the cache: D rows of P PANEL columns of b are packed at a time, and
    multiplied by all rows of a.
    """
    rows, length = a.shape
    depth, wide = panels.shape[1], panels.shape[0] * PANEL
    a_row, a_step, c_row = a.strides[0], a.strides[1], out.strides[0]
    for j in range(first, last, wide):
        columns = min(wide, last - j)
        for k in range(0, length, depth):
            lines = min(depth, length - k)
            _pack_block(b[k : k + lines, j : j + columns], panels)
            for r in range(0, rows, ROWS):
                left, height = a.ctypes.data + r * a_row + k * a_step, min(ROWS, rows - r)
                for p in range(0, columns, PANEL):
                    panel, width = panels.ctypes.data + 4 * p * depth, min(PANEL, columns - p)
                    c, ahead = out.ctypes.data + r * c_row + 4 * (j + p), left + _CACHE_LINE
                    tile(
                        left, a_row, a_step, lines, panel, _LINE, c, c_row, height, width, accumulate or k > 0, ahead,
                        a_step,
                    )  # fmt: skip


@kernel
def _pack_block(b, panels):
    for q in range(b.shape[0]):
        for p in range(0, b.shape[1], PANEL):
            source, target = b[q, p : p + PANEL], panels[p // PANEL, q]
            for j in range(source.size):
                target[j] = source[j]


@kernel
def narrow_product(a, panels, lone, first, last, out, accumulate):
    """The rows [first, last) of out = a (the packed matrix, and the columns `lone` behind it), or out += it.

    a: (M, K), lone: (L, K), both contiguous; out: (M, N). Vectors run along the sum for these L columns, which would
    leave most of a tile's vector empty.
    """
    length, packed = a.shape[1], out.shape[1] - lone.shape[0]
    a_row, c_row = a.strides[0], out.strides[0]
    for r in range(first, last, ROWS):
        left, height = a.ctypes.data + r * a_row, min(ROWS, last - r)
        for p in range(panels.shape[0]):
            b, width = panels.ctypes.data + p * length * _LINE, min(PANEL, packed - p * PANEL)
            c, ahead = out.ctypes.data + r * c_row + p * _LINE, left + ROWS * a_row
            tile(left, a_row, 4, length, b, _LINE, c, c_row, height, width, accumulate, ahead, 4 * ROWS)
        for i in range(r, r + height):
            for n in range(lone.shape[0]):
                total = _dot(a[i], lone[n])
                out[i, packed + n] = out[i, packed + n] + total if accumulate else total


@kernel
def _dot(a, b):
    total = a.dtype.type(0)
    for q in range(a.size):
        total += a[q] * b[q]
    return total
