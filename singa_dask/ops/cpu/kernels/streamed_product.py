"""Products of few rows with a matrix that is read where it lies, each element once from memory."""

from __future__ import annotations

from singa_dask.ops.cpu.kernels.numba_kernel import kernel
from singa_dask.ops.cpu.kernels.row_tile import PANEL, ROWS, tile

# Rows of the matrix that are multiplied at once: a panel of them stays in a core's cache for all tiles.
_DEPTH = 256
_CACHE_LINE = 64
# A row of a panel lies in so many lines of the cache, wherever it begins.
_LINES = 4 * PANEL // _CACHE_LINE + 1


@kernel
def product(a, b, first, last, out, accumulate):
    """out[:, first:last] = a b[:, first:last], or out += it.

    a: (M, K), of any strides; b: (K, N), out: (M, N), whose rows are contiguous.
    Caches do not foresee a walk down the columns of b, so tiles fetch the next panel while they compute: the first one
    a line of each of its rows, the second one the line behind it, and so on.
    """
    rows, length = a.shape
    a_row, a_step, b_row, c_row = a.strides[0], a.strides[1], b.strides[0], out.strides[0]
    for k in range(0, length, _DEPTH):
        depth = min(_DEPTH, length - k)
        for j in range(first, last, PANEL):
            panel, width = b.ctypes.data + k * b_row + 4 * j, min(PANEL, last - j)
            ahead = panel + 4 * PANEL if j + PANEL < last else b.ctypes.data + (k + _DEPTH) * b_row + 4 * first
            for r in range(0, rows, ROWS):
                left, c = a.ctypes.data + r * a_row + k * a_step, out.ctypes.data + r * c_row + 4 * j
                line = ahead + min(r // ROWS, _LINES - 1) * _CACHE_LINE
                tile(
                    left, a_row, a_step, depth, panel, b_row, c, c_row, min(ROWS, rows - r), width,
                    accumulate or k > 0, line, b_row,
                )  # fmt: skip
