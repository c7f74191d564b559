"""Transposed copies in registers, by squares of as many rows and columns as a vector has elements."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from singa_dask.ops.cpu.toolkit.intrinsics import emitted
from singa_dask.ops.cpu.toolkit.numba_kernel import linked
from singa_dask.ops.cpu.toolkit.rows import StridedRows
from singa_dask.ops.cpu.toolkit.vectors import I1, I32, I64, VECTOR, Vectors

_FLOAT = 4


def _interleaved(high: int) -> ir.Constant:
    """The order of elements that interleaves the lower, or the higher, halves of two vectors."""
    begin = high * VECTOR // 2
    lanes = [lane for i in range(begin, begin + VECTOR // 2) for lane in (i, VECTOR + i)]
    return ir.Constant(ir.VectorType(I32, VECTOR), lanes)


def _transposed(builder: ir.IRBuilder, rows: list[Any]) -> list[Any]:
    """The columns of these rows.

    Interleaving row i with row VECTOR / 2 + i, for all i, moves the first bit of the row number behind the bits of the
    column number. After as many rounds as there are bits the two numbers are exchanged.
    """
    half = VECTOR // 2
    for _ in range(VECTOR.bit_length() - 1):
        pairs = [(rows[i], rows[half + i]) for i in range(half)]
        rows = [builder.shuffle_vector(*pair, _interleaved(high)) for pair in pairs for high in (0, 1)]
    return rows


@emitted
def _square(v: Vectors, source: StridedRows, height: Any, width: Any, target: StridedRows, accumulate: Any) -> None:
    """target[j, i] = source[i, j], or target += it, i < height, j < width, both at most VECTOR."""
    builder = v.builder

    def emit_square(full: bool) -> None:
        last = builder.sub(height, I64(1))
        rows = []
        for i in range(VECTOR):
            row = I64(i) if full else builder.select(builder.icmp_signed("<", I64(i), last), I64(i), last)
            start = v.address(builder.add(source.address, builder.mul(row, source.step)))
            rows.append(v.load(start, None if full else v.first_lanes(width)))
        mask = None if full else v.first_lanes(height)
        for j, column in enumerate(_transposed(builder, rows)):
            with builder.if_then(I1(1) if full else builder.icmp_signed("<", I64(j), width)):
                place = v.address(builder.add(target.address, builder.mul(target.step, I64(j))))
                total = v.variable(column)
                with builder.if_then(builder.trunc(accumulate, I1)):
                    builder.store(builder.fadd(column, v.load(place, mask)), total)
                v.store(builder.load(total), place, mask)

    whole = [builder.icmp_signed("==", size, I64(VECTOR)) for size in (height, width)]
    with builder.if_else(builder.and_(*whole)) as (full, part):
        with full:
            emit_square(True)
        with part:
            emit_square(False)


@linked
def transpose(source: StridedRows, rows, columns, target: StridedRows, accumulate):
    """target[j, i] = source[i, j], or target += it, i < rows, j < columns."""
    for i in range(0, rows, VECTOR):
        height = min(VECTOR, rows - i)
        for j in range(0, columns, VECTOR):
            start = StridedRows(source.address + i * source.step + _FLOAT * j, source.step)
            place = StridedRows(target.address + j * target.step + _FLOAT * i, target.step)
            _square(start, height, min(VECTOR, columns - j), place, accumulate)
