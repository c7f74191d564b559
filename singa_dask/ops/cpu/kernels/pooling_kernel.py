"""Max-pooling of up to VECTOR channels at once in registers, as LLVM IR for Numba.

Arguments are int64: addresses of float32 (x, y) and uint8 (argmax) elements, and counts and steps in elements.
"""

from __future__ import annotations

from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from singa_dask.ops.cpu.kernels.vectors import I8, VECTOR, Vectors


@cast(Any, intrinsic)
def largest_of_window(typingctx, x, height, width, h_step, w_step, position, kernel_width, y, argmax, lanes):
    """y = the largest of `lanes` channels over height x width pixels from x on; argmax = position + i kernel_width + j
    of it, the first of equals; the last NaN where there are any."""

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
                larger = builder.or_(
                    builder.fcmp_ordered(">", pixel, builder.load(best)), builder.fcmp_unordered("uno", pixel, pixel)
                )
                builder.store(builder.select(larger, pixel, builder.load(best)), best)
                builder.store(builder.select(larger, here, builder.load(where)), where)
        v.store(builder.load(best), v.address(y), mask)
        v.store(builder.load(where), v.address(argmax, I8), mask, I8)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), emit


def _gradient_of_window(whole: bool) -> Any:
    """dx = dy where argmax = position + i kernel_width + j, else 0, over height x width pixels; where `add` is not 0,
    dx += it. Of `lanes` channels, or of a whole vector: a load that follows a store with a mask must wait for it.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        dy, argmax, position, kernel_width, dx, height, width, h_step, w_step, add, lanes = arguments
        v = Vectors(builder)
        mask = v.every_lane if whole else v.first_lanes(lanes)
        gradient = v.load(v.address(dy), mask)
        where = v.load(v.address(argmax, I8), mask, I8)
        adds = builder.icmp_signed("!=", add, add.type(0))
        with cgutils.for_range(builder, height) as i:
            line = v.at(v.address(dx), builder.mul(i.index, h_step))
            first = builder.add(position, builder.mul(i.index, kernel_width))
            with cgutils.for_range(builder, width) as j:
                pixel = v.at(line, builder.mul(j.index, w_step))
                here = v.splat(builder.trunc(builder.add(first, j.index), I8))
                part = builder.select(builder.icmp_unsigned("==", where, here), gradient, v.zero)
                with builder.if_else(adds) as (then, otherwise):
                    with then:
                        v.store(builder.fadd(v.load(pixel, mask), part), pixel, mask)
                    with otherwise:
                        v.store(part, pixel, mask)
        return context.get_dummy_value()

    @intrinsic
    def gradient(
        typingctx, dy, argmax, position, kernel_width, dx, height, width, h_step, w_step, add, lanes
    ):  # pragma: no cover - Numba calls it
        return types.void(*[types.int64] * 11), emit

    return gradient


gradient_of_window, gradient_of_whole_window = (_gradient_of_window(whole) for whole in (False, True))
