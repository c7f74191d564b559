"""The micro-kernel under convolution: one register tile of a sum of matrix products, as LLVM IR for Numba.

    c[targets[r] + j] = start[starts[r] + j]
                        + sum over n, q of a[rows[r] + runs[n] + q a_step] b[n b_run + q b_step + j]

for the ROWS rows r and up to two vectors of columns j. Rows and runs are found through tables of offsets, so that a
product runs over pixels of padded images where they lie: nothing is gathered into a matrix first ("batch-reduce GEMM",
Georganas et al. 2020). The tile stays in registers for the whole sum: ROWS x 2 accumulators, two vectors of b and one
broadcast element of a fill the 32 registers of AVX-512 (12 x 2) or the 16 of AVX2 (6 x 2). To change a tile's size,
change `_ROWS`; every table must be padded to a multiple of it. Sums for weights have a tile of WEIGHTS rows.
"""

from __future__ import annotations

from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from singa_dask.ops.cpu.kernels.vectors import I64, VECTOR, Vectors

_ROWS = {16: 12, 8: 6, 0: 1}
ROWS = _ROWS[VECTOR]
# As many as registers hold: two tiles have the 25 weights of a 5 x 5 window in one channel, which 12 rows miss by one.
WEIGHTS = 13 if VECTOR == 16 else ROWS
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
        a, b, start, c = (v.address(address) for address in (a, b, start, c))
        rows, runs, starts, targets = (v.address(address, I64) for address in (rows, runs, starts, targets))

        def entry(pointer: Any, table: Any, index: Any) -> Any:
            return v.at(pointer, builder.load(v.at(table, index)))

        pixels = [entry(a, rows, I64(r)) for r in range(height)]
        for last in v.by_lanes(lanes):
            masks = [None] * (vectors - 1) + [last]
            total = [[v.variable(part) for part in v.row(entry(start, starts, I64(r)), masks)] for r in range(height)]
            with cgutils.for_range(builder, count) as outer:
                run = builder.load(v.at(runs, outer.index))
                panel = v.at(b, builder.mul(outer.index, b_run))
                with cgutils.for_range(builder, length) as inner:
                    offset = builder.add(run, builder.mul(inner.index, a_step))
                    right = v.row(v.at(panel, builder.mul(inner.index, b_step)), masks)
                    for r in range(height):
                        left = v.splat(builder.load(v.at(pixels[r], offset)))
                        for part, place in zip(right, total[r], strict=True):
                            builder.store(v.fma(left, part, builder.load(place)), place)
            for r in range(height):
                target = entry(c, targets, I64(r))
                for n, mask in enumerate(masks):
                    v.store(builder.load(total[r][n]), v.at(target, I64(n * VECTOR)), mask)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        typingctx, a, rows, a_step, runs, count, length, b, b_run, b_step, start, starts, c, targets, lanes
    ):  # pragma: no cover - Numba calls it
        return types.void(*[types.int64] * 14), emit

    return tile


tile_of_one, tile_of_two = _tile(ROWS, 1), _tile(ROWS, 2)
weights_of_one, weights_of_two = _tile(WEIGHTS, 1), _tile(WEIGHTS, 2)


@cast(Any, intrinsic)
def copy_lines(typingctx, source, step, target, target_step, count, lanes):  # pragma: no cover - Numba calls it
    """`lanes` elements, at most VECTOR, of each of `count` lines. Addresses of float32; steps in elements."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        source, step, target, target_step, count, lanes = arguments
        v = Vectors(builder)
        source, target = v.address(source), v.address(target)
        for mask in v.by_lanes(lanes):
            with cgutils.for_range(builder, count) as line:
                part = v.load(v.at(source, builder.mul(line.index, step)), mask)
                v.store(part, v.at(target, builder.mul(line.index, target_step)), mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), emit
