"""Local response normalisation."""

from __future__ import annotations

from typing import ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.halo import Halo
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array


class LRN(Layer):
    """y = x (knorm + alpha / local_size * sum of x^2 over the local_size channels around each)^-beta.

    x: (B, H, W, C) -> y: the same shape.   lrn_conf: local_size (odd), alpha, beta, knorm.   (Krizhevsky et al. 2012)
    """

    type: ClassVar[str] = "kLRN"
    conf_field: ClassVar[str | None] = "lrn_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        if len(shape) != 3:
            raise self.problem("LRN needs images", f"samples of shape {shape}", "Put it before InnerProduct.")
        if self.conf.local_size < 1 or self.conf.local_size % 2 == 0:
            raise self.problem("lrn_conf.local_size must be odd", self.conf.local_size)
        if self.conf.knorm <= 0 or self.conf.alpha < 0:
            raise self.problem("lrn_conf.knorm must be positive and alpha not negative", str(self.conf).strip())
        self._halo = None
        if self.partition.splits:
            bounds = self.partition.bounds(self.partition.sources[0][-1])
            self._halo = Halo(bounds, self.partition.rank, self.conf.local_size // 2)
        return shape

    @property
    def sent(self) -> tuple[float, float]:
        if self._halo is None:
            return 0.0, 0.0
        height, width, _ = self.partition.sources[0]
        return (float(height * width * self._halo.channels_sent),) * 2

    def forward(self, ctx: Context, *x: Array) -> Array:
        conf = self.conf
        ctx.x = x[0] if self._halo is None else self._halo.widen(ctx, "x", x[0])
        y, ctx.scale = ctx.buffer("y", ctx.x.shape), ctx.buffer("scale", ctx.x.shape)
        ctx.y = ctx.ops.lrn(ctx.x, conf.local_size, conf.alpha, conf.beta, conf.knorm, y, ctx.scale)
        return ctx.y if self._halo is None else _copy(ctx, "own_y", ctx.y[..., self._halo.own])

    def backward(self, ctx: Context, dy: Array) -> Array:
        conf = self.conf
        if self._halo is None:
            return ctx.ops.lrn_backward(ctx.x, ctx.y, ctx.scale, dy, conf.local_size, conf.alpha, conf.beta, out=dy)
        # Of other channels it takes dy y / scale, which comes as their dy, with 1 as their y and scale.
        own = self._halo.own
        wide = self._halo.widen(ctx, "dy", dy * ctx.y[..., own] / ctx.scale[..., own])
        wide[..., own] = dy
        for array in (ctx.y, ctx.scale):
            array[..., : own.start] = 1
            array[..., own.stop :] = 1
        ctx.ops.lrn_backward(ctx.x, ctx.y, ctx.scale, wide, conf.local_size, conf.alpha, conf.beta, out=wide)
        return _copy(ctx, "dx", wide[..., own])


def _copy(ctx: Context, key: str, x: Array) -> Array:
    """A contiguous copy of x."""
    copy = ctx.buffer(key, x.shape, x.dtype)
    copy[...] = x
    return copy
