"""Products by packed blocks of the right matrix, and of the left one where its columns are contiguous."""

from __future__ import annotations

from singa_dask.ops.cpu.gemm.row_tile import (
    PANEL,
    ROWS,
    Prefetch,
    pack_left,
    pack_right,
    tiles_by_rows,
    tiles_of_packed,
)
from singa_dask.ops.cpu.toolkit.numba_kernel import kernel
from singa_dask.ops.cpu.toolkit.rows import Rows

# Steps of the sum that are packed at once: a panel of them stays in a core's first-level cache.
DEPTH = 128
# Rows of a that are packed at once.
HEIGHT = 8 * ROWS
_LINE = 4 * PANEL


@kernel
def product(a, b, first, last, panels, packed, out, accumulate):
    """out[:, first:last] = a b[:, first:last], or out += it.

    a: (M, K) and b: (K, N), with contiguous rows or columns; out: (M, N), with contiguous rows.
    panels: (P, D, PANEL), D <= DEPTH; they should stay in a core's second-level cache. D rows of P PANEL columns of b
    are packed at a time and multiplied by all rows of a. packed: HEIGHT D elements, for contiguous columns of a.
    """
    rows, length = a.shape
    a_row, a_step, c_row = a.strides[0], a.strides[1], out.strides[0]
    depth, wide = panels.shape[1], panels.shape[0] * PANEL
    for j in range(first, last, wide):
        columns = min(wide, last - j)
        for k in range(0, length, depth):
            lines, adding = min(depth, length - k), accumulate or k > 0
            pack_right(b[k : k + lines, j : j + columns], 0, panels)
            for m in range(0, rows, HEIGHT):
                height, left = min(HEIGHT, rows - m), a.ctypes.data + m * a_row + k * a_step
                if a_step != 4:
                    pack_left(Rows(left, a_step), height, lines, packed.ctypes.data)
                for p in range(0, columns, PANEL):
                    panel, width = Rows(panels.ctypes.data + 4 * p * depth, _LINE), min(PANEL, columns - p)
                    c, ahead = Rows(out.ctypes.data + m * c_row + 4 * (j + p), c_row), Prefetch(left, 0, 0, 0)
                    if a_step == 4:
                        tiles_by_rows(Rows(left, a_row), lines, panel, c, height, width, adding, ahead)
                    else:
                        tiles_of_packed(packed.ctypes.data, lines, panel, c, height, width, adding, ahead)
