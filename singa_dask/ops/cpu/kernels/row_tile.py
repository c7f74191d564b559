"""The register tile under products of few rows, in LLVM IR for Numba: ROWS rows of up to PANEL columns.

It stays in registers for the whole sum: 5 x 4 vectors of AVX-512 or 5 x 2 of AVX2.
"""

from __future__ import annotations

from typing import Any, cast

from numba.core import cgutils, types
from numba.extending import intrinsic

from singa_dask.ops.cpu.kernels.numba_kernel import linked
from singa_dask.ops.cpu.kernels.vectors import I1, I64, VECTOR, Vectors

ROWS = 5
_VECTORS = 4 if VECTOR == 16 else 2
PANEL = max(VECTOR, 1) * _VECTORS


def _emit_tile(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    width = arguments[9]
    for vectors in range(1, _VECTORS + 1):
        least, most = I64((vectors - 1) * VECTOR), I64(vectors * VECTOR)
        fits = builder.and_(builder.icmp_signed(">", width, least), builder.icmp_signed("<=", width, most))
        with builder.if_then(fits):
            _emit_vectors(builder, vectors, *arguments)
    return context.get_dummy_value()


def _emit_vectors(
    builder: Any,
    vectors: int,
    a: Any,
    a_row: Any,
    a_step: Any,
    length: Any,
    b: Any,
    b_row: Any,
    c: Any,
    c_row: Any,
    rows: Any,
    width: Any,
    accumulate: Any,
    ahead: Any,
    ahead_row: Any,
) -> None:
    """The tile of so many vectors, of the last of which a part may count."""
    v = Vectors(builder)
    masks = [v.every_lane] * (vectors - 1) + [v.first_lanes(builder.sub(width, I64((vectors - 1) * VECTOR)))]
    known = [builder.and_(mask, v.splat(builder.trunc(accumulate, I1))) for mask in masks]
    last = builder.sub(rows, I64(1))
    places = [builder.select(builder.icmp_signed("<", I64(r), last), I64(r), last) for r in range(ROWS)]
    left = [builder.add(a, builder.mul(place, a_row)) for place in places]
    lines = [v.address(builder.add(c, builder.mul(place, c_row))) for place in places]
    total = [[v.variable(v.load(v.at(line, I64(i * VECTOR)), known[i])) for i in range(vectors)] for line in lines]
    below = builder.mul(I64(ROWS), builder.ashr(c_row, I64(2)))
    for line in lines:
        for i in range(vectors):
            v.prefetch(v.at(line, builder.add(below, I64(i * VECTOR))))
    with cgutils.for_range(builder, length) as loop:
        v.prefetch(v.address(builder.add(ahead, builder.mul(loop.index, ahead_row))))
        line = v.address(builder.add(b, builder.mul(loop.index, b_row)))
        right = [v.load(v.at(line, I64(i * VECTOR)), mask) for i, mask in enumerate(masks)]
        column = builder.mul(loop.index, a_step)
        for start, sums in zip(left, total, strict=True):
            element = v.splat(builder.load(v.address(builder.add(start, column)), align=4))
            for place, part in zip(sums, right, strict=True):
                builder.store(v.fma(element, part, builder.load(place)), place)
    for line, sums in zip(lines, total, strict=True):
        for i, mask in enumerate(masks):
            v.store(builder.load(sums[i]), v.at(line, I64(i * VECTOR)), mask)


@cast(Any, intrinsic)
def _tile(
    typingctx, a, a_row, a_step, length, b, b_row, c, c_row, rows, width, accumulate, ahead, ahead_row
):  # pragma: no cover - Numba calls it
    return types.void(*[types.int64] * 13), _emit_tile


@linked
def tile(a, a_row, a_step, length, b, b_row, c, c_row, rows, width, accumulate, ahead, ahead_row):
    """c[r, :width] = sum over q < length of a[r, q] b[q, :width] for r < rows, at most ROWS, or c += it.

    a, b, c: addresses of float32 elements; a_row, b_row, c_row: bytes from row to row; a_step: from column to column.
    Where there are fewer rows than ROWS, the last one is computed, and written, more than once. Fetched meanwhile are
    the rows below in c, which come next, and at each q what lies at the address ahead + q ahead_row.
    """
    _tile(a, a_row, a_step, length, b, b_row, c, c_row, rows, width, accumulate, ahead, ahead_row)
