"""Upsampling of images.   B samples, H, W, C height, width, channels."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from singa_dask.job.job_pb2 import UpsamplingProto
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Form
from singa_dask.ops import Ops
from singa_dask.ops.arrays import Array


class Upsampling(Layer):
    """y = R x S^T for each channel: every pixel `factor` times in both directions (NEAREST), or in between by straight
    lines (BILINEAR: output i is at (i + 0.5) / factor - 0.5, within the image).   x: (B, H, W, C) ->
    y: (B, factor H, factor W, C).

    upsampling_conf: factor, method (NEAREST or BILINEAR).
    """

    type: ClassVar[str] = "kUpsampling"
    conf_field: ClassVar[str | None] = "upsampling_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Form, ...]] = (Form.ROWS, Form.WHOLE, Form.COLUMNS)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        factor = self.conf.factor
        if factor < 1:
            raise self.problem("upsampling_conf.factor must be at least 1", factor)
        if len(shape) != 3:
            raise self.problem("Upsampling needs images", f"samples of shape {shape}")
        linear = self.conf.method == UpsamplingProto.BILINEAR
        self._rows, self._columns = (interpolation(size, factor, linear=linear) for size in shape[:2])
        self._shape = (factor * shape[0], factor * shape[1], shape[2])
        return self._shape

    def _matrices(self, ops: Ops) -> tuple[Array, Array]:
        return ops.asarray(self._rows, ops.dtype), ops.asarray(self._columns, ops.dtype)

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x_shape = x[0].shape
        rows, columns = self._matrices(ctx.ops)
        return ctx.ops.upsample(x[0], rows, columns, ctx.buffer("y", (len(x[0]), *self._shape)))

    def backward(self, ctx: Context, dy: Array) -> Array:
        rows, columns = self._matrices(ctx.ops)
        return ctx.ops.upsample(dy, rows.T, columns.T, ctx.buffer("dx", ctx.x_shape))


def interpolation(size: int, factor: int, *, linear: bool) -> np.ndarray:
    """The weight of each of `size` pixels in each of factor * size pixels: (factor size, size)."""
    outputs = np.arange(factor * size)
    if not linear:
        return np.eye(size)[outputs // factor]
    place = np.clip((outputs + 0.5) / factor - 0.5, 0, size - 1)
    lower = np.minimum(place.astype(int), max(0, size - 2))
    share = (place - lower)[:, None]
    return (1 - share) * np.eye(size)[lower] + share * np.eye(size)[np.minimum(lower + 1, size - 1)]
