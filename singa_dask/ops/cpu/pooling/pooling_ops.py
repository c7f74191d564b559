"""Pooling on the CPU."""

from __future__ import annotations

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.pooling import pooling_kernels
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps
from singa_dask.ops.cpu.toolkit.vectors import VECTOR
from singa_dask.ops.window import Window


class CpuPoolingOps(ThreadedOps):
    """Pooling of CpuOps; max-pooling in vectors where the kernels are for them."""

    def max_pool(self, x: Array, window: Window, out: Array, argmax: Array) -> Array:
        run = pooling_kernels.max_pool_vectors if _in_vectors(x, argmax) else pooling_kernels.max_pool
        self._share(x, lambda n: run(x[n], window.sizes, out[n], argmax[n]))
        return out

    def max_pool_backward(self, dy: Array, argmax: Array, window: Window, dx: Array) -> Array:
        vectors, plain = pooling_kernels.max_pool_backward_vectors, pooling_kernels.max_pool_backward
        run = vectors if _in_vectors(dx, argmax) else plain
        self._share(dx, lambda n: run(dy[n], argmax[n], window.sizes, dx[n]))
        return dx

    def average_pool(self, x: Array, window: Window, out: Array) -> Array:
        self._share(x, lambda n: pooling_kernels.average_pool(x[n], window.sizes, out[n]))
        return out

    def average_pool_backward(self, dy: Array, window: Window, dx: Array) -> Array:
        self._share(dx, lambda n: pooling_kernels.average_pool_backward(dy[n], window.sizes, dx[n]))
        return dx


def _in_vectors(x: Array, argmax: Array) -> bool:
    return VECTOR > 0 and x.dtype == np.float32 and argmax.dtype == np.uint8
