"""The matrix products of a layer whose mini-batch has few rows, by the row tile.   B rows, I inputs, O outputs.

    y = x W       streamed: W is read where it lies
    dW = x' dy    tall: dy is packed, dW is written in the order of memory
    dx = dy W'    turned, dx' = W dy': dy' is packed, W is read in the order of memory

W is large beside the others. BLAS packs it anew in every product that reads it, for however few rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from singa_dask.ops.cpu.kernels import packed_product, streamed_product
from singa_dask.ops.cpu.kernels.row_tile import PANEL, ROWS
from singa_dask.ops.cpu.kernels.vectors import VECTOR
from singa_dask.ops.cpu.team import Team

Array = Any
Product = Callable[[Team, int, Array, Array, Array, bool], None]

# The tile of AVX2 has half of the registers, and is slower than BLAS.
FASTER = VECTOR == 16
# Rows of a mini-batch that the tile multiplies faster than BLAS does; more repay the packing.
FEW = range(ROWS, 257)
# Inputs and outputs from which on starting tiles and packing what is small do not matter.
LEAST = 4 * PANEL
# Elements of dx' that are made before they are turned; they should stay in a core's cache.
_TURNED = 1 << 14


def product_of(a: Array, b: Array, out: Array) -> Product | None:
    """How the tile computes out = a b, or out += a b, by so many threads of a team; None where BLAS is to do it."""
    (rows, length), columns = a.shape, b.shape[1]
    if not FASTER or columns < LEAST or max(rows, length) < LEAST:
        return None
    if not all(array.dtype == np.float32 for array in (a, b, out)) or not out.flags.c_contiguous:
        return None
    if rows in FEW and length >= LEAST and a.flags.c_contiguous:
        return _streamed if b.flags.c_contiguous else _turned if b.flags.f_contiguous else None
    if length in FEW and rows >= LEAST and a.flags.f_contiguous and b.flags.c_contiguous:
        return _tall
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
