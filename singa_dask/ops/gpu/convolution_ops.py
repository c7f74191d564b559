"""Convolutions on a GPU: those of single pixels are products, without columns."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from singa_dask.ops.arrays import UNBOUNDED, Array, Bounds
from singa_dask.ops.base import Ops
from singa_dask.ops.pending import Pending
from singa_dask.ops.window import Window

Shape = tuple[int, ...]


@lru_cache(maxsize=512)
def geometry(window: Window, image: Shape) -> tuple[int, ...]:
    """Sizes and window in the order in which all CUDA kernels take them; `image`: shape (B, H, W, C)."""
    _, height, width, channels = image
    return height, width, channels, *window.output_size(height, width), *window.kernel, *window.stride, *window.pad


@lru_cache(maxsize=512)
def _volume(window: Window, image: Shape, groups: int) -> tuple[int, ...]:
    """The same of volumes; an image is one of depth 1. `image`: shape (B, [D,] H, W, C)."""
    size, missing = image[1:-1], 4 - len(image[1:])
    lengths = (size, window.output_size(*size), window.kernel, window.stride, window.pad, window.dilation)
    fill = (1, 1, 1, 1, 0, 1)
    size, output, *rest = ((number,) * missing + each for number, each in zip(fill, lengths, strict=True))
    return image[0], *size, image[-1] // groups, groups, *output, *(n for each in rest for n in each)


def as_read(x: Any) -> tuple[Any, ...]:
    """An array or Pending as kernels take it: the array, its bias, whether it has one, and bounds."""
    return (x.array, x.bias, True, *x.bounds) if isinstance(x, Pending) else (x, x, False, *UNBOUNDED)


class GpuConvolutionOps(Ops):
    """Convolution by im2col and cuBLAS."""

    _kernels: Any

    def leaves_columns(self, x: Shape, weight: Shape, window: Window, workspace: Shape) -> bool:
        whole = x[0] * prod(window.output_size(*x[1:-1])) * window.area * x[-1]
        return not _of_pixels(window, x, weight) and prod(workspace) == whole

    def im2col(self, x: Array, window: Window, columns: Array, groups: int = 1) -> None:
        array, *given = as_read(x)
        if groups == 1 and window.plain:
            self._kernels.im2col(array, *geometry(window, x.shape), *given, columns)
        else:
            self._kernels.im2col_volume(array, *_volume(window, x.shape, groups), *given, columns)

    def col2im(self, columns: Array, window: Window, x: Array, groups: int = 1) -> None:
        self._pixels_of(columns, window, x, groups)

    def _pixels_of(
        self,
        columns: Array,
        window: Window,
        x: Array,
        groups: int,
        bias: Array | None = None,
        bounds: Bounds = UNBOUNDED,
        more: bool = False,
    ) -> None:
        """`col2im`, or more than that added to x; then `add_bias`."""
        given = columns if bias is None else bias, bias is not None, *bounds, more
        if groups == 1 and window.plain:
            self._kernels.col2im(columns, *geometry(window, x.shape), *given, x)
        else:
            self._kernels.col2im_volume(columns, *_volume(window, x.shape, groups), *given, x)

    def convolve(
        self, x: Array, weight: Array, bias: Array | None, window: Window, out: Array, workspace: Array
    ) -> Array:
        if not _of_pixels(window, x.shape, weight.shape):
            return super().convolve(x, weight, bias, window, out, workspace)
        self.affine(_pixels(x), _pixels(weight), bias, out=_pixels(out))
        return out

    def convolve_backward_weight(
        self, x: Array, dy: Array, window: Window, dweight: Array, workspace: Array, accumulate: bool = False
    ) -> Array:
        if not _of_pixels(window, x.shape, dweight.shape):
            return super().convolve_backward_weight(x, dy, window, dweight, workspace, accumulate)
        self.gemm(_pixels(x).T, _pixels(dy), out=_pixels(dweight), accumulate=accumulate)
        return dweight

    def convolve_backward_input(self, dy: Array, weight: Array, window: Window, dx: Array, workspace: Array) -> Array:
        if not _of_pixels(window, dx.shape, weight.shape):
            return super().convolve_backward_input(dy, weight, window, dx, workspace)
        self.gemm(_pixels(dy), _pixels(weight).T, out=_pixels(dx))
        return dx

    def add_input_gradient(self, dy: Array, weight: Array, window: Window, dx: Array, workspace: Array) -> Array:
        if _of_pixels(window, dx.shape, weight.shape):
            self.gemm(_pixels(dy), _pixels(weight).T, out=_pixels(dx), accumulate=True)
            return dx
        groups = dx.shape[-1] // weight.shape[-2]
        for images, block in self._gradients_of_columns(dy, weight, groups, workspace):
            self._pixels_of(block, window, dx[images], groups, more=True)
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
        if _of_pixels(window, out.shape, weight.shape):
            return super().convolve_transposed(x, weight, bias, window, out, workspace, bounds)
        groups = out.shape[-1] // weight.shape[-2]
        for images, block in self._gradients_of_columns(x, weight, groups, workspace):
            self._pixels_of(block, window, out[images], groups, bias, bounds)
        return out


def _of_pixels(window: Window, x: Shape, weight: Shape) -> bool:
    """Whether each output is of one pixel of x, in order, and all its channels; of arrays of these shapes."""
    whole = x[-1] == weight[-2] and prod(x) > 0
    return whole and window.area == 1 and max(window.stride) == 1 and not any(window.pad)


def _pixels(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])
