"""Softmax."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


class Softmax(Layer):
    """y = exp(x) / sum of exp(x) over each of num_softmax_per_instance equal parts of a flattened sample.

    x: (B, ...) -> y: the same shape.   softmax_conf: num_softmax_per_instance.
    """

    type: ClassVar[str] = "kSoftmax"
    conf_field: ClassVar[str | None] = "softmax_conf"
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        parts = self.conf.num_softmax_per_instance
        if parts < 1 or prod(shape) % parts:
            raise self.problem(f"num_softmax_per_instance must divide a sample's {prod(shape)} elements", parts)
        self._width = prod(shape) // parts
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        y = ctx.buffer("y", x[0].shape)
        ctx.y = ctx.ops.softmax(x[0].reshape(-1, self._width), y.reshape(-1, self._width))
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        rows = dy.reshape(-1, self._width)
        return ctx.ops.softmax_backward(ctx.y, rows, out=rows).reshape(dy.shape)
