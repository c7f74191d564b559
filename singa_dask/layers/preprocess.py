"""Augmentation of input images."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.input import read_statistic
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array
from singa_dask.ops.random import random_bits, stream_key


class ImagePreprocess(Layer):
    """y = scale (x - mean), padded, cropped and mirrored.   x: (B, H, W, C) -> y: (B, crop, crop, C).

    rgbimage_conf: pad (pixels of y = 0 on each side), cropsize (0: the size of x), mirror, scale, meanfile (HDF5 file
    with a data set `mean` in the shape of the whole image). In phase kTrain, crop position and mirroring are random
    functions of (seed, step, layer, row). Other phases take the centre and do not mirror. Passes on its source's
    labels as they are.
    """

    type: ClassVar[str] = "kImagePreprocess"
    conf_field: ClassVar[str | None] = "rgbimage_conf"
    passes_labels: ClassVar[bool] = True
    stops_gradient: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH,)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        if len(shape) != 3:
            raise self.problem("ImagePreprocess needs images", f"samples of shape {shape}", "Check store_conf.shape.")
        height, width, channels = shape
        crop = self.conf.cropsize
        if not 0 <= crop <= min(height, width):
            raise self.problem("cropsize must lie between 0 and the image's size", f"{crop} for {height} x {width}")
        self.mean_image = np.zeros(shape)
        if self.conf.meanfile:
            self.mean_image = read_statistic(self, self.conf.meanfile, "mean", shape)
        self._size = (crop, crop) if crop else (height, width)
        moves = [f"cropsize: {crop}"] if self._size != (height, width) else []
        moves += [f"pad: {self.conf.pad}"] * (self.conf.pad > 0) + ["mirror: true"] * self.conf.mirror
        self.moves = ", ".join(moves)
        return *self._size, channels

    def forward(self, ctx: Context, *x: Array) -> Array:
        ops, pad = ctx.ops, self.conf.pad
        if getattr(ctx, "mean", None) is None:
            ctx.mean = ops.asarray(np.pad(self.mean_image, ((pad, pad), (pad, pad), (0, 0))), ops.dtype)
        images = self._padded(ctx, x[0]) if pad else x[0]
        top, left, mirror = (ops.asarray(draw) for draw in self._draws(ctx, images.shape))
        y = ctx.buffer("y", (images.shape[0], *self._size, images.shape[3]))
        return ops.crop(images, top, left, mirror, ctx.mean, self.conf.scale, y)

    def _padded(self, ctx: Context, x: Array) -> Array:
        rows, height, width, channels = x.shape
        pad = self.conf.pad
        padded = ctx.buffer("padded", (rows, height + 2 * pad, width + 2 * pad, channels))
        padded[...] = 0
        padded[:, pad : pad + height, pad : pad + width] = x
        return padded

    def _draws(self, ctx: Context, shape: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each row's crop position and whether it is mirrored: three integer arrays (B,)."""
        rows = shape[0]
        room = shape[1] - self._size[0], shape[2] - self._size[1]
        if not ctx.step.phase & Phase.kTrain:
            return np.full(rows, room[0] // 2), np.full(rows, room[1] // 2), np.zeros(rows, np.int64)
        key = stream_key(ctx.step.seed, ctx.step.number, self.name)
        bits = random_bits(np, key, 3 * ctx.step.first_row, 3 * rows).reshape(rows, 3) >> np.uint64(32)
        draws = bits.astype(np.int64) % (room[0] + 1, room[1] + 1, 2)
        return draws[:, 0].copy(), draws[:, 1].copy(), draws[:, 2] * self.conf.mirror

    def backward(self, ctx: Context, dy: Array) -> Array:
        return None
