"""Layers that copy, slice, concatenate, reshape and pass on.

Dimensions are SINGA's (batch, channels, height, width): 0 is the batch, 1 the features or channels, 2 the height, 3
the width. Of volumes, 2 to 4 are depth, height and width; of sequences (L, C), 2 is their length. Slicing or
concatenating along the batch changes the number of rows for the layers above.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod
from typing import Any, ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array


class Split(Layer):
    """Every destination gets x; their gradients are summed.   x: (B, ...) -> num_splits times x.

    split_conf: num_splits. Any layer may have several destinations; Split exists for SINGA's job files.
    """

    type: ClassVar[str] = "kSplit"
    conf_field: ClassVar[str | None] = "split_conf"
    multiple_outputs: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Any:
        (shape,) = self.sources(src)
        if self.conf.num_splits < 1:
            raise self.problem("split_conf.num_splits must be at least 1", self.conf.num_splits)
        return (shape,) * self.conf.num_splits

    def forward(self, ctx: Context, *x: Array) -> Any:
        return (x[0],) * self.conf.num_splits

    def backward(self, ctx: Context, dy: Any) -> Array:
        total = dy[0]
        for piece in dy[1:]:
            total += piece
        return total


class Slice(Layer):
    """Slices x into num_slices equal pieces, one per destination, where the last one takes the remainder; or into
    pieces of given sizes. With `piece`, every destination gets the piece of that number.

    slice_conf: slice_dim, num_slices, sizes, piece.
    """

    type: ClassVar[str] = "kSlice"
    conf_field: ClassVar[str | None] = "slice_conf"

    @property
    def multiple_outputs(self) -> bool:  # type: ignore[override]
        return not self.conf.HasField("piece")

    @property
    def rowwise(self) -> bool:  # type: ignore[override]
        return self.conf.slice_dim > 0

    @property
    def takes(self) -> tuple[Sharding, ...]:  # type: ignore[override]
        return _shardings(self.conf.slice_dim)

    def setup(self, *src: Shape) -> Any:
        (shape,) = self.sources(src)
        self._axis = _axis(self, self.conf.slice_dim, shape)
        count, piece = len(self.conf.sizes) or self.conf.num_slices, self.conf.piece
        if not self.multiple_outputs and not (self._axis and 0 <= piece < count):
            message = f"slice_conf.piece must be below the number of pieces, {count}, and slice_dim above 0"
            raise self.problem(message, f"piece: {piece}, slice_dim: {self.conf.slice_dim}")
        if self._axis == 0:
            if count < 1:
                raise self.problem("slice_conf.num_slices must be at least 1", count)
            return (shape,) * count
        size = shape[self._axis - 1]
        if not 1 <= count <= size:
            raise self.problem(f"slice_conf.num_slices must lie between 1 and the dimension's size, {size}", count)
        shapes = tuple(_resized(shape, self._axis, stop - start) for start, stop in self.bounds(size))
        return shapes if self.multiple_outputs else shapes[piece]

    def bounds(self, size: int) -> list[tuple[int, int]]:
        """Start and end of each piece of a dimension of this size. Raises ConfigError if given sizes do not fit."""
        sizes, count = list(self.conf.sizes), self.conf.num_slices
        if not sizes:
            step = size // count
            sizes = [step] * (count - 1) + [size - step * (count - 1)]
        elif sum(sizes) != size or min(sizes) < 1:
            raise self.problem(f"slice_conf.sizes must be positive and add up to the dimension's size, {size}", sizes)
        return list(pairwise([0, *accumulate(sizes)]))

    def forward(self, ctx: Context, *x: Array) -> Any:
        ctx.x_shape = x[0].shape
        ctx.pieces = _cuts(x[0].shape, self._axis, self.bounds(x[0].shape[self._axis]))
        if not self.multiple_outputs:
            view = x[0][ctx.pieces[self.conf.piece]]
            y = ctx.buffer("y", view.shape, view.dtype)
            y[...] = view
            return y
        return _cut(ctx, "y", x[0], ctx.pieces, self._axis)

    def backward(self, ctx: Context, dy: Any) -> Array:
        dx = ctx.buffer("dx", ctx.x_shape)
        if not self.multiple_outputs:
            dx[...] = 0
            dx[ctx.pieces[self.conf.piece]] = dy
            return dx
        ctx.ops.join([_flat(piece, self._axis) for piece in dy], _flat(dx, self._axis))
        return dx


class Concate(Layer):
    """Concatenates its sources along one dimension; all other dimensions must match.

    concate_conf: concate_dim. num_concates is ignored: any layer may have several destinations.
    """

    type: ClassVar[str] = "kConcate"
    conf_field: ClassVar[str | None] = "concate_conf"
    num_sources: ClassVar[tuple[int, int | None]] = (1, None)

    @property
    def rowwise(self) -> bool:  # type: ignore[override]
        return self.conf.concate_dim > 0

    @property
    def same_rows(self) -> bool:  # type: ignore[override]
        return self.rowwise

    @property
    def takes(self) -> tuple[Sharding, ...]:  # type: ignore[override]
        return _shardings(self.conf.concate_dim)

    def setup(self, *src: Shape) -> Shape:
        first = self.sources(src)[0]
        self._axis = _axis(self, self.conf.concate_dim, first)
        for shape in src:
            same = len(shape) == len(first) and (
                shape == first if self._axis == 0 else _resized(shape, self._axis, first[self._axis - 1]) == first
            )
            if not same:
                received = ", ".join(f"{n}: {s}" for n, s in zip(self.proto.srclayers, src, strict=False))
                hint = None
                if len(shape) != len(first):
                    name, image = max(zip(self.proto.srclayers, src, strict=False), key=lambda pair: len(pair[1]))
                    hint = f"To make an image features, put Reshape(shape=[{prod(image)}]) behind {name!r}."
                message = f"sources must match in all dimensions except {self.conf.concate_dim}"
                raise self.problem(message, received, hint)
        if self._axis == 0:
            return first
        return _resized(first, self._axis, sum(shape[self._axis - 1] for shape in src))

    def forward(self, ctx: Context, *x: Array) -> Array:
        sizes = [piece.shape[self._axis] for piece in x]
        shape = list(x[0].shape)
        shape[self._axis] = sum(sizes)
        bounds = list(pairwise(accumulate(sizes, initial=0)))
        y = ctx.buffer("y", tuple(shape))
        ctx.pieces = _cuts(y.shape, self._axis, bounds)
        ctx.ops.join([_flat(piece, self._axis) for piece in x], _flat(y, self._axis))
        return y

    def backward(self, ctx: Context, dy: Array) -> Any:
        return _cut(ctx, "dx", dy, ctx.pieces, self._axis)


class Reshape(Layer):
    """The elements of x in another shape.   x: (B, ...) -> y: (B, ...) with as many elements.

    reshape_conf: shape. Both shapes are read as jobs write them: the elements follow each other by channel, then
    height, then width.
    """

    type: ClassVar[str] = "kReshape"
    conf_field: ClassVar[str | None] = "reshape_conf"
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self._first, self._shape = channels_first(shape), tuple(self.conf.shape)
        if not self._shape or prod(self._shape) != prod(shape):
            hint = f"Give sizes whose product is {prod(shape)}."
            received = f"{self._shape} for samples of shape {self._first}"
            raise self.problem("reshape_conf.shape must keep the number of elements", received, hint)
        return channels_last(self._shape)

    def forward(self, ctx: Context, *x: Array) -> Array:
        return _in_shape(ctx, x[0], self._shape)

    def backward(self, ctx: Context, dy: Array) -> Array:
        return _in_shape(ctx, dy, self._first)


class BridgeSrc(Layer):
    """y = x.   x: (B, ...).

    SINGA inserts a pair of bridges where data cross workers. Here the net inserts transitions itself, and a bridge of
    a job only passes on its source.
    """

    type: ClassVar[str] = "kBridgeSrc"
    passes_labels: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        return x[0]

    def backward(self, ctx: Context, dy: Array) -> Array:
        return dy


class BridgeDst(BridgeSrc):
    """The other end of a BridgeSrc: y = x."""

    type: ClassVar[str] = "kBridgeDst"


def _shardings(dim: int) -> tuple[Sharding, ...]:
    """The shardings in which a worker can slice or concatenate along SINGA's dimension `dim` on its own."""
    if dim == 0:
        return Sharding.REPLICATED, Sharding.FEATURES
    return (
        (Sharding.BATCH, Sharding.REPLICATED) if dim == 1 else (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)
    )


def _axis(layer: Layer, dim: int, shape: Shape) -> int:
    """The array axis of SINGA's dimension `dim`, for samples of `shape`."""
    if not 0 <= dim <= len(shape):
        legal = list(range(len(shape) + 1))
        raise layer.problem(f"the dimension must be one of {legal}", f"{dim} for samples of shape {shape}")
    return array_axis(dim, shape)


def array_axis(dim: int, shape: Shape) -> int:
    """The axis of an array (B, *shape) that is SINGA's dimension `dim`. In arrays, channels are last."""
    return 0 if dim == 0 else len(shape) if dim == 1 else dim - 1


def channels_first(shape: Shape) -> Shape:
    """The shape of samples as jobs write it, of that which arrays have."""
    return (*shape[-1:], *shape[:-1])


def channels_last(shape: Shape) -> Shape:
    """The inverse of `channels_first`."""
    return (*shape[1:], *shape[:1])


def _in_shape(ctx: Context, x: Array, shape: Shape) -> Array:
    """The samples x, channels last, in another shape, which has the channels first; channels last."""
    xp = ctx.ops.xp
    moved = xp.moveaxis(x, -1, 1).reshape(len(x), *shape)
    return xp.ascontiguousarray(xp.moveaxis(moved, 1, -1))


def _cuts(shape: Shape, axis: int, bounds: list[tuple[int, int]]) -> list[tuple[slice, ...]]:
    return [(*(slice(None),) * axis, slice(start, stop)) for start, stop in bounds]


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    """The sample shape with the size of one axis replaced (axis 0 is the batch)."""
    return *shape[: axis - 1], size, *shape[axis:]


def _cut(ctx: Context, key: str, x: Array, cuts: list[tuple[slice, ...]], axis: int) -> tuple[Array, ...]:
    """Contiguous copies of x[cut], where each cut is along this axis."""
    pieces = tuple(ctx.buffer(f"{key}{i}", x[cut].shape, x.dtype) for i, cut in enumerate(cuts))
    ctx.ops.cut(_flat(x, axis), [_flat(piece, axis) for piece in pieces])
    return pieces


def _flat(x: Array, axis: int) -> Array:
    """x (N_0, N_1, ...) as (N_0 ... N_axis-1, N_axis ...)."""
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))
