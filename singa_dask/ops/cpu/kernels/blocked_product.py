"""Products of matrices, block by block: of the right one, and of the left where its columns are contiguous, packed."""

from __future__ import annotations

from singa_dask.ops.cpu.kernels.numba_kernel import kernel
from singa_dask.ops.cpu.kernels.row_tile import PANEL, ROWS, pack_left, pack_right, tiles_by_rows, tiles_of_packed

# Steps of the sum that are packed at once: a panel of them stays in a core's first cache.
DEPTH = 128
# Rows of a that are packed at once.
HEIGHT = 8 * ROWS
_LINE = 4 * PANEL


@kernel
def product(a, b, first, last, panels, packed, out, accumulate):
    """out[:, first:last] = a b[:, first:last], or out += it.   a: (M, K), whose rows or columns are contiguous, b:
    (K, N), likewise; out: (M, N), whose rows are contiguous.

    panels: (P, D, PANEL), D <= DEPTH, which should stay in a core's second cache: D rows of P PANEL columns of b are
    packed at a time, and multiplied by all rows of a. If a's columns are contiguous, they are packed too, into
    `packed`, HEIGHT D elements.
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
                    pack_left(left, a_step, height, lines, packed.ctypes.data)
                for p in range(0, columns, PANEL):
                    panel, width = panels.ctypes.data + 4 * p * depth, min(PANEL, columns - p)
                    c = out.ctypes.data + m * c_row + 4 * (j + p)
                    if a_step == 4:
                        tiles_by_rows(left, a_row, lines, panel, _LINE, c, c_row, height, width, adding, left, 0, 0, 0)
                    else:
                        tiles_of_packed(
                            packed.ctypes.data, lines, panel, _LINE, c, c_row, height, width, adding, left, 0, 0, 0
                        )
