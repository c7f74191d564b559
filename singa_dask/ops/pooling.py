"""Max and average pooling of NHWC images: x (B, H, W, C) -> y (B, OH, OW, C).

The output size rounds down (SINGA; Caffe rounds up).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.window import Window


class PoolingOps:
    """Pooling over `self.xp`."""

    xp: Any
    empty: Any

    @staticmethod
    def argmax_dtype(window: Window) -> type:
        """The smallest dtype that holds a position inside the window."""
        return np.uint8 if window.area <= 256 else np.uint16 if window.area <= 65536 else np.uint32

    def max_pool(self, x: Array, window: Window, out: Array, argmax: Array) -> Array:
        """out = the largest element under each window; argmax = its position i kw + j, the first of equals.

        argmax: of `argmax_dtype` and out's shape. Padding never wins. NaN always wins (the last of several), so that
        it shows.
        """
        out[...] = -np.inf
        argmax[...] = 0
        for (i, j), (oh, ow), (h, w) in window.offsets(*x.shape[1:3]):
            pixels, best, where = x[:, h, w], out[:, oh, ow], argmax[:, oh, ow]
            larger = (pixels > best) | self.xp.isnan(pixels)
            out[:, oh, ow] = self.xp.where(larger, pixels, best)
            argmax[:, oh, ow] = self.xp.where(larger, argmax.dtype.type(i * window.kernel[1] + j), where)
        return out

    def max_pool_backward(self, dy: Array, argmax: Array, window: Window, dx: Array) -> Array:
        """dx = sum over the windows in which a pixel was the largest of their dy."""
        dx[...] = 0
        for (i, j), (oh, ow), (h, w) in window.offsets(*dx.shape[1:3]):
            dx[:, h, w] += dy[:, oh, ow] * (argmax[:, oh, ow] == i * window.kernel[1] + j)
        return dx

    def add_max_pool_backward(self, dy: Array, argmax: Array, window: Window, dx: Array) -> Array:
        """dx += what `max_pool_backward` computes."""
        dx += self.max_pool_backward(dy, argmax, window, self.empty(dx.shape))
        return dx

    def average_pool(self, x: Array, window: Window, out: Array) -> Array:
        """out = sum under each window / (kh kw). Padding counts as zeros, as in SINGA."""
        out[...] = 0
        for _, (oh, ow), (h, w) in window.offsets(*x.shape[1:3]):
            out[:, oh, ow] += x[:, h, w]
        out *= 1 / window.area
        return out

    def average_pool_backward(self, dy: Array, window: Window, dx: Array) -> Array:
        """dx = sum over the windows that cover a pixel of dy / (kh kw)."""
        dx[...] = 0
        for _, (oh, ow), (h, w) in window.offsets(*dx.shape[1:3]):
            dx[:, h, w] += dy[:, oh, ow]
        dx *= 1 / window.area
        return dx
