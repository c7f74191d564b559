"""Products with a matrix that is packed once and stays in a core's cache.

A matrix (K, N) lies in panels of PANEL columns, (N / PANEL, K, PANEL), the last one filled up.
"""

from __future__ import annotations

from singa_dask.ops.cpu.kernels.numba_kernel import kernel
from singa_dask.ops.cpu.kernels.row_tile import PANEL, ROWS, tiles_by_rows
from singa_dask.ops.cpu.kernels.transpose import transpose
from singa_dask.ops.cpu.kernels.vectors import VECTOR

_LINE = 4 * PANEL
_CACHE_LINE = 64
# Each of the first tiles fetches a line a step, and so such a part of the next rows; the others the last part again.
_LAST_PART = _LINE // _CACHE_LINE - 1
# Rows of a panel that are multiplied at once: they stay in the first cache, or, of AVX2's, which are narrow, come from
# the second one in time.
_DEPTH = {16: 96, 8: 512, 0: 1}[VECTOR]


@kernel
def product(a, panels, out, accumulate):
    """out = a (the packed matrix), or out += it.   a: (M, K), out: (M, N); rows are contiguous.

    Panel by panel, for a few rows, which stay in the cache. Tile i fetches the ith part of what comes next of the
    panels.
    """
    rows, length = a.shape
    a_row, c_row = a.strides[0], out.strides[0]
    for p in range(panels.shape[0]):
        c, width = out.ctypes.data + p * _LINE, min(PANEL, out.shape[1] - p * PANEL)
        for k in range(0, length, _DEPTH):
            depth, block = min(_DEPTH, length - k), panels.ctypes.data + (p * length + k) * _LINE
            tiles_by_rows(
                a.ctypes.data + 4 * k, a_row, depth, block, _LINE, c, c_row, rows, width, accumulate or k > 0,
                block + depth * _LINE, _CACHE_LINE, depth * _CACHE_LINE, _LAST_PART,
            )  # fmt: skip


@kernel
def turned_product(a, panels, first, last, block, out, accumulate):
    """out[:, first:last] = (a[first:last] (the packed matrix))', or out += it.   a: (M, K), rows are contiguous;
    out: (N, M), N as the packed matrix has columns.

    block: (R, PANEL), the rows that are made before they are turned; it should stay in the cache.
    """
    length = a.shape[1]
    a_row, c_row = a.strides[0], block.strides[0]
    for p in range(panels.shape[0]):
        panel, width = panels.ctypes.data + p * length * _LINE, min(PANEL, out.shape[0] - p * PANEL)
        for m in range(first, last, block.shape[0]):
            left, rows = a.ctypes.data + m * a_row, min(block.shape[0], last - m)
            tiles_by_rows(
                left, a_row, length, panel, _LINE, block.ctypes.data, c_row, rows, width, False, left, 0, 0, 0
            )
            target = out.ctypes.data + p * PANEL * out.strides[0] + 4 * m
            transpose(block.ctypes.data, c_row, rows, width, target, out.strides[0], accumulate)


@kernel
def narrow_product(a, panels, lone, first, last, out, accumulate):
    """The rows [first, last) of out = a (the packed matrix, and the columns `lone` behind it), or out += it.

    a: (M, K), lone: (L, K), both contiguous; out: (M, N). Vectors run along the sum for these L columns, which would
    leave most of a tile's vector empty. A tile fetches the rows of a that come next.
    """
    length, packed = a.shape[1], out.shape[1] - lone.shape[0]
    a_row, c_row = a.strides[0], out.strides[0]
    for r in range(first, last, ROWS):
        rows = min(ROWS, last - r)
        left, c = a.ctypes.data + r * a_row, out.ctypes.data + r * c_row
        for p in range(panels.shape[0]):
            panel, width = panels.ctypes.data + p * length * _LINE, min(PANEL, packed - p * PANEL)
            tiles_by_rows(
                left, a_row, length, panel, _LINE, c + p * _LINE, c_row, rows, width, accumulate, left + ROWS * a_row,
                4 * ROWS, 0, 0,
            )  # fmt: skip
        for i in range(r, r + rows):
            for n in range(lone.shape[0]):
                total = _dot(a[i], lone[n])
                out[i, packed + n] = out[i, packed + n] + total if accumulate else total


@kernel
def _dot(a, b):
    total = a.dtype.type(0)
    for q in range(a.size):
        total += a[q] * b[q]
    return total
