"""Max-pooling of up to VECTOR channels at once in registers, as LLVM IR for Numba."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from llvmlite import ir

from singa_dask.ops.cpu.toolkit.intrinsics import emitted
from singa_dask.ops.cpu.toolkit.numba_parts import cgutils
from singa_dask.ops.cpu.toolkit.vectors import I8, I64, VECTOR, Vectors

# Sides of the common square windows, whose pixels are compared in pairs, not one after the other.
_UNROLLED = (2, 3)

Candidate = tuple[Any, Any]  # a pixel, and its position in the window


class Patch(NamedTuple):
    """The height x width pixels of an image under a window.

    Pixel (i, j) is address[i line + j step], and has the number first + i kernel_width + j in the window.
    """

    address: int
    height: int
    width: int
    line: int
    step: int
    first: int
    kernel_width: int

    def pixel(self, v: Vectors, i: Any, j: Any) -> Any:
        """A pointer to pixel (i, j)."""
        line = v.at(v.address(self.address), v.builder.mul(i, self.line))
        return v.at(line, v.builder.mul(j, self.step))

    def position(self, builder: ir.IRBuilder, i: Any, j: Any) -> Any:
        """The number of pixel (i, j) in the window."""
        return builder.add(builder.add(self.first, builder.mul(i, self.kernel_width)), j)


@emitted
def largest_of_window(v: Vectors, x: Patch, y: Any, argmax: Any, lanes: Any) -> None:
    """y = the largest of the pixels x, argmax = its number, for `lanes` channels.   y, argmax: addresses.

    The first of equals, and the last NaN where there are any.
    """
    builder = v.builder

    def pixel(i: Any, j: Any, mask: Any) -> Candidate:
        place = x.pixel(v, i, j)
        here = x.position(builder, i, j)
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
        with cgutils.for_range(builder, x.height) as i, cgutils.for_range(builder, x.width) as j:
            found = larger((builder.load(best), builder.load(where)), pixel(i.index, j.index, mask))
            builder.store(found[0], best)
            builder.store(found[1], where)
        store((builder.load(best), builder.load(where)), mask)

    def square(sides: Sequence[int], mask: Any) -> None:
        if not sides:
            return any_window(mask)
        side = I64(sides[0])
        fits = builder.and_(builder.icmp_signed("==", x.height, side), builder.icmp_signed("==", x.width, side))
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


@emitted
def gradient_of_window(v: Vectors, dy: Any, argmax: Any, dx: Patch, add: Any, lanes: Any) -> None:
    """dx = dy at the pixel whose number is argmax, else 0, for `lanes` channels; dx += it where `add` is not 0.

    dy, argmax: addresses.
    """
    builder = v.builder
    adds = builder.icmp_signed("!=", add, I64(0))
    for mask in v.by_lanes(lanes):
        gradient = v.load(v.address(dy), mask)
        where = v.load(v.address(argmax, I8), mask, I8)
        with cgutils.for_range(builder, dx.height) as i, cgutils.for_range(builder, dx.width) as j:
            pixel = dx.pixel(v, i.index, j.index)
            here = v.splat(builder.trunc(dx.position(builder, i.index, j.index), I8))
            part = builder.select(builder.icmp_unsigned("==", where, here), gradient, v.zero)
            with builder.if_else(adds) as (then, otherwise):
                with then:
                    v.store(builder.fadd(v.load(pixel, mask), part), pixel, mask)
                with otherwise:
                    v.store(part, pixel, mask)
