"""The micro-kernel of convolution: one register tile of a sum of matrix products, as LLVM IR for Numba.

    c[r, j] = start[r, j] + sum over n, q of a[r, n, q] b[n, q, j]

for the ROWS rows r and up to two vectors of columns j. Rows and runs are found through tables of offsets, so that a
product reads the pixels of padded images in place: nothing is gathered into a matrix first ("batch-reduce GEMM",
Georganas et al. 2020). The tile stays in registers for the whole sum. ROWS x 2 accumulators, two vectors of b and one
broadcast element of a fill the 32 registers of AVX-512 (12 x 2) or the 16 of AVX2 (6 x 2). The rows' offsets and one
moving pointer fill the address registers. AVX2's tile of one vector waits for its own sums; one of twice the rows does
not. To change the size of a tile, change `_ROWS`; every table must be padded to a multiple of it. Sums for weights
have a tile of WEIGHTS rows, and their own tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from singa_dask.ops.cpu.toolkit.intrinsics import emitted
from singa_dask.ops.cpu.toolkit.numba_parts import cgutils
from singa_dask.ops.cpu.toolkit.vectors import I64, VECTOR, Vectors

FLOAT, OFFSET = 4, 8  # bytes of an element, and of an entry of a table
_ROWS = {16: 12, 8: 6, 0: 1}
ROWS = _ROWS[VECTOR]
# The 25 weights of a 5 x 5 window in one channel are two tiles of 13, where 12 miss them by one.
WEIGHTS = {16: 13, 8: 6, 0: 1}[VECTOR]
# Whether one tile of twice the rows is faster than two of one vector. AVX-512's are tall enough for its registers.
TALL = VECTOR == 8
# Columns of the wider tile, and so of a packed panel of b.
PANEL = 2 * VECTOR


class GatheredMatrix(NamedTuple):
    """The left matrix, a[r, n, q] = address[offsets[r] + runs[n] + q step].   Offsets and steps are in elements."""

    address: int
    offsets: int
    step: int


class SumTerms(NamedTuple):
    """The terms of the sum: `number` runs n of `length` terms q.   offsets: address of a table of their offsets."""

    offsets: int
    number: int
    length: int


class Panel(NamedTuple):
    """The right matrix, b[n, q, j] = address[n run + q step + j]."""

    address: int
    run: int
    step: int


class ScatteredRows(NamedTuple):
    """Rows of elements: row r begins at address[offsets[r]]."""

    address: int
    offsets: int


def _tile(height: int, vectors: int) -> Any:
    """The intrinsic of a tile of so many rows and vectors; the last vector has `lanes` elements."""

    def tile(
        v: Vectors, a: GatheredMatrix, runs: SumTerms, b: Panel, start: ScatteredRows, c: ScatteredRows, lanes: Any
    ) -> None:
        builder = v.builder

        def bytes_of(elements: Any) -> Any:
            return builder.mul(elements, I64(FLOAT))

        def entry(table: Any, index: Any) -> Any:
            return bytes_of(builder.load(v.at(table, index)))

        rows, offsets, starts, targets = (
            v.address(address, I64) for address in (a.offsets, runs.offsets, start.offsets, c.offsets)
        )
        pixels = [entry(rows, I64(r)) for r in range(height)]
        sources = [v.address(builder.add(start.address, entry(starts, I64(r)))) for r in range(height)]
        a_bytes, run_bytes, b_bytes = bytes_of(a.step), bytes_of(b.run), bytes_of(b.step)
        for last in v.by_lanes(lanes):
            masks = [None] * (vectors - 1) + [last]
            total = [[v.variable(part) for part in v.row(source, masks)] for source in sources]
            left, line = v.variable(a.address), v.variable(b.address)
            with cgutils.for_range(builder, runs.number) as run:
                builder.store(builder.add(a.address, entry(offsets, run.index)), left)
                builder.store(builder.add(b.address, builder.mul(run.index, run_bytes)), line)
                with v.rounds(runs.length):
                    column, right = builder.load(left), v.row(v.address(builder.load(line)), masks)
                    for pixel, sums in zip(pixels, total, strict=True):
                        element = v.splat(builder.load(v.address(builder.add(column, pixel))))
                        for part, place in zip(right, sums, strict=True):
                            builder.store(v.fma(element, part, builder.load(place)), place)
                    builder.store(builder.add(column, a_bytes), left)
                    builder.store(builder.add(builder.load(line), b_bytes), line)
            for r, sums in enumerate(total):
                target = v.address(builder.add(c.address, entry(targets, I64(r))))
                for n, (place, mask) in enumerate(zip(sums, masks, strict=True)):
                    v.store(builder.load(place), v.at(target, I64(n * VECTOR)), mask)

    return emitted(tile)


tile_of_one, tall_tile_of_one, tile_of_two = _tile(ROWS, 1), _tile(2 * ROWS, 1), _tile(ROWS, 2)
weights_of_one, tall_weights_of_one, weights_of_two = _tile(WEIGHTS, 1), _tile(2 * WEIGHTS, 1), _tile(WEIGHTS, 2)
