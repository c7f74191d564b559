"""Sums over rows and columns on a GPU, and the losses and normalisations that consist of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod
from typing import Any

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.base import Ops
from singa_dask.ops.gpu.column_kernels import COLUMNS
from singa_dask.ops.gpu.convolution_ops import as_read
from singa_dask.ops.gpu.warps import LANES, THREADS, WARPS
from singa_dask.ops.normalisation import UNBOUNDED, BatchStatistics, Bounds, GroupSum
from singa_dask.ops.update import Where

# Blocks that a GPU has enough to do with.
_MOST = 1024


class GpuNormalisationOps(Ops):
    """Sums over rows and columns by CUDA kernels."""

    _kernels: Any
    # Of calls that follow each other: what the blocks of one have found, and how many have arrived, 0 between calls.
    _found: Array = None
    _arrived: Array = None

    def _columns(
        self, name: str, shape: tuple[int, int], given: tuple[Any, ...], *out: Array, written: Sequence[Array] = ()
    ) -> Array:
        """Run one of COLUMNS over arrays of this shape, (rows, columns). Returns the first of `out`."""
        rows, columns = shape
        across = min(LANES, 1 << max(0, columns - 1).bit_length())
        tiles = -(-columns // across)
        # A thread adds up about as many rows as a lane then adds up parts.
        blocks = max(1, min(isqrt(rows) // 2, _MOST // max(1, tiles)))
        size = len(COLUMNS[name].terms) * columns * blocks * WARPS
        if self._found is None or len(self._found) < size:
            self._found = self.xp.empty(size, np.float64)
        if self._arrived is None or len(self._arrived) < tiles:
            self._arrived = self.xp.zeros(tiles, np.uint32)
        results, threads = (*written, *out, self._found, self._arrived), THREADS * blocks * tiles
        getattr(self._kernels, name)(*given, rows, columns, blocks, across, *results, size=threads, block_size=THREADS)
        return out[0]

    def column_sums(self, x: Array, out: Array, accumulate: bool = False) -> Array:
        return self._columns("column_sums", x.shape, (x, accumulate), out)

    def add_bias(self, y: Array, b: Array, bounds: Bounds = UNBOUNDED) -> Array:
        return self._kernels.add_bias(b, y.shape[1], *bounds, y)

    def add_bias_backward(
        self, y: Array, dy: Array, bounds: Bounds, out: Array, accumulate: bool = False, b: Array | None = None
    ) -> Array:
        given = y, y if b is None else b, b is not None, *bounds, accumulate
        return self._columns("bounded_sums", y.shape, given, out, written=[dy])

    def half_squares(self, x: Array, t: Array, error: Array) -> Array:
        given = *as_read(x), x.shape[-1], t
        return self._columns("half_squares", (error.size, 1), given, self.xp.empty((), np.float64), written=[error])

    def sum_rows(self, x: Array, out: Array) -> Array:
        return self.column_sums(x, out)

    def squared_norm(self, x: Array) -> Array:
        return self._columns("squared_norm", (x.size, 1), (x,), self.xp.empty((), np.float64))

    def squared_norm_where(self, where: Where, x: Array) -> Array:
        kinds, kind = where
        return self._columns("squared_norm_where", (x.size, 1), (x, kinds, kind), self.xp.empty((), np.float64))

    def channel_moments(self, x: Array, mean: Array) -> Array:
        return self._columns("channel_moments", x.shape, (x, mean), self.xp.empty((2, x.shape[1]), np.float64))

    def channel_products(self, d: Array, x: Array, mean: Array) -> Array:
        return self._columns("channel_products", x.shape, (d, x, mean), self.xp.empty((2, x.shape[1]), np.float64))

    def clipped_products(self, d: Array, x: Array, mean: Array, factor: Array, bias: Array, bounds: Bounds) -> Array:
        out = self.xp.empty((2, x.shape[1]), np.float64)
        return self._columns("clipped_products", x.shape, (x, mean, factor, bias, *bounds), out, written=[d])

    def batch_statistics(
        self, x: Array, scale: Array, epsilon: float, group_sum: GroupSum | None = None
    ) -> BatchStatistics:
        if group_sum is not None or not len(x):
            return super().batch_statistics(x, scale, epsilon, group_sum)
        wide, narrow = self.xp.empty((3, x.shape[1]), np.float64), self.xp.empty((2, x.shape[1]), x.dtype)
        of = BatchStatistics(len(x), *wide, *narrow)
        self._columns("batch_statistics", x.shape, (x, scale, epsilon), *of[1:])
        return of

    def batch_norm_gradients(
        self,
        d: Array,
        x: Array,
        of: BatchStatistics,
        values: Sequence[Array],
        grads: Sequence[tuple[Array, bool]],
        share: float,
        group_sum: GroupSum | None = None,
        clip: tuple[Array, Bounds] | None = None,
    ) -> Array:
        if group_sum is not None or not len(x):
            return super().batch_norm_gradients(d, x, of, values, grads, share, group_sum, clip)
        weights, more = self.xp.empty((3, x.shape[1]), x.dtype), sum(add << k for k, (_, add) in enumerate(grads))
        given, out = (x, *of[1:5], *values, share, more), (*(grad for grad, _ in grads), weights)
        if clip is None:
            self._columns("batch_gradients", x.shape, (d, *given), *out)
        else:
            bias, bounds = clip
            given = *given, of.factor, bias, *bounds
            self._columns("clipped_batch_gradients", x.shape, given, *out, written=[d])
        return self.batch_norm_backward(d, x, of.about, *weights)

    def normalise_channels(
        self, x: Array, mean: Array, factor: Array, bias: Array, out: Array, bounds: Bounds = UNBOUNDED
    ) -> Array:
        return self._kernels.normalise_channels(x, mean, factor, bias, x.shape[1], *bounds, out)

    def batch_norm_backward(self, d: Array, x: Array, mean: Array, factor: Array, slope: Array, shift: Array) -> Array:
        return self._kernels.batch_norm_backward(x, mean, factor, slope, shift, x.shape[1], d)

    def group_norm(
        self, x: Array, scale: Array, bias: Array, epsilon: float, out: Array, mean: Array, inverse: Array
    ) -> Array:
        self._kernels.group_norm(
            x, scale, bias, epsilon, *x.shape[1:], out, mean, inverse, size=LANES * mean.size
        )  # fmt: skip
        return out

    def group_norm_backward(
        self, x: Array, scale: Array, mean: Array, inverse: Array, d: Array, grads: Sequence[tuple[Array, bool]]
    ) -> Array:
        rows, columns = prod(x.shape[:2]), prod(x.shape[2:])
        more = sum(add << k for k, (_, add) in enumerate(grads))
        given = x, d, mean, inverse, *x.shape[1:], more
        self._columns("group_norm_sums", (rows, columns), given, *(grad for grad, _ in grads))
        self._kernels.group_norm_backward(x, scale, mean, inverse, *x.shape[1:], d, size=LANES * mean.size)
        return d

    def softmax(self, x: Array, out: Array) -> Array:
        self._kernels.softmax(x, x.shape[1], out, size=LANES * len(x))
        return out

    def softmax_backward(self, y: Array, dy: Array, out: Array) -> Array:
        self._kernels.softmax_backward(y, dy, y.shape[1], out, size=LANES * len(y))
        return out

    def softmax_cross_entropy(
        self, x: Array, labels: Array, topk: int, out: Array, smoothing: float = 0.0
    ) -> Sequence[Array]:
        numbers = self.xp.empty((len(x), 2), np.float64)
        self._kernels.softmax_cross_entropy(
            *as_read(x), labels, x.shape[1], topk, smoothing, out, numbers, size=LANES * len(x)
        )  # fmt: skip
        return self.column_sums(numbers, self.xp.empty(2, np.float64))

    def softmax_cross_entropy_backward(
        self, y: Array, labels: Array, scale: float, out: Array, smoothing: float = 0.0
    ) -> Array:
        return self._kernels.softmax_cross_entropy_backward(y, labels, y.shape[1], scale, smoothing, out)

    def lrn(
        self, x: Array, local_size: int, alpha: float, beta: float, knorm: float, out: Array, scale: Array
    ) -> Array:
        self._kernels.lrn(x, x, x.shape[-1], local_size // 2, alpha / local_size, beta, knorm, out, scale)
        return out

    def lrn_backward(
        self, x: Array, y: Array, scale: Array, dy: Array, local_size: int, alpha: float, beta: float, out: Array
    ) -> Array:
        of_others = self._kernels.lrn_quotient(y, scale, dy, self.xp.empty_like(x))
        factor = 2 * alpha * beta / local_size
        return self._kernels.lrn_backward(x, scale, dy, of_others, x.shape[-1], local_size // 2, factor, beta, out)
