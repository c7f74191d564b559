"""Rows become columns, in registers: a square of as many rows and columns as a vector has elements at a time."""

from __future__ import annotations

from typing import Any, cast

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from singa_dask.ops.cpu.kernels.numba_kernel import linked
from singa_dask.ops.cpu.kernels.vectors import I1, I32, I64, VECTOR, Vectors

_FLOAT = 4


def _interleaved(high: int) -> ir.Constant:
    """Which elements of two vectors, end to end, stand in turns in one: of their lower or their higher halves."""
    begin = high * VECTOR // 2
    lanes = [lane for i in range(begin, begin + VECTOR // 2) for lane in (i, VECTOR + i)]
    return ir.Constant(ir.VectorType(I32, VECTOR), lanes)


def _turned(builder: ir.IRBuilder, rows: list[Any]) -> list[Any]:
    """The columns of these rows. Interleaving row i with row VECTOR / 2 + i, for all i, moves the first bit of a row's
    number behind those of the column's; doing so for every bit exchanges the two numbers."""
    half = VECTOR // 2
    for _ in range(VECTOR.bit_length() - 1):
        pairs = [(rows[i], rows[half + i]) for i in range(half)]
        rows = [builder.shuffle_vector(*pair, _interleaved(high)) for pair in pairs for high in (0, 1)]
    return rows


@cast(Any, intrinsic)
def _square(typingctx, source, step, height, width, target, line, accumulate):  # pragma: no cover - Numba calls it
    """target[j, i] = source[i, j], or target += it, i < height, j < width, both at most VECTOR."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, step, height, width, target, line, accumulate = arguments
        v = Vectors(builder)

        def emit_square(full: bool) -> None:
            last = builder.sub(height, I64(1))
            rows = []
            for i in range(VECTOR):
                row = I64(i) if full else builder.select(builder.icmp_signed("<", I64(i), last), I64(i), last)
                start = v.address(builder.add(source, builder.mul(row, step)))
                rows.append(v.load(start, None if full else v.first_lanes(width)))
            mask = None if full else v.first_lanes(height)
            for j, column in enumerate(_turned(builder, rows)):
                with builder.if_then(I1(1) if full else builder.icmp_signed("<", I64(j), width)):
                    place, total = v.address(builder.add(target, builder.mul(line, I64(j)))), v.variable(column)
                    with builder.if_then(builder.trunc(accumulate, I1)):
                        builder.store(builder.fadd(column, v.load(place, mask)), total)
                    v.store(builder.load(total), place, mask)

        whole = [builder.icmp_signed("==", size, I64(VECTOR)) for size in (height, width)]
        with builder.if_else(builder.and_(*whole)) as (full, part):
            with full:
                emit_square(True)
            with part:
                emit_square(False)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), emit


@linked
def transpose(source, step, rows, columns, target, line, accumulate):
    """target[j, i] = source[i, j], or target += it, i < rows, j < columns.   source, target: addresses of float32
    elements, whose rows are contiguous and `step` and `line` bytes apart."""
    for i in range(0, rows, VECTOR):
        height = min(VECTOR, rows - i)
        for j in range(0, columns, VECTOR):
            start, place = source + i * step + _FLOAT * j, target + j * line + _FLOAT * i
            _square(start, step, height, min(VECTOR, columns - j), place, line, accumulate)
