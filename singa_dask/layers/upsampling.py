"""Upsampling of images, volumes and sequences.   B samples, H, W, C height, width, channels."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from singa_dask.job.job_pb2 import UpsamplingProto
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.geometry import as_image
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array


class Upsampling(Layer):
    """y = R x S^T for each channel: every pixel `factor` times in each direction (NEAREST), or in between by straight
    lines (BILINEAR: output i is at (i + 0.5) / factor - 0.5, within the image).   x: (B, H, W, C) ->
    y: (B, factor H, factor W, C); volumes (B, D, H, W, C) and sequences (B, L, C) likewise.

    upsampling_conf: factor, method (NEAREST or BILINEAR).
    """

    type: ClassVar[str] = "kUpsampling"
    conf_field: ClassVar[str | None] = "upsampling_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        factor = self.conf.factor
        if factor < 1:
            raise self.problem("upsampling_conf.factor must be at least 1", factor)
        if len(shape) not in (2, 3, 4):
            raise self.problem("Upsampling needs images, sequences or volumes", f"samples of shape {shape}")
        linear = self.conf.method == UpsamplingProto.BILINEAR
        area = as_image(shape)[-3:]
        self._shape = (*(factor * size for size in shape[:-1]), shape[-1])
        along = [interpolation(size, factor, linear=linear) for size in shape[:-1]]
        one = np.ones((1, 1))
        # The weights along height and width, and the image that they are for; of volumes then those along the depth.
        self._passes = [((one, *along)[-2:], area)]
        if len(shape) == 4:
            self._passes.append(((along[0], one), (shape[0], 1, prod(self._shape[1:]))))
        return self._shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        y, ctx.x_shape = x[0], x[0].shape
        for i, (weights, image) in enumerate(self._passes):
            rows, columns = (ctx.ops.asarray(each, ctx.ops.dtype) for each in weights)
            of = y.reshape(-1, *image)
            y = ctx.ops.upsample(of, rows, columns, ctx.buffer(f"y{i}", (len(of), len(rows), len(columns), image[-1])))
        return y.reshape(len(x[0]), *self._shape)

    def backward(self, ctx: Context, dy: Array) -> Array:
        for i, (weights, image) in reversed([*enumerate(self._passes)]):
            rows, columns = (ctx.ops.asarray(each, ctx.ops.dtype) for each in weights)
            of = dy.reshape(-1, len(rows), len(columns), image[-1])
            dy = ctx.ops.upsample(of, rows.T, columns.T, ctx.buffer(f"dx{i}", (len(of), *image)))
        return dy.reshape(ctx.x_shape)


def interpolation(size: int, factor: int, *, linear: bool) -> np.ndarray:
    """The weight of each of `size` pixels in each of factor * size pixels: (factor size, size)."""
    outputs = np.arange(factor * size)
    if not linear:
        return np.eye(size)[outputs // factor]
    place = np.clip((outputs + 0.5) / factor - 0.5, 0, size - 1)
    lower = np.minimum(place.astype(int), max(0, size - 2))
    share = (place - lower)[:, None]
    return (1 - share) * np.eye(size)[lower] + share * np.eye(size)[np.minimum(lower + 1, size - 1)]
