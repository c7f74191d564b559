"""The matrix products of a layer by the row tile, where BLAS is slower.   B rows, I inputs, O outputs.

                  few rows                              few outputs, many rows
    y = x W       streamed: W is read where it lies     narrow: W is packed
    dW = x' dy    tall: dy is packed                    long and turned, dW' = dy' x: x is read where it lies
    dx = dy W'    turned, dx' = W dy': dy' is packed    tall: W' is packed

What is large is read, and written, once and in the order of memory. BLAS packs it first, for however few rows, and
computes as many outputs as fill its tile. Where all three are many, dW alone is faster here, long: dy in blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from singa_dask.ops.cpu.kernels import packed_product, streamed_product
from singa_dask.ops.cpu.kernels.row_tile import PANEL, ROWS
from singa_dask.ops.cpu.kernels.vectors import CPU, VECTOR
from singa_dask.ops.cpu.team import Team

Array = Any
Product = Callable[[Team, int, Array, Array, Array, bool], None]

# The tile of AVX2 has half of the registers, and is slower than BLAS.
SUITABLE = VECTOR == 16
# Zen multiplies one vector at a time, and the tile keeps it busy better than BLAS does. Intel's cores multiply two,
# for which packed panels are better: there (Emerald Rapids) BLAS is faster, but for few outputs, of which the tile
# takes 1/1.1 of its time, and for a transposed matrix, 1/1.1 to 1/1.8 with up to 64 rows.
ON_ZEN = CPU.startswith("znver")
_FEW_TRANSPOSED = 64
# Rows of a mini-batch, or outputs, that are few; more repay what BLAS packs.
FEW = range(ROWS, 257)
# Inputs and outputs from which on starting tiles and packing what is small do not matter.
LEAST = 4 * PANEL
# Rows and panels of a block of dy, which takes half of a core's cache.
_DEPTH, _PANELS = 256, 8
# Elements of dx' that are made before they are turned; they should stay in a core's cache.
_TURNED = 1 << 14


def faster_than_blas(a: Array, b: Array, out: Array) -> Product | None:
    """How out = a b, or out += a b, is computed by so many threads of a team; None where BLAS is to do it."""
    product = product_of(a, b, out)
    faster = ON_ZEN or product is _narrow or (product is _turned and len(a) <= _FEW_TRANSPOSED)
    return product if faster else None


def product_of(a: Array, b: Array, out: Array) -> Product | None:
    """How the tile computes it; None where it does not suit."""
    (rows, length), columns = a.shape, b.shape[1]
    if not SUITABLE or not all(array.dtype == np.float32 for array in (a, b, out)) or not out.flags.c_contiguous:
        return None
    by_rows, by_columns, in_place = a.flags.c_contiguous, a.strides[0] == a.itemsize, b.flags.c_contiguous
    if rows in FEW and min(length, columns) >= LEAST and by_rows:
        return _streamed if in_place else _turned if b.flags.f_contiguous else None
    if length in FEW and min(rows, columns) >= LEAST and (by_rows or by_columns):
        return _tall
    if columns in FEW and columns < LEAST <= min(rows, length) and by_rows:
        return _narrow
    if length not in FEW and min(rows, length) >= LEAST and by_columns and in_place:
        return _long if LEAST <= columns <= 2 * rows else _long_turned if columns in FEW else None
    return None


def packed_shape(length: int, columns: int) -> tuple[int, ...]:
    """Of the panels of a matrix (length, columns)."""
    return -(-columns // PANEL), length, PANEL


def _packed(matrix: Array) -> Array:
    return packed_product.pack([matrix], np.empty(packed_shape(*matrix.shape), matrix.dtype))


def _streamed(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    columns = b.shape[1]
    panels = -(-columns // PANEL)

    def run(share: slice) -> None:
        streamed_product.product(a, b, PANEL * share.start, min(PANEL * share.stop, columns), out, accumulate)

    team.share(panels, min(count, panels), run)


def _tall(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    panels = _packed(b)
    team.share(
        len(out),
        min(count, len(out) // ROWS),
        lambda share: packed_product.tall_product(a, panels, share.start, share.stop, out, accumulate),
    )


def _turned(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    panels, rows = _packed(a.T), b.T
    height = ROWS * max(1, _TURNED // len(a) // ROWS)

    def run(share: slice) -> None:
        block = np.empty((height, len(a)), a.dtype)
        for first in range(share.start, share.stop, height):
            part = rows[first : min(first + height, share.stop)]
            turned, target = block[: len(part)], out[:, first : first + len(part)]
            packed_product.product(part, panels, turned, False)
            np.add(target, turned.T, out=target) if accumulate else np.copyto(target, turned.T)

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


def _long(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    columns = b.shape[1]
    panels = -(-columns // PANEL)

    def run(share: slice) -> None:
        block = np.empty((min(_PANELS, share.stop - share.start), min(_DEPTH, len(b)), PANEL), b.dtype)
        first, last = PANEL * share.start, min(PANEL * share.stop, columns)
        packed_product.long_product(a, b, first, last, block, out, accumulate)

    team.share(panels, min(count, panels), run)


def _long_turned(team: Team, count: int, a: Array, b: Array, out: Array, accumulate: bool) -> None:
    turned = np.empty(out.T.shape, out.dtype)
    _streamed(team, count, b.T, a.T, turned, False)
    np.add(out, turned.T, out=out) if accumulate else np.copyto(out, turned.T)
