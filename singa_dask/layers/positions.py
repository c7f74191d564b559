"""Positions of sequences and images that are read whole: one more in front, and one of them alone.

B samples, T positions, C features. Samples are (T, C), or images (H, W, C) with T = H W.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.lengths import lengths_from
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array


def _positions(layer: Layer, shape: Shape) -> int:
    """T. Raises ConfigError for samples that have no positions, such as those of time steps."""
    if len(shape) < 2:
        hint = "Let it read sequences or images whole, without time steps: unroll_len: 1."
        raise layer.problem("reads positions of samples, and its source has none", f"samples of shape {shape}", hint)
    return prod(shape[:-1])


class ClassToken(Layer):
    """y = a learned token, then the positions of x   (Devlin et al. 2019).   x: (B, ..., C) -> y: (B, 1 + T, C).

    Parameter: token (C,), 0 at first.
    """

    type: ClassVar[str] = "kClassToken"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self._shape = 1 + _positions(self, shape), shape[-1]
        split = self.partition.splits
        channels = self.partition.sources[0][-1] if split else shape[-1]
        self.token = self.declare("token", (channels,), channels, channels, axis=0 if split else None)
        return self._shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x_shape = x[0].shape
        y = ctx.buffer("y", (len(x[0]), *self._shape))
        y[:, 0] = self.token.value
        y[:, 1:] = x[0].reshape(len(y), -1, y.shape[-1])
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        first, others = (ctx.ops.xp.ascontiguousarray(part) for part in (dy[:, 0], dy[:, 1:]))
        ctx.ops.column_sums(first, self.token.grad, accumulate=self.token.claim())
        return others.reshape(ctx.x_shape)


class Select(Layer):
    """y = x[index], a position alone; negative indices count from the last one.   x: (B, ..., C) -> y: (B, C).

    A second source has the number of positions of each sample that count, (B, 1). Index -1 is then the last of these.
    select_conf: index. Raises DataError for lengths that are no integers from 1 to T.
    """

    type: ClassVar[str] = "kSelect"
    conf_field: ClassVar[str | None] = "select_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)
    num_sources: ClassVar[tuple[int, int | None]] = (1, 2)
    undivided_sources: ClassVar[tuple[int, ...]] = (1,)

    @property
    def counted_positions(self) -> set[int]:
        return self._positions((1,))

    def setup(self, *src: Shape) -> Shape:
        shape, *lengths = self.sources(src)
        self._length, index = _positions(self, shape), self.conf.index
        if not -self._length <= index < self._length:
            expected = f"select_conf.index must lie between {-self._length} and {self._length - 1}"
            raise self.problem(expected, index)
        self._check_lengths(lengths, index)
        return (shape[-1],)

    def _check_lengths(self, lengths: Sequence[Shape], index: int) -> None:
        if lengths and prod(lengths[0]) != 1:
            raise self.problem("the second source must have one length per sample", f"samples of shape {lengths[0]}")
        if lengths and index != -1:
            hint = "Leave out the lengths for other positions."
            raise self.problem(
                "with lengths, select_conf.index must be -1, the last position that counts", index, hint
            )

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x_shape, ctx.place = x[0].shape, (slice(None), self.conf.index)
        rows = x[0].reshape(len(x[0]), self._length, -1)
        if len(x) > 1:
            ends = lengths_from(self.proto.srclayers[1], x[1], self._length)
            ctx.place = ctx.ops.xp.arange(len(rows)), ends - 1
        return ctx.ops.xp.ascontiguousarray(rows[ctx.place])

    def backward(self, ctx: Context, dy: Array) -> Any:
        dx = ctx.buffer("dx", ctx.x_shape)
        dx[...] = 0
        dx.reshape(len(dy), self._length, -1)[ctx.place] = dy
        return dx if len(self.proto.srclayers) == 1 else (dx, None)
