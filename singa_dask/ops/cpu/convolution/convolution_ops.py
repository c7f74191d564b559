"""Convolution on the CPU without a buffer of columns: by Winograd's algorithm where faster, else by direct sums."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.convolution import depthwise_kernels, im2col_kernels, winograd_convolution
from singa_dask.ops.cpu.convolution.direct_convolution import DirectConvolution
from singa_dask.ops.cpu.convolution.volume_convolution import VolumeConvolution
from singa_dask.ops.cpu.convolution.winograd_convolution import WinogradConvolution
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps
from singa_dask.ops.cpu.toolkit.vectors import VECTOR
from singa_dask.ops.window import Window

Shape = tuple[int, ...]


# A convolution of given shapes for a number of threads, with the passes of ConvolutionOps. They take x (B, H, W, C),
# contiguous float32 arrays, and a buffer of at least `elements`.
Convolution = DirectConvolution | WinogradConvolution | VolumeConvolution


@lru_cache(maxsize=512)
def convolution(x_shape: Shape, window: Window, filters: int, threads: int) -> Convolution:
    """The fastest convolution of images of `x_shape` (B, H, W, C), or of volumes, by up to `threads` threads."""
    if len(window.kernel) == 3:
        images = convolution(*VolumeConvolution.of_images(x_shape, window), filters, threads)
        return VolumeConvolution(x_shape, window, images)
    kind = WinogradConvolution if winograd_convolution.suits(x_shape, window, filters) else DirectConvolution
    return kind.of(x_shape, window, filters, threads)


class CpuConvolutionOps(ThreadedOps):
    """Convolution of CpuOps; im2col and GEMM, as in the base, for float64, on CPUs without vectors, in groups of
    several channels and with dilation."""

    # About one core's cache: GEMM reads the columns of im2col at once, and they should still be in it.
    cache_nbytes = 1 << 20

    def _convolution(self, x_shape: Shape, window: Window, filters: int, groups: int) -> Convolution | None:
        if groups > 1 or max(window.dilation) > 1 or VECTOR == 0 or self.dtype != np.float32 or min(x_shape) == 0:
            return None
        return convolution(x_shape, window, filters, self._team.size)

    def _by_address(self, array: Array) -> Array:
        """The array for kernels that take an address: contiguous, of `dtype`. A user's layer may return float64."""
        return np.ascontiguousarray(array, self.dtype)

    def _to_fill(self, array: Array) -> Array:
        """The same array. Raises ValueError where kernels cannot write to it by its address."""
        if array.dtype != self.dtype or not array.flags.c_contiguous:
            raise ValueError(
                f"a convolution's result must be a contiguous array of {self.dtype}. Received: {array.dtype}, "
                f"shape {array.shape}, strides {array.strides}."
            )
        return array

    def workspace_shape(
        self, x_shape: tuple[int, ...], window: Window, filters: int, limit_nbytes: int, groups: int = 1
    ) -> tuple[int, ...]:
        found = self._convolution(x_shape, window, filters, groups)
        if found is not None:
            return (found.elements,)
        return super().workspace_shape(x_shape, window, filters, min(limit_nbytes, self.cache_nbytes), groups)

    def convolve(
        self, x: Array, weight: Array, bias: Array | None, window: Window, out: Array, workspace: Array
    ) -> Array:
        if _by_channel(window, weight.shape, x.shape[-1]):
            images, target = _lines(x), _lines(out)
            settings = _tiled(weight, out.shape[2]), _geometry(window), x.shape[-1]
            self._share(images, lambda n: depthwise_kernels.convolve(images[n], *settings, target[n]))
            if bias is not None:
                out += bias
            return out
        found = self._convolution(x.shape, window, out.shape[-1], x.shape[-1] // weight.shape[-2])
        if found is None:
            return super().convolve(x, weight, bias, window, out, workspace)
        x, weight = self._by_address(x), self._by_address(weight)
        bias = None if bias is None else self._by_address(bias)
        found.forward(self._team, x, weight, bias, self._to_fill(out), workspace)
        return out

    def convolve_backward_weight(
        self, x: Array, dy: Array, window: Window, dweight: Array, workspace: Array, accumulate: bool = False
    ) -> Array:
        if _by_channel(window, dweight.shape, x.shape[-1]):
            images, upper, settings = _lines(x), _lines(dy), (_geometry(window), x.shape[-1])
            run, like = depthwise_kernels.convolve_backward_weight, _tiled(dweight, dy.shape[2])
            sums = self._summed(images, lambda n, own: run(images[n], upper[n], *settings, own), like)
            sums = sums.reshape(*window.kernel, dy.shape[2], -1).sum(axis=2)
            dweight[:, :, 0] = dweight[:, :, 0] + sums if accumulate else sums
            return dweight
        found = self._convolution(x.shape, window, dy.shape[-1], x.shape[-1] // dweight.shape[-2])
        if found is None:
            return super().convolve_backward_weight(x, dy, window, dweight, workspace, accumulate)
        x, dy = self._by_address(x), self._by_address(dy)
        found.backward_weight(self._team, x, dy, self._to_fill(dweight), workspace, accumulate)
        return dweight

    def convolve_backward_input(self, dy: Array, weight: Array, window: Window, dx: Array, workspace: Array) -> Array:
        if _by_channel(window, weight.shape, dx.shape[-1]):
            upper, target, run = _lines(dy), _lines(dx), depthwise_kernels.convolve_backward_input
            settings = _tiled(weight, dy.shape[2]), _geometry(window), dx.shape[-1]
            self._share(target, lambda n: run(upper[n], *settings, target[n]))
            return dx
        found = self._convolution(dx.shape, window, dy.shape[-1], dx.shape[-1] // weight.shape[-2])
        if found is None:
            return super().convolve_backward_input(dy, weight, window, dx, workspace)
        dy, weight = self._by_address(dy), self._by_address(weight)
        found.backward_input(self._team, dy, weight, self._to_fill(dx), workspace)
        return dx

    def im2col(self, x: Array, window: Window, columns: Array, groups: int = 1) -> None:
        if groups > 1 or not window.plain:
            super().im2col(x, window, columns, groups)
        else:
            im2col_kernels.im2col(x, window.sizes, window.output_size(*x.shape[1:3]), columns)

    def col2im(self, columns: Array, window: Window, x: Array, groups: int = 1) -> None:
        if groups > 1 or not window.plain:
            super().col2im(columns, window, x, groups)
        else:
            im2col_kernels.col2im(columns, window.sizes, window.output_size(*x.shape[1:3]), x)


def _by_channel(window: Window, weight: Shape, channels: int) -> bool:
    """Whether each channel of an image has a filter of its own. weight: its shape."""
    return len(window.kernel) == 2 and weight[-2] == 1 and weight[-1] == channels > 1


def _geometry(window: Window) -> tuple[Shape, ...]:
    return *window.sizes, window.dilation


def _lines(images: Array) -> Array:
    """(B, H, W, C) as (B, H, W C)."""
    return images.reshape(*images.shape[:2], images.shape[2] * images.shape[3])


def _tiled(weight: Array, count: int) -> Array:
    """The weight (kh, kw, 1, C) `count` times side by side."""
    return np.tile(weight[:, :, 0], (1, 1, count))
