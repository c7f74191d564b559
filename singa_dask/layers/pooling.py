"""Max and average pooling.   B samples, H, W, C height, width, channels; OH, OW output size."""

from __future__ import annotations

from typing import ClassVar

from singa_dask.job.job_pb2 import PoolingProto
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.geometry import window_of
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Form
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
