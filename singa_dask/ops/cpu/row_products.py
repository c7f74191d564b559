"""The matrix products of a layer by the row tile, where BLAS is slower.   B rows, I inputs, O outputs.

                  few rows                              few outputs, many rows
    y = x W       streamed: W is read where it lies     narrow: W is packed
    dW = x' dy    blocked                               long and turned, dW' = dy' x: x is read where it lies
    dx = dy W'    turned, dx' = W dy': dy' is packed    blocked

BLAS packs what is large for however few rows, and computes as many outputs as fill its tile; here W is read once for
y, and for every panel of rows of dx. Blocked packs blocks of b, and of a whose columns are contiguous, as BLAS does.
With AVX-512 it also has y of more than STREAMED rows, and dW where all three are many; with AVX2 BLAS has those and dx
of rows that do not fill tiles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu import workspace
from singa_dask.ops.cpu.kernels import blocked_product, packed_product, streamed_product
from singa_dask.ops.cpu.kernels.row_tile import PANEL, ROWS, pack_right
from singa_dask.ops.cpu.kernels.vectors import VECTOR
from singa_dask.ops.cpu.team import Team

Product = Callable[[Team, int, Array, Array, Array, bool], None]

# Rows of a mini-batch, or outputs, that are few; more repay what BLAS packs, and sooner where vectors are short.
FEW = range(ROWS, 1 + (256 if VECTOR == 16 else 128))
# Rows up to which W is better read where it lies than packed first.
STREAMED = 128
# Inputs and outputs from which on starting tiles and packing what is small do not matter.
LEAST = 16 * VECTOR
# Elements of a packed block of b, 768 or 256 KiB: a core's second cache has 1 or 2 MiB, or, without AVX-512, 512 KiB.
_BLOCK = (3 if VECTOR == 16 else 1) << 16
# Elements of packed matrices that a thread keeps the memory of, 16 MiB.
_KEPT = 1 << 22
# Rows of a panel of dx' that are made before they are turned; they should stay in the first cache.
_TURNED = 16 * ROWS


def product_of(a: Array, b: Array, out: Array) -> Product | None:
    """How the tile computes out = a b, or out += a b, by so many threads of a team; None where BLAS is to do it."""
    (rows, length), columns = a.shape, b.shape[1]
    if VECTOR == 0 or not all(array.dtype == np.float32 for array in (a, b, out)) or not out.flags.c_contiguous:
        return None
    by_rows, by_columns, in_place = a.flags.c_contiguous, a.strides[0] == a.itemsize, b.flags.c_contiguous
    if not (in_place or b.flags.f_contiguous):
        return None
    if rows in FEW and min(length, columns) >= LEAST and by_rows:
        if in_place:
            return _streamed if rows <= STREAMED else _blocked
        return _turned if _fills_tiles(rows) else None
    if length in FEW and min(rows, columns) >= LEAST and (by_rows or by_columns):
        return _blocked
    if columns in FEW and columns < LEAST <= min(rows, length) and by_rows:
        return _narrow
    if length not in FEW and min(rows, length) >= LEAST and by_columns and in_place:
        if columns >= LEAST:
            return _blocked if VECTOR == 16 else None
        return _long_turned if columns in FEW else None
    return None


def _fills_tiles(columns: int) -> bool:
    """Whether the last tile is wide enough not to wait for its own sums: of AVX2, wider than a vector."""
    return VECTOR == 16 or -columns % PANEL < VECTOR


def packed_shape(length: int, columns: int) -> tuple[int, ...]:
    """Of the panels of a matrix (length, columns)."""
    return -(-columns // PANEL), length, PANEL


class _Scratch(threading.local):
    """Memory of each thread that products have packed matrices and blocks in."""

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


def _turned(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    panels, rows = _packed(a.T), b.T

    def run(share: slice) -> None:
        (block,) = _scratch.arrays("blocks", (_TURNED, PANEL))
        packed_product.turned_product(rows, panels, share.start, share.stop, block, out, accumulate)

    team.share(len(rows), min(count, len(rows) // ROWS), run)


def _blocked(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    rows, columns = out.shape
    depth = min(blocked_product.DEPTH, len(b))

    def multiply(a: Array, out: Array, first: int, last: int) -> None:
        width = min(-(-(last - first) // PANEL), _BLOCK // (depth * PANEL))
        panels, packed = _scratch.arrays("blocks", (width, depth, PANEL), (blocked_product.HEIGHT, depth))
        blocked_product.product(a, b, first, last, panels, packed, out, accumulate)

    if columns < rows:
        team.share(rows, min(count, rows // ROWS), lambda share: multiply(a[share], out[share], 0, columns))
    else:
        across = -(-columns // PANEL)
        team.share(
            across,
            min(count, across),
            lambda share: multiply(a, out, PANEL * share.start, min(PANEL * share.stop, columns)),
        )


def _narrow(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    rest = b.shape[1] % VECTOR
    packed = b.shape[1] - (rest if rest <= VECTOR // 2 else 0)
    panels, lone = _packed(b[:, :packed]), np.ascontiguousarray(b[:, packed:].T)
    team.share(
        len(out),
        min(count, len(out) // ROWS),
        lambda share: packed_product.narrow_product(a, panels, lone, share.start, share.stop, out, accumulate),
    )


def _long_turned(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    turned = np.empty(out.T.shape, out.dtype)
    _streamed(team, count, b.T, a.T, turned, False)
    np.add(out, turned.T, out=out) if accumulate else np.copyto(out, turned.T)
