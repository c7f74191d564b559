"""Products of few rows with a matrix that is read where it lies, each element once from memory."""

from __future__ import annotations

from singa_dask.ops.cpu.kernels.numba_kernel import kernel
from singa_dask.ops.cpu.kernels.row_tile import PANEL, copy_panel, pack_left, tiles_by_rows, tiles_of_packed
from singa_dask.ops.cpu.kernels.vectors import VECTOR

# Rows of the matrix that are multiplied at once: a panel of them and the next one stay in a core's first cache.
DEPTH = {16: 64, 8: 256, 0: 1}[VECTOR]
_CACHE_LINE = 64
# Lines of the cache of a row of a panel; one more where it begins within one.
_LINES = 4 * PANEL // _CACHE_LINE
# Rows that are a multiple of so many bytes apart share few sets of the first cache, and panels of them are copied.
# Those of AVX-512, with fewer rows, are read in place.
_POOR_STEP = {16: 1 << 62, 8: 1 << 9, 0: 1}[VECTOR]


@kernel
def product(a, b, first, last, packed, block, out, accumulate):
    """out[:, first:last] = a b[:, first:last], or out += it.

    a: (M, K), whose rows or columns are contiguous; b: (K, N), out: (M, N), whose rows are. packed: where `pack_left`
    packs DEPTH columns of a, if these are contiguous. block: (DEPTH, PANEL), where panels of b are copied to
    that begin within lines of the cache, or whose rows would not stay there.
    Caches do not foresee a walk down the columns of b, so tiles fetch the next panel while they compute: the first one
    a line of each of its rows, the second one the line behind it, and so on.
    """
    rows, length = a.shape
    a_row, a_step, b_row, c_row = a.strides[0], a.strides[1], b.strides[0], out.strides[0]
    for k in range(0, length, DEPTH):
        depth, adding, left = min(DEPTH, length - k), accumulate or k > 0, a.ctypes.data + k * a_step
        if a_step != 4:
            pack_left(left, a_step, rows, depth, packed.ctypes.data)
        for j in range(first, last, PANEL):
            panel, width = b.ctypes.data + k * b_row + 4 * j, min(PANEL, last - j)
            ahead = panel + 4 * PANEL if j + PANEL < last else b.ctypes.data + (k + DEPTH) * b_row + 4 * first
            c, line, last_fetched = out.ctypes.data + 4 * j, b_row, _LINES - 1
            if b_row % _CACHE_LINE > 0 or panel % _CACHE_LINE > 0:
                last_fetched = _LINES
            if last_fetched == _LINES or b_row % _POOR_STEP == 0:
                copy_panel(panel, b_row, depth, width, block.ctypes.data)
                panel, line = block.ctypes.data, 4 * PANEL
            if a_step == 4:
                tiles_by_rows(
                    left, a_row, depth, panel, line, c, c_row, rows, width, adding, ahead, b_row, _CACHE_LINE,
                    last_fetched,
                )  # fmt: skip
            else:
                tiles_of_packed(
                    packed.ctypes.data, depth, panel, line, c, c_row, rows, width, adding, ahead, b_row, _CACHE_LINE,
                    last_fetched,
                )  # fmt: skip
