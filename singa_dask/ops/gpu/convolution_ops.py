"""Convolutions on a GPU: those of single pixels are products, without columns."""

from __future__ import annotations

from singa_dask.ops.arrays import Array
from singa_dask.ops.base import Ops
from singa_dask.ops.window import Window


class GpuConvolutionOps(Ops):
    """Convolution by im2col and cuBLAS."""

    def convolve(
        self, x: Array, weight: Array, bias: Array | None, window: Window, out: Array, workspace: Array
    ) -> Array:
        if not _of_pixels(window, x, weight):
            return super().convolve(x, weight, bias, window, out, workspace)
        self.affine(_pixels(x), _pixels(weight), bias, out=_pixels(out))
        return out

    def convolve_backward_weight(
        self, x: Array, dy: Array, window: Window, dweight: Array, workspace: Array, accumulate: bool = False
    ) -> Array:
        if not _of_pixels(window, x, dweight):
            return super().convolve_backward_weight(x, dy, window, dweight, workspace, accumulate)
        self.gemm(_pixels(x).T, _pixels(dy), out=_pixels(dweight), accumulate=accumulate)
        return dweight

    def convolve_backward_input(self, dy: Array, weight: Array, window: Window, dx: Array, workspace: Array) -> Array:
        if not _of_pixels(window, dx, weight):
            return super().convolve_backward_input(dy, weight, window, dx, workspace)
        self.gemm(_pixels(dy), _pixels(weight).T, out=_pixels(dx))
        return dx


def _of_pixels(window: Window, x: Array, weight: Array) -> bool:
    """Whether each output is of one pixel of x, in order, and all its channels."""
    whole = x.shape[-1] == weight.shape[-2] and x.size > 0
    return whole and window.area == 1 and max(window.stride) == 1 and not any(window.pad)


def _pixels(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])
