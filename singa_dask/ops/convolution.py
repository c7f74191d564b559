"""Convolution of images by im2col and GEMM, in blocks of images that reuse one buffer of columns; and upsampling.

B images of (H, W), or volumes (D, H, W); C channels and O filters in G groups; P output positions; K = kernel area x
C / G.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from singa_dask.ops.arrays import UNBOUNDED, Array, Bounds
from singa_dask.ops.window import Window

Shape = tuple[int, ...]


class ConvolutionOps:
    """Convolution over `self.xp`. A weight (..., C / G, O) has its filters group after group."""

    xp: Any
    dtype: np.dtype
    gemm: Any
    matmul: Any
    affine: Any
    add_bias: Any
    empty: Any

    def workspace_shape(
        self, x_shape: tuple[int, ...], window: Window, filters: int, limit_nbytes: int, groups: int = 1
    ) -> tuple[int, ...]:
        """The shape of the workspace, of `self.dtype`, for a convolution of images of `x_shape`.

        Here columns (n P, G K) of n images: as many as `limit_nbytes` holds, at least one.
        """
        count, *size, channels = x_shape
        positions = prod(window.output_size(*size))
        columns = window.area * channels
        images = limit_nbytes // (positions * columns * self.dtype.itemsize)
        return max(1, min(count, images)) * positions, columns

    def leaves_columns(self, x: Shape, weight: Shape, window: Window, workspace: Shape) -> bool:
        """Whether `convolve` leaves the columns of all images in a workspace; of arrays of these shapes."""
        return False

    def im2col(self, x: Array, window: Window, columns: Array, groups: int = 1) -> None:
        """columns[g, (b, oh, ow), (i, j, c)] = padded x[b, oh stride + i dilation, ow stride + j dilation, (g, c)].

        x: (B, H, W, C) -> columns: (G, B P, K).
        """
        cells, blocks = self._cells(x, window, columns, groups)
        if any(window.pad):
            cells[...] = 0
        for place, outputs, pixels in window.offsets(*x.shape[1:-1]):
            cells[(slice(None), *outputs, *place)] = blocks[(slice(None), *pixels)]

    def col2im(self, columns: Array, window: Window, x: Array, groups: int = 1) -> None:
        """The transpose of im2col: x = the sum of the elements of columns that come from each pixel.

        columns: (G, B P, K) -> x: (B, H, W, C).
        """
        cells, blocks = self._cells(x, window, columns, groups)
        x[...] = 0
        for place, outputs, pixels in window.offsets(*x.shape[1:-1]):
            blocks[(slice(None), *pixels)] += cells[(slice(None), *outputs, *place)]

    def _cells(self, x: Array, window: Window, columns: Array, groups: int) -> tuple[Array, Array]:
        """Views (B, output, kernel, G, C / G) of columns and (B, H, W, G, C / G) of x."""
        count, *size, channels = x.shape
        shape = groups, count, *window.output_size(*size), *window.kernel, channels // groups
        return self.xp.moveaxis(columns.reshape(shape), 0, -2), x.reshape(count, *size, groups, channels // groups)

    def convolve(
        self, x: Array, weight: Array, bias: Array | None, window: Window, out: Array, workspace: Array
    ) -> Array:
        """out = x * weight + bias.

        x: (B, H, W, C), weight: (kh, kw, C / G, O), bias: (O,) or None -> out: (B, OH, OW, O).
        workspace: of `workspace_shape`.
        """
        groups = x.shape[-1] // weight.shape[-2]
        weight = weight.reshape(-1, weight.shape[-1])
        for images, block in self._blocks(out, workspace):
            self.im2col(x[images], window, block, groups)
            rows = out[images].reshape(-1, out.shape[-1])
            if groups == 1:
                self.affine(block, weight, bias, out=rows)
                continue
            by_group = self.matmul(_grouped_columns(block, groups), _by_group(weight, groups))
            _by_group(rows, groups)[...] = by_group
            if bias is not None:
                rows += bias
        return out

    def convolve_backward_weight(
        self, x: Array, dy: Array, window: Window, dweight: Array, workspace: Array, accumulate: bool = False
    ) -> Array:
        """dweight = gradient of `convolve` for its weight, or dweight += it.

        x: (B, H, W, C), dy: (B, OH, OW, O) -> dweight: (kh, kw, C / G, O). workspace: of `workspace_shape`.
        """
        groups = x.shape[-1] // dweight.shape[-2]
        flat = dweight.reshape(-1, dweight.shape[-1])
        if not accumulate and (groups > 1 or not len(x)):  # a worker may have no rows of a slice of the mini-batch
            flat[...] = 0
        for images, block in self._blocks(dy, workspace):
            self.im2col(x[images], window, block, groups)
            self._multiply_columns(block, dy[images], groups, flat, accumulate)
            accumulate = True
        return dweight

    def columns_backward_weight(
        self, columns: Array, dy: Array, groups: int, dweight: Array, accumulate: bool = False
    ) -> Array:
        """`convolve_backward_weight` for the columns that `convolve` has left (`leaves_columns`)."""
        flat = dweight.reshape(-1, dweight.shape[-1])
        if not accumulate and groups > 1:
            flat[...] = 0
        self._multiply_columns(columns, dy, groups, flat, accumulate)
        return dweight

    def _multiply_columns(self, columns: Array, dy: Array, groups: int, out: Array, accumulate: bool) -> None:
        """out = columns^T dy, or out += it; with groups out += it."""
        rows = dy.reshape(-1, dy.shape[-1])
        if groups == 1:
            self.gemm(columns.T, rows, out=out, accumulate=accumulate)
        else:
            by_group = _by_group(out, groups)
            by_group += self.matmul(_grouped_columns(columns, groups).swapaxes(1, 2), _by_group(rows, groups))

    def convolve_backward_input(self, dy: Array, weight: Array, window: Window, dx: Array, workspace: Array) -> Array:
        """dx = gradient of `convolve` for its input.

        dy: (B, OH, OW, O), weight: (kh, kw, C / G, O) -> dx: (B, H, W, C). workspace: of `workspace_shape`.
        """
        groups = dx.shape[-1] // weight.shape[-2]
        for images, block in self._gradients_of_columns(dy, weight, groups, workspace):
            self.col2im(block, window, dx[images], groups)
        return dx

    def add_input_gradient(self, dy: Array, weight: Array, window: Window, dx: Array, workspace: Array) -> Array:
        """dx += what `convolve_backward_input` computes."""
        dx += self.convolve_backward_input(dy, weight, window, self.empty(dx.shape), workspace)
        return dx

    def convolve_transposed(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        window: Window,
        out: Array,
        workspace: Array,
        bounds: Bounds = UNBOUNDED,
    ) -> Array:
        """out = the gradient of `convolve` for its input where that of its output is x; with a bias, then `add_bias`.

        x: (B, OH, OW, O), weight: (kh, kw, C / G, O), bias: (C,) or None -> out: (B, H, W, C). workspace: of
        `workspace_shape`.
        """
        self.convolve_backward_input(x, weight, window, out, workspace)
        if bias is not None:
            self.add_bias(out.reshape(-1, out.shape[-1]), bias, bounds)
        return out

    def _gradients_of_columns(
        self, dy: Array, weight: Array, groups: int, workspace: Array
    ) -> Iterator[tuple[slice, Array]]:
        """Blocks of images, each with the gradient of its columns, in the workspace."""
        weight = weight.reshape(-1, weight.shape[-1])
        for images, block in self._blocks(dy, workspace):
            rows = dy[images].reshape(-1, dy.shape[-1])
            if groups == 1:
                self.gemm(rows, weight.T, out=block)
            else:
                turned = _by_group(weight, groups).swapaxes(1, 2)
                _grouped_columns(block, groups)[...] = self.matmul(_by_group(rows, groups), turned)
            yield images, block

    @staticmethod
    def _blocks(output: Array, columns: Array) -> Iterator[tuple[slice, Array]]:
        """Blocks of images that fit into `columns`, each with its part of `columns`."""
        positions = prod(output.shape[1:-1])
        step = columns.shape[0] // positions
        for start in range(0, output.shape[0], step):
            images = slice(start, min(start + step, output.shape[0]))
            yield images, columns[: (images.stop - start) * positions]

    def upsample(self, x: Array, rows: Array, columns: Array, out: Array) -> Array:
        """out[b, i, j, c] = sum over h, w of rows[i, h] columns[j, w] x[b, h, w, c].

        x: (B, H, W, C), rows: (OH, H), columns: (OW, W) -> out: (B, OH, OW, C).
        """
        count, height, width, channels = x.shape
        lines = self.xp.matmul(rows, x.reshape(count, height, width * channels))
        lines = lines.reshape(count, len(rows), width, channels)
        out[...] = self.xp.matmul(columns, lines)
        return out


def _by_group(matrix: Array, groups: int) -> Array:
    """A view (G, R, O / G) of (R, O)."""
    return matrix.reshape(matrix.shape[0], groups, -1).swapaxes(0, 1)


def _grouped_columns(columns: Array, groups: int) -> Array:
    """A view (G, n P, K) of the workspace."""
    return columns.reshape(groups, columns.shape[0], -1)
