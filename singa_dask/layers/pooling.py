"""Max and average pooling.   B samples, H, W, C height, width, channels; OH, OW output size; P positions."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from singa_dask.job.job_pb2 import PoolingProto
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.geometry import check_fits, window_of
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Form
from singa_dask.ops import Window
from singa_dask.ops.arrays import Array


class Pooling(Layer):
    """y = the largest element of each window (MAX), or their sum / (kh kw) (AVG: padding counts as zeros, as in
    SINGA).   x: (B, H, W, C) -> y: (B, OH, OW, C), OH = floor((H + 2 pad - kh) / stride) + 1.

    pooling_conf: pool (MAX or AVG), kernel, pad, stride (or kernel_x, kernel_y, ... for width and height).
    """

    type: ClassVar[str] = "kPooling"
    conf_field: ClassVar[str | None] = "pooling_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Form, ...]] = (Form.ROWS, Form.WHOLE, Form.COLUMNS)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self.window = window_of(self, shape)
        check_fits(self, self.window, shape[:2])
        self.is_max = self.conf.pool == PoolingProto.MAX
        self._shape = (*self.window.output_size(*shape[:2]), shape[2])
        return self._shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        ops = ctx.ops
        ctx.x_shape = x[0].shape
        y = ctx.buffer("y", (x[0].shape[0], *self._shape))
        if not self.is_max:
            return ops.average_pool(x[0], self.window, y)
        ctx.argmax = ctx.buffer("argmax", y.shape, ops.argmax_dtype(self.window))
        return ops.max_pool(x[0], self.window, y, ctx.argmax)

    def backward(self, ctx: Context, dy: Array) -> Array:
        dx = ctx.buffer("dx", ctx.x_shape)
        if self.is_max:
            return ctx.ops.max_pool_backward(dy, ctx.argmax, self.window, dx)
        return ctx.ops.average_pool_backward(dy, self.window, dx)


class GlobalPooling(Pooling):
    """y = the mean (AVG) or the largest (MAX) of a channel.   x: (B, ..., C) with P positions -> y: (B, 1, ..., 1, C).

    globalpooling_conf: pool (AVG or MAX).
    """

    type: ClassVar[str] = "kGlobalPooling"
    conf_field: ClassVar[str | None] = "globalpooling_conf"

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        if len(shape) < 2:
            raise self.problem("GlobalPooling needs images", f"samples of shape {shape}")
        self.is_max = self.conf.pool == PoolingProto.MAX
        self._area, self._shape = prod(shape[:-1]), (1, 1, shape[-1])
        self.window = Window((self._area, 1), (1, 1))
        return (*(1,) * (len(shape) - 1), shape[-1])

    def forward(self, ctx: Context, *x: Array) -> Array:
        rows, axes, channels = x[0].shape[0], x[0].ndim, x[0].shape[-1]
        ctx.whole = x[0].shape
        y = super().forward(ctx, x[0].reshape(rows, self._area, 1, channels))
        return y.reshape(rows, *(1,) * (axes - 2), channels)

    def backward(self, ctx: Context, dy: Array) -> Array:
        return super().backward(ctx, dy.reshape(-1, *self._shape)).reshape(ctx.whole)
