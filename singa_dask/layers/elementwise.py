"""Sums, products, maxima, differences and quotients of layers, element by element.   B samples."""

from __future__ import annotations

from functools import reduce
from typing import Any, ClassVar

from singa_dask import functions
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array

_FUNCTIONS = {
    "kAdd": functions.add,
    "kMul": functions.mul,
    "kMax": functions.maximum,
    "kSub": functions.sub,
    "kDiv": functions.div,
}


class _Combination(Layer):
    """Base of layers that combine two or more sources.   x_i: (B, ...) -> y: (B, ...).

    An axis of size 1 is repeated to the size of the others. Samples may lack the first axes of the others: features
    (C,) combine with images (H, W, C), one value per channel. Raises ConfigError for other shapes.
    """

    num_sources: ClassVar[tuple[int, int | None]] = (2, None)
    rowwise: ClassVar[bool] = True

    @property
    def takes(self) -> tuple[Sharding, ...]:  # type: ignore[override]
        # An axis that is repeated cannot be divided over workers.
        same = all(self.partition.sources) and len({shape[-1] for shape in self.partition.sources}) <= 1
        return (
            (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES) if same else (Sharding.BATCH, Sharding.REPLICATED)
        )

    def setup(self, *src: Shape) -> Shape:
        axes = max(map(len, self.sources(src)))
        received = ", ".join(f"{name}: {s}" for name, s in zip(self.proto.srclayers, src, strict=False))
        if axes and () in src:  # NumPy would make (B, B) of (B,) and (B, 1)
            message = "combines one number for each sample, (B,), with more"
            raise self.problem(message, received, "Keep its axis: keepdims=True, or reshape(x, (-1, 1)).")
        self._aligned = [(*(1,) * (axes - len(shape)), *shape) for shape in src]
        self._shape = tuple(map(max, zip(*self._aligned, strict=True)))
        for shape in self._aligned:
            if any(size not in (1, whole) for size, whole in zip(shape, self._shape, strict=True)):
                raise self.problem("the sources must have the same shape, or size 1 along an axis", received)
        return self._shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        rows = x[0].shape[0]
        ctx.x_shapes, y = [each.shape for each in x], ctx.buffer("y", (rows, *self._shape))
        # Integers would overflow in their own type.
        aligned = [each.reshape(rows, *shape) for each, shape in zip(x, self._aligned, strict=True)]
        ctx.x = [each.astype(y.dtype, copy=False) for each in aligned]
        combine = getattr(ctx.ops.xp, self._function)
        combine(ctx.x[0], ctx.x[1], out=y)
        for each in ctx.x[2:]:
            combine(y, each, out=y)
        ctx.y = y
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, ...]:
        gradients = self._gradients(ctx, dy)
        return tuple(
            self._summed(dx, shape).reshape(whole)
            for dx, shape, whole in zip(gradients, self._aligned, ctx.x_shapes, strict=True)
        )

    def _summed(self, dx: Array, shape: Shape) -> Array:
        """The sum over the axes along which a source of `shape` was repeated."""
        repeated = [axis for axis, size in enumerate(shape, 1) if size != self._shape[axis - 1]]
        return dx.sum(axis=tuple(repeated), keepdims=True) if repeated else dx

    def formula(self, *x: Any) -> Any:
        return reduce(_FUNCTIONS[self.type], x)

    # What a subclass implements:

    _function: ClassVar[str]

    def _gradients(self, ctx: Context, dy: Array) -> list[Array]:
        """The gradient for each source, in the shape of y."""
        raise NotImplementedError


class Add(_Combination):
    """y = x_1 + x_2 + ..., for residual connections."""

    type: ClassVar[str] = "kAdd"
    _function: ClassVar[str] = "add"

    def _gradients(self, ctx: Context, dy: Array) -> list[Array]:
        return [dy] * len(ctx.x)


class Mul(_Combination):
    """y = x_1 x_2 ..., for gates."""

    type: ClassVar[str] = "kMul"
    _function: ClassVar[str] = "multiply"

    def _gradients(self, ctx: Context, dy: Array) -> list[Array]:
        return [self._gradient(ctx, dy, i) for i in range(len(ctx.x))]

    def _gradient(self, ctx: Context, dy: Array, i: int) -> Array:
        """dx_i = dy times the product of the other sources."""
        others = [x for j, x in enumerate(ctx.x) if j != i]
        dx = ctx.ops.xp.multiply(dy, others[0], out=ctx.buffer(f"dx{i}", dy.shape))
        for other in others[1:]:
            dx *= other
        return dx


class Max(_Combination):
    """y = the largest of x_1, x_2, ...; the gradient goes to the first of equals."""

    type: ClassVar[str] = "kMax"
    _function: ClassVar[str] = "maximum"

    def _gradients(self, ctx: Context, dy: Array) -> list[Array]:
        gradients, left = [], dy
        for i, x in enumerate(ctx.x[:-1]):
            dx = ctx.ops.xp.multiply(left, x == ctx.y, out=ctx.buffer(f"dx{i}", dy.shape))
            left = ctx.ops.xp.multiply(left, x != ctx.y, out=ctx.buffer("left", dy.shape))
            gradients.append(dx)
        return [*gradients, left]


class Sub(_Combination):
    """y = x_1 - x_2."""

    type: ClassVar[str] = "kSub"
    num_sources: ClassVar[tuple[int, int | None]] = (2, 2)
    _function: ClassVar[str] = "subtract"

    def _gradients(self, ctx: Context, dy: Array) -> list[Array]:
        return [dy, ctx.ops.xp.negative(dy, out=ctx.buffer("dx1", dy.shape))]


class Div(_Combination):
    """y = x_1 / x_2. Where x_2 is 0, y is infinite or not a number."""

    type: ClassVar[str] = "kDiv"
    num_sources: ClassVar[tuple[int, int | None]] = (2, 2)
    _function: ClassVar[str] = "divide"

    def _gradients(self, ctx: Context, dy: Array) -> list[Array]:
        xp, (_, divisor) = ctx.ops.xp, ctx.x
        dx = xp.divide(dy, divisor, out=ctx.buffer("dx0", dy.shape))
        dx1 = xp.multiply(dx, ctx.y, out=ctx.buffer("dx1", dy.shape))
        return [dx, xp.negative(dx1, out=dx1)]
