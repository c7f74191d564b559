"""Products of few rows with a matrix that is read in place, each element once from memory."""

from __future__ import annotations

from singa_dask.ops.cpu.gemm.row_tile import PANEL, Prefetch, copy_panel, pack_left, tiles_by_rows, tiles_of_packed
from singa_dask.ops.cpu.toolkit.numba_kernel import kernel
from singa_dask.ops.cpu.toolkit.rows import StridedRows
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

# Rows of the matrix that are multiplied at once: a panel of them and the next one fit into a core's first-level cache.
DEPTH = {16: 64, 8: 256, 0: 1}[VECTOR]
_CACHE_LINE = 64
# Cache lines of a row of a panel; one more where it begins inside a line.
_LINES = 4 * PANEL // _CACHE_LINE
# Rows that are a multiple of so many bytes apart share few sets of the first-level cache; panels of them are copied.
# Panels of AVX-512 have fewer rows and are read in place.
_POOR_STEP = {16: 1 << 62, 8: 1 << 9, 0: 1}[VECTOR]


@kernel
def product(a, b, first, last, packed, block, out, accumulate):
    """out[:, first:last] = a b[:, first:last], or out += it.

    a: (M, K), with contiguous rows or columns; b: (K, N), out: (M, N), with contiguous rows. packed: room for DEPTH
    packed columns of a, if these are contiguous. block: (DEPTH, PANEL), for copies of panels of b that begin inside
    cache lines, or whose rows would not stay in the cache.
    Hardware does not prefetch a walk down the columns of b, so tiles prefetch the next panel while they compute:
    tile i loads line i of each row.
    """
    rows, length = a.shape
    a_row, a_step, b_row, c_row = a.strides[0], a.strides[1], b.strides[0], out.strides[0]
    for k in range(0, length, DEPTH):
        depth, adding, left = min(DEPTH, length - k), accumulate or k > 0, a.ctypes.data + k * a_step
        if a_step != 4:
            pack_left(StridedRows(left, a_step), rows, depth, packed.ctypes.data)
        for j in range(first, last, PANEL):
            panel, width = b.ctypes.data + k * b_row + 4 * j, min(PANEL, last - j)
            ahead = panel + 4 * PANEL if j + PANEL < last else b.ctypes.data + (k + DEPTH) * b_row + 4 * first
            c, line, last_fetched = StridedRows(out.ctypes.data + 4 * j, c_row), b_row, _LINES - 1
            if b_row % _CACHE_LINE > 0 or panel % _CACHE_LINE > 0:
                last_fetched = _LINES
            if last_fetched == _LINES or b_row % _POOR_STEP == 0:
                copy_panel(StridedRows(panel, b_row), depth, width, block.ctypes.data)
                panel, line = block.ctypes.data, 4 * PANEL
            right, fetched = StridedRows(panel, line), Prefetch(ahead, b_row, _CACHE_LINE, last_fetched)
            if a_step == 4:
                tiles_by_rows(StridedRows(left, a_row), depth, right, c, rows, width, adding, fetched)
            else:
                tiles_of_packed(packed.ctypes.data, depth, right, c, rows, width, adding, fetched)
