"""Max and average pooling of images, volumes and sequences.

B samples, H, W, C height, width, channels; OH, OW output size; P positions. Volumes are (D, H, W, C). A sequence
(L, C) is computed as an image of height 1, a volume as D images and then as one image of D rows.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from singa_dask.job.job_pb2 import PoolingProto
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.geometry import as_image, check_fits, window_of
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Form
from singa_dask.ops import Window
from singa_dask.ops.arrays import Array


class Pooling(Layer):
    """y = the largest element of each window (MAX), or their sum / (kh kw) (AVG: padding counts as zeros, as in
    SINGA).   x: (B, H, W, C) -> y: (B, OH, OW, C), OH = floor((H + 2 pad - kh) / stride) + 1; volumes and sequences
    likewise.

    pooling_conf: pool (MAX or AVG), kernel, pad, stride (or kernel_x, kernel_y, kernel_z, ... for width, height and
    depth).
    """

    type: ClassVar[str] = "kPooling"
    conf_field: ClassVar[str | None] = "pooling_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Form, ...]] = (Form.ROWS, Form.WHOLE, Form.COLUMNS)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self.window = window_of(self, shape)
        image = as_image(shape)
        check_fits(self, self.window, image[:-1])
        self.is_max = self.conf.pool == PoolingProto.MAX
        output = (*self.window.output_size(*image[:-1]), shape[-1])
        self._shape = output[1:] if len(shape) == 2 else output
        self._passes = _passes(self.window, image, output)
        return self._shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        ops, y, ctx.x_shape, ctx.argmax = ctx.ops, x[0], x[0].shape, []
        for i, (window, image, output) in enumerate(self._passes):
            of = y.reshape(-1, *image)
            y = ctx.buffer(f"y{i}", (len(of), *output))
            if not self.is_max:
                ops.average_pool(of, window, y)
                continue
            ctx.argmax.append(ctx.buffer(f"argmax{i}", y.shape, ops.argmax_dtype(window)))
            ops.max_pool(of, window, y, ctx.argmax[i])
        return y.reshape(len(x[0]), *self._shape)

    def backward(self, ctx: Context, dy: Array) -> Array:
        for i, (window, image, output) in reversed([*enumerate(self._passes)]):
            of = dy.reshape(-1, *output)
            dy = ctx.buffer(f"dx{i}", (len(of), *image))
            if self.is_max:
                ctx.ops.max_pool_backward(of, ctx.argmax[i], window, dy)
            else:
                ctx.ops.average_pool_backward(of, window, dy)
        return dy.reshape(ctx.x_shape)


def _passes(window: Window, shape: Shape, output: Shape) -> list[tuple[Window, Shape, Shape]]:
    """The windows over images that make one over a volume: each with its image and output."""
    if len(window.kernel) == 2:
        return [(window, shape, output)]
    (depth, *area), (new_depth, *new_area) = shape, output
    kernel, stride, pad = window.sizes
    flat = Window(kernel[1:], stride[1:], pad[1:])
    deep = Window((kernel[0], 1), (stride[0], 1), (pad[0], 0))
    row = prod(new_area)
    return [(flat, tuple(area), tuple(new_area)), (deep, (depth, 1, row), (new_depth, 1, row))]


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
        area, channels = prod(shape[:-1]), shape[-1]
        self.window = Window((area, 1), (1, 1))
        self._passes = [(self.window, (area, 1, channels), (1, 1, channels))]
        self._shape = (*(1,) * (len(shape) - 1), channels)
        return self._shape
