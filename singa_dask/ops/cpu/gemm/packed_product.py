"""Products with a matrix that is packed once and stays in a core's cache.

A packed matrix (K, N) has panels of PANEL columns, (N / PANEL, K, PANEL); the last one is padded.
"""

from __future__ import annotations

from singa_dask.ops.cpu.gemm.row_tile import PANEL, ROWS, Prefetch, tiles_by_rows
from singa_dask.ops.cpu.toolkit.numba_kernel import kernel
from singa_dask.ops.cpu.toolkit.rows import StridedRows
from singa_dask.ops.cpu.toolkit.transpose import transpose
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

_LINE = 4 * PANEL
_CACHE_LINE = 64
# Each tile prefetches a cache line per step: tile i part i of the next rows, later tiles the last part again.
_LAST_PART = _LINE // _CACHE_LINE - 1
# Rows of a panel that are multiplied at once: they stay in the first-level cache. AVX2's panels are narrow, and come
# from the second level in time.
_DEPTH = {16: 96, 8: 512, 0: 1}[VECTOR]


@kernel
def product(a, panels, out, accumulate):
    """out = a (the packed matrix), or out += it.   a: (M, K), out: (M, N); rows are contiguous.

    Panel by panel, for a few rows, which stay in the cache.
    """
    rows, length = a.shape
    a_row, c_row = a.strides[0], out.strides[0]
    for p in range(panels.shape[0]):
        c, width = StridedRows(out.ctypes.data + p * _LINE, c_row), min(PANEL, out.shape[1] - p * PANEL)
        for k in range(0, length, _DEPTH):
            depth, block = min(_DEPTH, length - k), panels.ctypes.data + (p * length + k) * _LINE
            ahead = Prefetch(block + depth * _LINE, _CACHE_LINE, depth * _CACHE_LINE, _LAST_PART)
            left, adding = StridedRows(a.ctypes.data + 4 * k, a_row), accumulate or k > 0
            tiles_by_rows(left, depth, StridedRows(block, _LINE), c, rows, width, adding, ahead)


@kernel
def transposed_product(a, panels, first, last, block, out, accumulate):
    """out[:, first:last] = (a[first:last] (the packed matrix))', or out += it.   a: (M, K), rows are contiguous;
    out: (N, M), N as the packed matrix has columns.

    block: (R, PANEL), the rows that are computed before they are transposed; it should stay in the cache.
    """
    length = a.shape[1]
    a_row, c = a.strides[0], StridedRows(block.ctypes.data, block.strides[0])
    for p in range(panels.shape[0]):
        panel, width = (
            StridedRows(panels.ctypes.data + p * length * _LINE, _LINE),
            min(PANEL, out.shape[0] - p * PANEL),
        )
        for m in range(first, last, block.shape[0]):
            left, rows = a.ctypes.data + m * a_row, min(block.shape[0], last - m)
            tiles_by_rows(StridedRows(left, a_row), length, panel, c, rows, width, False, Prefetch(left, 0, 0, 0))
            target = StridedRows(out.ctypes.data + p * PANEL * out.strides[0] + 4 * m, out.strides[0])
            transpose(c, rows, width, target, accumulate)


@kernel
def narrow_product(a, panels, lone, first, last, out, accumulate):
    """The rows [first, last) of out = a (the packed matrix, and the columns `lone` behind it), or out += it.

    a: (M, K), lone: (L, K), both contiguous; out: (M, N). These L columns would leave most of a tile's vector empty;
    their vectors run along the sum. A tile prefetches the next rows of a.
    """
    length, packed = a.shape[1], out.shape[1] - lone.shape[0]
    a_row, c_row = a.strides[0], out.strides[0]
    for r in range(first, last, ROWS):
        rows = min(ROWS, last - r)
        left, c = a.ctypes.data + r * a_row, out.ctypes.data + r * c_row
        for p in range(panels.shape[0]):
            panel, width = StridedRows(panels.ctypes.data + p * length * _LINE, _LINE), min(PANEL, packed - p * PANEL)
            target, ahead = StridedRows(c + p * _LINE, c_row), Prefetch(left + ROWS * a_row, 4 * ROWS, 0, 0)
            tiles_by_rows(StridedRows(left, a_row), length, panel, target, rows, width, accumulate, ahead)
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
