"""Max-pooling of up to VECTOR channels at once in registers, as LLVM IR for Numba.

Arguments are int64: addresses of float32 (x, y) and uint8 (argmax) elements, and counts and steps in elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from singa_dask.ops.cpu.kernels.vectors import I8, I64, VECTOR, Vectors

# Sides of the square windows that nets pool by, whose pixels are compared in pairs, not one after the other.
_UNROLLED = (2, 3)

Candidate = tuple[Any, Any]  # a pixel, and its position in the window


@cast(Any, intrinsic)
def largest_of_window(typingctx, x, height, width, h_step, w_step, position, kernel_width, y, argmax, lanes):
    """y = the largest of `lanes` channels over height x width pixels from x on; argmax = position + i kernel_width + j
    of it, the first of equals; the last NaN where there are any."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        x, height, width, h_step, w_step, position, kernel_width, y, argmax, lanes = arguments
        v = Vectors(builder)

        def pixel(i: Any, j: Any, mask: Any) -> Candidate:
            place = v.at(v.at(v.address(x), builder.mul(i, h_step)), builder.mul(j, w_step))
            here = builder.add(builder.add(position, builder.mul(i, kernel_width)), j)
            return v.load(place, mask), v.splat(builder.trunc(here, I8))

        def larger(one: Candidate, later: Candidate) -> Candidate:
            wins = builder.or_(
                builder.fcmp_ordered(">", later[0], one[0]), builder.fcmp_unordered("uno", later[0], later[0])
            )
            return builder.select(wins, later[0], one[0]), builder.select(wins, later[1], one[1])

        def store(candidate: Candidate, mask: Any) -> None:
            v.store(candidate[0], v.address(y), mask)
            v.store(candidate[1], v.address(argmax, I8), mask, I8)

        def any_window(mask: Any) -> None:
            best = v.variable(ir.Constant(v.floats, [float("-inf")] * VECTOR))
            where = v.variable(ir.Constant(ir.VectorType(I8, VECTOR), None))
            with cgutils.for_range(builder, height) as i, cgutils.for_range(builder, width) as j:
                found = larger((builder.load(best), builder.load(where)), pixel(i.index, j.index, mask))
                builder.store(found[0], best)
                builder.store(found[1], where)
            store((builder.load(best), builder.load(where)), mask)

        def square(sides: Sequence[int], mask: Any) -> None:
            if not sides:
                return any_window(mask)
            side = I64(sides[0])
            fits = builder.and_(builder.icmp_signed("==", height, side), builder.icmp_signed("==", width, side))
            with builder.if_else(fits) as (then, otherwise):
                with then:
                    found = [pixel(I64(i), I64(j), mask) for i in range(sides[0]) for j in range(sides[0])]
                    while len(found) > 1:
                        pairs = zip_longest(found[::2], found[1::2])
                        found = [one if later is None else larger(one, later) for one, later in pairs]
                    store(found[0], mask)
                with otherwise:
                    square(sides[1:], mask)

        for mask in v.by_lanes(lanes):
            square(_UNROLLED, mask)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), emit


@cast(Any, intrinsic)
def gradient_of_window(
    typingctx, dy, argmax, position, kernel_width, dx, height, width, h_step, w_step, add, lanes
):  # pragma: no cover - Numba calls it
    """dx = dy where argmax = position + i kernel_width + j, else 0, over height x width pixels, of `lanes` channels;
    where `add` is not 0, dx += it."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        dy, argmax, position, kernel_width, dx, height, width, h_step, w_step, add, lanes = arguments
        v = Vectors(builder)
        adds = builder.icmp_signed("!=", add, add.type(0))
        for mask in v.by_lanes(lanes):
            gradient = v.load(v.address(dy), mask)
            where = v.load(v.address(argmax, I8), mask, I8)
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

    return types.void(*[types.int64] * 11), emit
