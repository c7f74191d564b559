"""Convolution on the CPU: by Winograd's algorithm where it pays, else by the sums as they are; without columns."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.base import Ops
from singa_dask.ops.cpu import winograd_convolution
from singa_dask.ops.cpu.direct_convolution import DirectConvolution
from singa_dask.ops.cpu.kernels import numba_convolution
from singa_dask.ops.cpu.kernels.vectors import VECTOR
from singa_dask.ops.cpu.team import Team
from singa_dask.ops.cpu.winograd_convolution import WinogradConvolution
from singa_dask.ops.window import Window

Shape = tuple[int, ...]


class Convolution(Protocol):
    """A convolution of given shapes, x: (B, H, W, C), for a number of threads; as ConvolutionOps has its passes.

    Arrays are contiguous and float32; buffer: of at least `elements`.
    """

    @property
    def elements(self) -> int: ...

    def forward(self, team: Team, x: Array, weight: Array, bias: Array | None, out: Array, buffer: Array) -> None: ...

    def backward_weight(
        self, team: Team, x: Array, dy: Array, dweight: Array, buffer: Array, accumulate: bool
    ) -> None: ...

    def backward_input(self, team: Team, dy: Array, weight: Array, dx: Array, buffer: Array) -> None: ...


@lru_cache(maxsize=512)
def convolution(x_shape: Shape, window: Window, filters: int, threads: int) -> Convolution:
    """The faster convolution of images of `x_shape` (B, H, W, C), by up to `threads` threads."""
    kind = WinogradConvolution if winograd_convolution.suits(x_shape, window, filters) else DirectConvolution
    return kind.of(x_shape, window, filters, threads)


class CpuConvolutionOps(Ops):
    """Convolution of CpuOps; im2col and GEMM, as in the base, where there are no vectors or float64 is computed."""

    # About one core's cache: im2col's columns are read back by GEMM at once, and should not leave it.
    cache_nbytes = 1 << 20
    _team: Team

    def _convolution(self, x_shape: Shape, window: Window, filters: int) -> Convolution | None:
        if VECTOR == 0 or self.dtype != np.float32 or min(x_shape) == 0:
            return None
        return convolution(x_shape, window, filters, self._team.size)

    def _by_address(self, array: Array) -> Array:
        """The array as kernels must have it that get its address alone: a layer of one's own may return float64."""
        return np.ascontiguousarray(array, self.dtype)

    def _to_fill(self, array: Array) -> Array:
        """The same array. Raises ValueError where kernels could not write to it by its address."""
        if array.dtype != self.dtype or not array.flags.c_contiguous:
            raise ValueError(
                f"a convolution's result must be a contiguous array of {self.dtype}. Received: {array.dtype}, "
                f"shape {array.shape}, strides {array.strides}."
            )
        return array

    def workspace_shape(self, x_shape: Shape, window: Window, filters: int, limit_nbytes: int) -> Shape:
        found = self._convolution(x_shape, window, filters)
        if found is not None:
            return (found.elements,)
        return super().workspace_shape(x_shape, window, filters, min(limit_nbytes, self.cache_nbytes))

    def convolve(
        self, x: Array, weight: Array, bias: Array | None, window: Window, out: Array, workspace: Array
    ) -> Array:
        found = self._convolution(x.shape, window, out.shape[-1])
        if found is None:
            return super().convolve(x, weight, bias, window, out, workspace)
        x, weight = self._by_address(x), self._by_address(weight)
        bias = None if bias is None else self._by_address(bias)
        found.forward(self._team, x, weight, bias, self._to_fill(out), workspace)
        return out

    def convolve_backward_weight(
        self, x: Array, dy: Array, window: Window, dweight: Array, workspace: Array, accumulate: bool = False
    ) -> Array:
        found = self._convolution(x.shape, window, dy.shape[-1])
        if found is None:
            return super().convolve_backward_weight(x, dy, window, dweight, workspace, accumulate)
        x, dy = self._by_address(x), self._by_address(dy)
        found.backward_weight(self._team, x, dy, self._to_fill(dweight), workspace, accumulate)
        return dweight

    def convolve_backward_input(self, dy: Array, weight: Array, window: Window, dx: Array, workspace: Array) -> Array:
        found = self._convolution(dx.shape, window, dy.shape[-1])
        if found is None:
            return super().convolve_backward_input(dy, weight, window, dx, workspace)
        dy, weight = self._by_address(dy), self._by_address(weight)
        found.backward_input(self._team, dy, weight, self._to_fill(dx), workspace)
        return dx

    def im2col(self, x: Array, window: Window, columns: Array) -> None:
        size = window.output_size(*x.shape[1:3])
        numba_convolution.im2col(x, *window.kernel, *window.stride, *window.pad, *size, columns)

    def col2im(self, columns: Array, window: Window, x: Array) -> None:
        size = window.output_size(*x.shape[1:3])
        numba_convolution.col2im(columns, *window.kernel, *window.stride, *window.pad, *size, x)
