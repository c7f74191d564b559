"""The matrix products of a layer by the row tile, where BLAS is slower.   B rows, I inputs, O outputs.

                  few rows                                    few outputs, many rows
    y = x W       streamed: W is read in place                narrow: W is packed
    dW = x' dy    BLAS                                        long transposed, dW' = dy' x: x is read in place
    dx = dy W'    transposed, dx' = W dy': dy' is packed      BLAS

BLAS packs the large matrix however few the rows are, and computes as many outputs as fill its tile. Here W is read
once for y, and once per panel of rows of dx. BLAS also computes y of more than STREAMED rows, dW where all three sizes
are large and, with AVX2, dx of rows that do not fill tiles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.gemm import packed_product, streamed_product
from singa_dask.ops.cpu.gemm.row_tile import PANEL, ROWS, pack_right
from singa_dask.ops.cpu.toolkit import workspace
from singa_dask.ops.cpu.toolkit.team import Team
from singa_dask.ops.cpu.toolkit.vectors import VECTOR

Product = Callable[[Team, int, Array, Array, Array, bool], None]

# Sizes of a mini-batch, or numbers of outputs, that count as few. Larger ones repay the packing of BLAS, and sooner
# where vectors are short.
FEW = range(ROWS, 1 + (256 if VECTOR == 16 else 128))
# The largest number of rows for which reading W in place is faster than packing it.
STREAMED = 128
# The smallest number of inputs and outputs for which starting tiles and packing the small matrix cost little.
LEAST = 16 * VECTOR
# The most elements of scratch memory that a thread keeps, 16 MiB.
_KEPT = 1 << 22
# Rows of a panel of dx' that are computed before they are transposed; they should stay in the first-level cache.
_TRANSPOSED = 16 * ROWS


def product_of(a: Array, b: Array, out: Array) -> Product | None:
    """The function by which the tile computes out = a b, or out += a b; None where BLAS is faster.

    It takes a team, the number of its threads to use, a, b, out and whether to accumulate.
    """
    (rows, length), columns = a.shape, b.shape[1]
    if VECTOR == 0 or not all(array.dtype == np.float32 for array in (a, b, out)) or not out.flags.c_contiguous:
        return None
    by_rows, by_columns, in_place = a.flags.c_contiguous, a.strides[0] == a.itemsize, b.flags.c_contiguous
    if not (in_place or b.flags.f_contiguous):
        return None
    if rows in FEW and min(length, columns) >= LEAST and by_rows:
        if in_place:
            return _streamed if rows <= STREAMED else None
        return _transposed if _fills_tiles(rows) else None
    if columns in FEW and columns < LEAST <= min(rows, length):
        if by_rows:
            return _narrow
        return _long_transposed if length not in FEW and by_columns and in_place else None
    return None


def _fills_tiles(columns: int) -> bool:
    """Whether the last tile has enough independent sums: with AVX2, more than one vector of columns."""
    return VECTOR == 16 or -columns % PANEL < VECTOR


def packed_shape(length: int, columns: int) -> tuple[int, ...]:
    """The shape of the panels of a matrix (length, columns)."""
    return -(-columns // PANEL), length, PANEL


class _Scratch(threading.local):
    """Each thread's memory for packed matrices and blocks."""

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def arrays(self, use: str, *shapes: tuple[int, ...]) -> list[Array]:
        """Uninitialised arrays of these shapes, the thread's until it asks for the same use again."""
        size = workspace.elements(*shapes)
        if size > _KEPT:
            return workspace.cut(np.empty(size, np.float32), *shapes)
        if use not in self._buffers or self._buffers[use].size < size:
            self._buffers[use] = np.empty(size, np.float32)
        return workspace.cut(self._buffers[use], *shapes)


_scratch = _Scratch()


def _packed(matrix: Array) -> Array:
    (panels,) = _scratch.arrays("packed", packed_shape(*matrix.shape))
    pack_right(matrix, 0, panels)
    return panels


def _streamed(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    rows, columns = out.shape
    panels = -(-columns // PANEL)

    def run(share: slice) -> None:
        first, last = PANEL * share.start, min(PANEL * share.stop, columns)
        depth = streamed_product.DEPTH
        packed, panel = _scratch.arrays("blocks", (rows + ROWS - 1, depth), (depth, PANEL))
        streamed_product.product(a, b, first, last, packed, panel, out, accumulate)

    team.share(panels, min(count, panels), run)


def _transposed(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    panels, rows = _packed(a.T), b.T

    def run(share: slice) -> None:
        (block,) = _scratch.arrays("blocks", (_TRANSPOSED, PANEL))
        packed_product.transposed_product(rows, panels, share.start, share.stop, block, out, accumulate)

    team.share(len(rows), min(count, len(rows) // ROWS), run)


def _narrow(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    rest = b.shape[1] % VECTOR
    packed = b.shape[1] - (rest if rest <= VECTOR // 2 else 0)
    panels, lone = _packed(b[:, :packed]), np.ascontiguousarray(b[:, packed:].T)
    team.share(
        len(out),
        min(count, len(out) // ROWS),
        lambda share: packed_product.narrow_product(a, panels, lone, share.start, share.stop, out, accumulate),
    )


def _long_transposed(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    transposed = np.empty(out.T.shape, out.dtype)
    _streamed(team, count, b.T, a.T, transposed, False)
    np.add(out, transposed.T, out=out) if accumulate else np.copyto(out, transposed.T)
