"""Convolution of NHWC images by im2col and GEMM, in blocks of images that reuse one buffer of columns.

B images, H, W, C: height, width, channels; P = OH OW output positions; K = kh kw C; O filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.window import Window


class ConvolutionOps:
    """Convolution over `self.xp`."""

    xp: Any
    dtype: np.dtype
    gemm: Any
    affine: Any
    column_sums: Any

    def workspace_shape(
        self, x_shape: tuple[int, ...], window: Window, filters: int, limit_nbytes: int
    ) -> tuple[int, ...]:
        """The shape of the workspace, of `self.dtype`, for a convolution of images of `x_shape`.

        Here columns (n P, K) of n images: as many as `limit_nbytes` holds, at least one.
        """
        count, height, width, channels = x_shape
        positions = int(np.prod(window.output_size(height, width)))
        columns = window.area * channels
        images = limit_nbytes // (positions * columns * self.dtype.itemsize)
        return max(1, min(count, images)) * positions, columns

    def im2col(self, x: Array, window: Window, columns: Array) -> None:
        """columns[(b, oh, ow), (i, j, c)] = padded x[b, oh stride + i, ow stride + j, c].

        x: (B, H, W, C) -> columns: (B P, K).
        """
        count, height, width, channels = x.shape
        cells = columns.reshape(count, *window.output_size(height, width), *window.kernel, channels)
        if any(window.pad):
            cells[...] = 0
        for i, j, (oh, ow), (h, w) in window.offsets(height, width):
            cells[:, oh, ow, i, j] = x[:, h, w]

    def col2im(self, columns: Array, window: Window, x: Array) -> None:
        """The transpose of im2col: x = the sum of the elements of columns that come from each pixel.

        columns: (B P, K) -> x: (B, H, W, C).
        """
        count, height, width, channels = x.shape
        cells = columns.reshape(count, *window.output_size(height, width), *window.kernel, channels)
        x[...] = 0
        for i, j, (oh, ow), (h, w) in window.offsets(height, width):
            x[:, h, w] += cells[:, oh, ow, i, j]

    def convolve(
        self, x: Array, weight: Array, bias: Array | None, window: Window, out: Array, workspace: Array
    ) -> Array:
        """out = x * weight + bias.

        x: (B, H, W, C), weight: (kh, kw, C, O), bias: (O,) or None -> out: (B, OH, OW, O).
        workspace: of `workspace_shape`.
        """
        weight = weight.reshape(-1, weight.shape[-1])
        for images, block in self._blocks(out, workspace):
            self.im2col(x[images], window, block)
            self.affine(block, weight, bias, out=out[images].reshape(-1, out.shape[-1]))
        return out

    def convolve_backward_weight(
        self, x: Array, dy: Array, window: Window, dweight: Array, workspace: Array, accumulate: bool = False
    ) -> Array:
        """dweight = gradient of `convolve` for its weight, or dweight += it.

        x: (B, H, W, C), dy: (B, OH, OW, O) -> dweight: (kh, kw, C, O). workspace: of `workspace_shape`.
        """
        flat = dweight.reshape(-1, dweight.shape[-1])
        if not accumulate and not len(x):  # a worker may have no rows of a slice of the mini-batch
            flat[...] = 0
        for images, block in self._blocks(dy, workspace):
            self.im2col(x[images], window, block)
            self.gemm(block.T, dy[images].reshape(-1, dy.shape[-1]), out=flat, accumulate=accumulate)
            accumulate = True
        return dweight

    def convolve_backward_input(self, dy: Array, weight: Array, window: Window, dx: Array, workspace: Array) -> Array:
        """dx = gradient of `convolve` for its input.

        dy: (B, OH, OW, O), weight: (kh, kw, C, O) -> dx: (B, H, W, C). workspace: of `workspace_shape`.
        """
        weight = weight.reshape(-1, weight.shape[-1])
        for images, block in self._blocks(dy, workspace):
            self.gemm(dy[images].reshape(-1, dy.shape[-1]), weight.T, out=block)
            self.col2im(block, window, dx[images])
        return dx

    @staticmethod
    def _blocks(output: Array, columns: Array) -> Iterator[tuple[slice, Array]]:
        """Blocks of images that fit into `columns`, each with its part of `columns`."""
        positions = output.shape[1] * output.shape[2]
        step = columns.shape[0] // positions
        for start in range(0, output.shape[0], step):
            images = slice(start, min(start + step, output.shape[0]))
            yield images, columns[: (images.stop - start) * positions]
