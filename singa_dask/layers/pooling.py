"""Max and average pooling of images, volumes and sequences.

B samples, H, W, C height, width, channels; OH, OW output size; P positions. Volumes are (D, H, W, C). A sequence
(L, C) is computed as an image of height 1, a volume as D images and then as one image of D rows.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from singa_dask.job.job_pb2 import PoolingProto
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.geometry import as_image, check_fits, window_of
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops import Window
from singa_dask.ops.arrays import Array


class Pooling(Layer):
    """y = the largest element of each window (MAX), or their sum / (kh kw) (AVG: padding counts as zeros, as in
    SINGA).   x: (B, H, W, C) -> y: (B, OH, OW, C), OH = floor((H + 2 pad - kh) / stride) + 1; volumes and sequences
    likewise. With ceil_mode, the last window may overhang: ceil in place of floor, unless the window would begin
    behind the image. What lies beyond the padding does not count.

    pooling_conf: pool (MAX or AVG), kernel, pad, stride (or kernel_x, kernel_y, kernel_z, ... for width, height and
    depth), ceil_mode.
    """

    type: ClassVar[str] = "kPooling"
    conf_field: ClassVar[str | None] = "pooling_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self.window = window_of(self, shape)
        image = as_image(shape)
        check_fits(self, self.window, image[:-1])
        self.is_max = self.conf.pool == PoolingProto.MAX
        output = (*self.window.output_size(*image[:-1]), shape[-1])
        self._shape = output[1:] if len(shape) == 2 else output
        self._passes = _passes(self.window, image, output)
        self._shares = [None if self.is_max else _shares(*each) for each in self._passes]
        return self._shape

    def reads_pending(self) -> bool:
        return self.is_max

    @property
    def overhangs(self) -> bool:
        """Whether a mean is that of fewer elements than a window has."""
        return any(share is not None for share in self._shares)

    def forward(self, ctx: Context, *x: Array) -> Array:
        ops, y, ctx.x_shape, ctx.argmax = ctx.ops, x[0], x[0].shape, []
        for i, (window, image, output) in enumerate(self._passes):
            of = y.reshape(-1, *image)
            y = ctx.buffer(f"y{i}", (len(of), *output))
            if not self.is_max:
                ops.average_pool(of, window, y)
                if self._shares[i] is not None:
                    y *= ops.asarray(self._shares[i], y.dtype)
                continue
            ctx.argmax.append(ctx.buffer(f"argmax{i}", y.shape, ops.argmax_dtype(window)))
            ops.max_pool(of, window, y, ctx.argmax[i])
        return y.reshape(len(x[0]), *self._shape)

    def backward(self, ctx: Context, dy: Array) -> Array:
        for i, (window, image, output) in reversed([*enumerate(self._passes)]):
            of = dy.reshape(-1, *output)
            if self.is_max and i == 0 and ctx.onto is not None:
                ctx.ops.add_max_pool_backward(of, ctx.argmax[i], window, ctx.onto.reshape(len(of), *image))
                return ctx.onto
            dy = ctx.buffer(f"dx{i}", (len(of), *image))
            if self.is_max:
                ctx.ops.max_pool_backward(of, ctx.argmax[i], window, dy)
                continue
            if self._shares[i] is not None:
                of *= ctx.ops.asarray(self._shares[i], of.dtype)
            ctx.ops.average_pool_backward(of, window, dy)
        return dy.reshape(ctx.x_shape)


def _passes(window: Window, shape: Shape, output: Shape) -> list[tuple[Window, Shape, Shape]]:
    """The windows over images that make one over a volume: each with its image and output."""
    if len(window.kernel) == 2:
        return [(window, shape, output)]
    (depth, *area), (new_depth, *new_area) = shape, output
    kernel, stride, pad = window.sizes
    flat = Window(kernel[1:], stride[1:], pad[1:], up=window.up)
    deep = Window((kernel[0], 1), (stride[0], 1), (pad[0], 0), up=window.up)
    row = prod(new_area)
    return [(flat, tuple(area), tuple(new_area)), (deep, (depth, 1, row), (new_depth, 1, row))]


def _shares(window: Window, image: Shape, output: Shape) -> np.ndarray | None:
    """The area of a window by that of its part on the padded image, (OH, OW, 1); None if all are 1."""
    by_axis = []
    for axis, (kernel, stride, pad) in enumerate(zip(*window.sizes, strict=True)):
        begin = np.arange(output[axis]) * stride - pad
        by_axis.append(kernel / (np.minimum(begin + kernel, image[axis] + pad) - begin))
    shares = np.multiply.outer(*by_axis)[..., None]
    return None if (shares == 1).all() else shares


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
        self._passes, self._shares = [(self.window, (area, 1, channels), (1, 1, channels))], [None]
        self._shape = (*(1,) * (len(shape) - 1), channels)
        return self._shape
