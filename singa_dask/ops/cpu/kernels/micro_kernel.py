"""The micro-kernel under convolution: one register tile of a sum of matrix products, as LLVM IR for Numba.

    c[targets[r] + j] = start[starts[r] + j]
                        + sum over n, q of a[rows[r] + runs[n] + q a_step] b[n b_run + q b_step + j]

for the ROWS rows r and up to two vectors of columns j. Rows and runs are found through tables of offsets, so that a
product runs over pixels of padded images where they lie: nothing is gathered into a matrix first ("batch-reduce GEMM",
Georganas et al. 2020). The tile stays in registers for the whole sum: ROWS x 2 accumulators, two vectors of b and one
broadcast element of a fill the 32 registers of AVX-512 (12 x 2) or the 16 of AVX2 (6 x 2); the rows' places beside one
moving pointer fill those for addresses. AVX2's tile of one vector waits for its own sums, where one of twice the rows
does not. To change a tile's size, change `_ROWS`; every table must be padded to a multiple of it. Sums for weights
have a tile of WEIGHTS rows, and tables of their own.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from singa_dask.ops.cpu.kernels.vectors import I64, VECTOR, Vectors

_FLOAT = 4
_ROWS = {16: 12, 8: 6, 0: 1}
ROWS = _ROWS[VECTOR]
# The 25 weights of a 5 x 5 window in one channel are two tiles of 13, where 12 miss them by one.
WEIGHTS = {16: 13, 8: 6, 0: 1}[VECTOR]
# Whether two tiles of one vector are better one of twice the rows. AVX-512's are tall enough for its registers.
TALL = VECTOR == 8
# Columns of the wider tile, and so of a packed panel of b.
PANEL = 2 * VECTOR


def _tile(height: int, vectors: int) -> Any:
    """The intrinsic of a tile of so many rows and vectors, of the last of which `lanes` elements count.

    Its arguments are int64: addresses of float32 (a, b, start, c) and of int64 (rows, runs, starts, targets) elements,
    and counts and steps in elements.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        a, rows, a_step, runs, count, length, b, b_run, b_step, start, starts, c, targets, lanes = arguments
        v = Vectors(builder)
        rows, runs, starts, targets = (v.address(address, I64) for address in (rows, runs, starts, targets))

        def bytes_of(elements: Any) -> Any:
            return builder.mul(elements, I64(_FLOAT))

        def entry(table: Any, index: Any) -> Any:
            return bytes_of(builder.load(v.at(table, index)))

        pixels = [entry(rows, I64(r)) for r in range(height)]
        sources = [v.address(builder.add(start, entry(starts, I64(r)))) for r in range(height)]
        a_bytes, run_bytes, b_bytes = bytes_of(a_step), bytes_of(b_run), bytes_of(b_step)
        for last in v.by_lanes(lanes):
            masks = [None] * (vectors - 1) + [last]
            total = [[v.variable(part) for part in v.row(source, masks)] for source in sources]
            left, line = v.variable(a), v.variable(b)
            with cgutils.for_range(builder, count) as run:
                builder.store(builder.add(a, entry(runs, run.index)), left)
                builder.store(builder.add(b, builder.mul(run.index, run_bytes)), line)
                with v.rounds(length):
                    column, right = builder.load(left), v.row(v.address(builder.load(line)), masks)
                    for pixel, sums in zip(pixels, total, strict=True):
                        element = v.splat(builder.load(v.address(builder.add(column, pixel))))
                        for part, place in zip(right, sums, strict=True):
                            builder.store(v.fma(element, part, builder.load(place)), place)
                    builder.store(builder.add(column, a_bytes), left)
                    builder.store(builder.add(builder.load(line), b_bytes), line)
            for r, sums in enumerate(total):
                target = v.address(builder.add(c, entry(targets, I64(r))))
                for n, (place, mask) in enumerate(zip(sums, masks, strict=True)):
                    v.store(builder.load(place), v.at(target, I64(n * VECTOR)), mask)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typingctx, a, rows, a_step, runs, count, length, b, b_run, b_step, start, starts, c, targets, lanes
    ):  # pragma: no cover - Numba calls it
        return types.void(*[types.int64] * 14), emit

    return tile


tile_of_one, tall_tile_of_one, tile_of_two = _tile(ROWS, 1), _tile(2 * ROWS, 1), _tile(ROWS, 2)
weights_of_one, tall_weights_of_one, weights_of_two = _tile(WEIGHTS, 1), _tile(2 * WEIGHTS, 1), _tile(WEIGHTS, 2)


def copy(vectors: int) -> Any:
    """The intrinsic that copies `count` lines of so many vectors, of the last of which `lanes` elements count.

    Its arguments are addresses of float32; steps in elements.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        source, step, target, target_step, count, lanes = arguments
        v = Vectors(builder)
        source, target = v.address(source), v.address(target)
        for last in v.by_lanes(lanes):
            masks = [None] * (vectors - 1) + [last]
            with cgutils.for_range(builder, count) as line:
                place = v.at(target, builder.mul(line.index, target_step))
                parts = v.row(v.at(source, builder.mul(line.index, step)), masks)
                for n, (part, mask) in enumerate(zip(parts, masks, strict=True)):
                    v.store(part, v.at(place, I64(n * VECTOR)), mask)
        return context.get_dummy_value()

    @intrinsic
    def lines(typingctx, source, step, target, target_step, count, lanes):  # pragma: no cover - Numba calls it
        return types.void(*[types.int64] * 6), emit

    return lines


copy_lines = copy(1)
