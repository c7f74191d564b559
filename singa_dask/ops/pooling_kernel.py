"""Max-pooling of up to VECTOR channels at once in registers, as LLVM IR for Numba.

Arguments are int64: addresses of float32 (x, y, dy, dx) and uint8 (argmax) elements, and counts and steps in elements.
"""

from __future__ import annotations

from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from singa_dask.ops.vectors import F32, I8, VECTOR, Vectors


@cast(Any, intrinsic)
def largest_of_window(typingctx, x, height, width, h_step, w_step, position, kernel_width, y, argmax, lanes):
    """y = the largest of `lanes` channels over height x width pixels from x on; argmax = position + i kernel_width + j
    of it, the first of equals."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        x, height, width, h_step, w_step, position, kernel_width, y, argmax, lanes = arguments
        v = Vectors(builder)
        mask = v.first_lanes(lanes)
        best = v.variable(ir.Constant(v.floats, [float("-inf")] * VECTOR))
        where = v.variable(ir.Constant(ir.VectorType(I8, VECTOR), None))
        with cgutils.for_range(builder, height) as i:
            line = v.at(v.address(x), builder.mul(i.index, h_step))
            first = builder.add(position, builder.mul(i.index, kernel_width))
            with cgutils.for_range(builder, width) as j:
                pixel = v.load(v.at(line, builder.mul(j.index, w_step)), mask)
                here = v.splat(builder.trunc(builder.add(first, j.index), I8))
                larger = builder.fcmp_ordered(">", pixel, builder.load(best))
                builder.store(builder.select(larger, pixel, builder.load(best)), best)
                builder.store(builder.select(larger, here, builder.load(where)), where)
        v.store(builder.load(best), v.address(y), mask)
        v.store(builder.load(where), v.address(argmax, I8), mask, I8)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), emit


@cast(Any, intrinsic)
def sum_of_windows(typingctx, dy, argmax, height, width, h_step, w_step, position, up, left, dx, lanes):
    """dx = sum of dy, of `lanes` channels, over height x width windows whose argmax is position - i up - j left."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        dy, argmax, height, width, h_step, w_step, position, up, left, dx, lanes = arguments
        v = Vectors(builder)
        mask = v.first_lanes(lanes)
        total = v.variable(v.zero)
        with cgutils.for_range(builder, height) as i:
            line = builder.mul(i.index, h_step)
            first = builder.sub(position, builder.mul(i.index, up))
            with cgutils.for_range(builder, width) as j:
                offset = builder.add(line, builder.mul(j.index, w_step))
                gradient = v.load(v.at(v.address(dy), offset), mask)
                where = v.load(v.at(v.address(argmax, I8), offset), mask, I8)
                here = v.splat(builder.trunc(builder.sub(first, builder.mul(j.index, left)), I8))
                chosen = builder.select(builder.icmp_signed("==", where, here), gradient, v.zero)
                builder.store(builder.fadd(builder.load(total), chosen), total)
        v.store(builder.load(total), v.address(dx, F32), mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 11), emit
