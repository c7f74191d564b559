"""The softmax of attention, in LLVM IR: VECTOR positions at a time, each in a lane of its own.

Scores are a matrix with a row for each position that is seen, rows LINE bytes apart. Row j is hidden from lane i where
j - whole > i.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from singa_dask.ops.cpu.toolkit.intrinsics import emitted
from singa_dask.ops.cpu.toolkit.numba_parts import cgutils
from singa_dask.ops.cpu.toolkit.vectors import I32, I64, VECTOR, Vectors

BLOCK = 64  # columns of the scores
LINE = 4 * BLOCK  # bytes


class _Lanes:
    """A column of vectors, one for each row."""

    def __init__(self, v: Vectors, address: Any):
        self._v, self._address = v, address

    def at(self, row: Any) -> Any:
        return self._v.address(self._v.builder.add(self._address, self._v.builder.mul(row, I64(LINE))))

    def load(self, row: Any) -> Any:
        return self._v.load(self.at(row))

    def store(self, vector: Any, row: Any) -> None:
        self._v.store(vector, self.at(row))


def _constant(v: Vectors, value: float) -> ir.Constant:
    return ir.Constant(v.floats, [value] * VECTOR)


def _splat(v: Vectors, address: Any) -> Any:
    return v.splat(v.builder.load(v.address(address)))


def _exp_of_negative(v: Vectors, x: Any) -> Any:
    """As exponentials.exp_of_negative."""
    builder, integers = v.builder, ir.VectorType(I32, VECTOR)
    n = v.call(f"llvm.rint.v{VECTOR}f32", v.floats, [builder.fmul(x, _constant(v, 1.44269504088896341))])
    r = v.fma(n, _constant(v, 2.12194440e-4), v.fma(n, _constant(v, -0.693359375), x))
    p = _constant(v, 1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = v.fma(p, r, _constant(v, c))
    part = v.fma(p, builder.fmul(r, r), builder.fadd(r, _constant(v, 1)))
    exponent = builder.add(builder.fptosi(n, integers), v.splat(I32(127)))
    power = builder.bitcast(builder.shl(exponent, v.splat(I32(23))), v.floats)
    return builder.select(builder.fcmp_ordered("<", x, _constant(v, -87.33654)), v.zero, builder.fmul(part, power))


def _by_row(v: Vectors, whole: Any, end: Any) -> Any:
    """Emit the loop's body for the rows that all lanes see, up to `whole`, and for those up to `end` that some see.

    Yields the row and the mask of the lanes that do not see it.
    """
    with cgutils.for_range(v.builder, whole) as loop:
        yield loop.index, None
    with cgutils.for_range(v.builder, end, start=whole) as loop:
        yield loop.index, v.first_lanes(v.builder.sub(loop.index, whole))


def _hidden(v: Vectors, mask: Any, otherwise: float, vector: Any) -> Any:
    return vector if mask is None else v.builder.select(mask, _constant(v, otherwise), vector)


@emitted
def softmax_lanes(
    v: Vectors, scores: Any, whole: Any, end: Any, scale: Any, largest: Any, total: Any, kept: Any
) -> None:
    """scores becomes exp(scale scores - largest), and 0 where it is hidden.

    largest, total: addresses of the largest scaled score of a lane so far, and of the sum of its weights. kept:
    address for the factor on what was computed with the largest score before.
    """
    builder, rows = v.builder, _Lanes(v, scores)
    factor = _splat(v, scale)
    largest, total, kept = map(v.address, (largest, total, kept))
    before = v.load(largest)
    top = v.variable(before)
    for row, mask in _by_row(v, whole, end):
        score, old = _hidden(v, mask, float("-inf"), builder.fmul(factor, rows.load(row))), builder.load(top)
        builder.store(builder.select(builder.fcmp_ordered(">", score, old), score, old), top)
    highest = builder.load(top)
    change = _exp_of_negative(v, builder.fsub(before, highest))
    added = v.variable(builder.fmul(v.load(total), change))
    lowered = builder.fneg(highest)
    for row, mask in _by_row(v, whole, end):
        weight = _hidden(v, mask, 0, _exp_of_negative(v, v.fma(factor, rows.load(row), lowered)))
        builder.store(builder.fadd(builder.load(added), weight), added)
        rows.store(weight, row)
    for vector, place in ((highest, largest), (builder.load(added), total), (change, kept)):
        v.store(vector, place)


@emitted
def softmax_lanes_backward(
    v: Vectors, scores: Any, dweights: Any, whole: Any, end: Any, scale: Any, log_sums: Any, along: Any
) -> None:
    """scores becomes the weights, and dweights, the gradient for these, becomes that for the scores.

    log_sums, along: addresses, along of the sum of weights dweights of a lane.
    """
    builder, rows, gradients = v.builder, _Lanes(v, scores), _Lanes(v, dweights)
    factor, lowered, mean = _splat(v, scale), builder.fneg(v.load(v.address(log_sums))), v.load(v.address(along))
    for row, mask in _by_row(v, whole, end):
        weight = _hidden(v, mask, 0, _exp_of_negative(v, v.fma(factor, rows.load(row), lowered)))
        rows.store(weight, row)
        change = builder.fsub(gradients.load(row), mean)
        gradients.store(builder.fmul(builder.fmul(weight, factor), change), row)


@emitted
def dot_lanes(v: Vectors, a: Any, b: Any, count: Any, target: Any) -> None:
    """target becomes the sum over `count` rows of a b, lane by lane."""
    a, b, total = _Lanes(v, a), _Lanes(v, b), v.variable(v.zero)
    with cgutils.for_range(v.builder, count) as loop:
        v.builder.store(v.fma(a.load(loop.index), b.load(loop.index), v.builder.load(total)), total)
    v.store(v.builder.load(total), v.address(target))
