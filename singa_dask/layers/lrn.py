"""Local response normalisation."""

from __future__ import annotations

from typing import ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


class LRN(Layer):
    """y = x (knorm + alpha / local_size * sum of x^2 over the local_size channels around each)^-beta.

    x: (B, H, W, C) -> y: the same shape.   lrn_conf: local_size (odd), alpha, beta, knorm.   (Krizhevsky et al. 2012)
    """

    type: ClassVar[str] = "kLRN"
    conf_field: ClassVar[str | None] = "lrn_conf"
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        if len(shape) != 3:
            raise self.problem("LRN needs images", f"samples of shape {shape}", "Put it before InnerProduct.")
        if self.conf.local_size < 1 or self.conf.local_size % 2 == 0:
            raise self.problem("lrn_conf.local_size must be odd", self.conf.local_size)
        if self.conf.knorm <= 0 or self.conf.alpha < 0:
            raise self.problem("lrn_conf.knorm must be positive and alpha not negative", str(self.conf).strip())
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        conf, shape = self.conf, x[0].shape
        ctx.x, ctx.scale = x[0], ctx.buffer("scale", shape)
        y = ctx.buffer("y", shape)
        ctx.y = ctx.ops.lrn(ctx.x, conf.local_size, conf.alpha, conf.beta, conf.knorm, y, ctx.scale)
        return ctx.y

    def backward(self, ctx: Context, dy: Array) -> Array:
        conf = self.conf
        return ctx.ops.lrn_backward(ctx.x, ctx.y, ctx.scale, dy, conf.local_size, conf.alpha, conf.beta, out=dy)
