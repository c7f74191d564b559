"""Batch normalisation on the CPU. Several rows count as one, so that loops over channels are long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.elementwise import batch_norm_kernels
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps
from singa_dask.ops.normalisation import UNBOUNDED, Bounds


class CpuBatchNormOps(ThreadedOps):
    """Batch normalisation of CpuOps."""

    # Values of a row of the kernels; sums of so many stay in a core's first-level cache.
    _row_values: ClassVar[int] = 512

    def channel_moments(self, x: Array, mean: Array) -> Array:
        return self._sums(batch_norm_kernels.channel_moments, (x,), (mean,))

    def channel_products(self, d: Array, x: Array, mean: Array) -> Array:
        return self._sums(batch_norm_kernels.channel_products, (d, x), (mean,))

    def clipped_products(self, d: Array, x: Array, mean: Array, factor: Array, bias: Array, bounds: Bounds) -> Array:
        return self._sums(batch_norm_kernels.clipped_products, (d, x), (mean, factor, bias), bounds)

    def _sums(
        self, kernel: Callable[..., None], arrays: tuple[Array, ...], channels: tuple[Array, ...], *bounds: Bounds
    ) -> Array:
        wide, together = list(self._wide(arrays, channels)), self._together(arrays[0])
        wide, channels = wide[: len(arrays)], tuple(wide[len(arrays) :])
        like = np.empty((2, channels[0].size))
        sums = self._summed(
            wide[0], lambda n, own: kernel(*(array[n] for array in wide), *channels, *bounds, own), like
        )
        return sums.reshape(2, together, -1).sum(axis=1)

    def normalise_channels(
        self, x: Array, mean: Array, factor: Array, bias: Array, out: Array, bounds: Bounds = UNBOUNDED
    ) -> Array:
        x, target, mean, factor, bias = self._wide((x, out), (mean, factor, bias))
        self._share(x, lambda n: batch_norm_kernels.normalise_channels(x[n], mean, factor, bias, bounds, target[n]))
        return out

    def batch_norm_backward(self, d: Array, x: Array, mean: Array, factor: Array, slope: Array, shift: Array) -> Array:
        gradient, x, *channels = self._wide((d, x), (mean, factor, slope, shift))
        self._share(x, lambda n: batch_norm_kernels.batch_norm_backward(gradient[n], x[n], *channels))
        return d

    def _wide(self, arrays: tuple[Array, ...], channels: tuple[Array, ...]) -> Iterator[Array]:
        """Views of arrays (N, C) as (N / k, k C), and arrays (C,) repeated k times."""
        together = self._together(arrays[0])
        for array in arrays:
            yield array.reshape(len(array) // together, -1 if len(array) else array.shape[1])
        for values in channels:
            yield np.tile(values, together)

    def _together(self, x: Array) -> int:
        """k, a power of two."""
        rows, channels = x.shape
        together = 1
        while rows and rows % (2 * together) == 0 and 2 * together * channels <= self._row_values:
            together *= 2
        return together
