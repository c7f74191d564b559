"""Sums over rows and columns on a GPU, and the losses and normalisations that consist of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.base import Ops
from singa_dask.ops.gpu.column_kernels import COLUMNS
from singa_dask.ops.gpu.warps import LANES
from singa_dask.ops.normalisation import UNBOUNDED, BatchStatistics, Bounds, GroupSum
from singa_dask.ops.update import Where

# So many rows a warp adds up in the time of the second launch that more rows take.
_FEW = 1024


class GpuNormalisationOps(Ops):
    """Sums over rows and columns by CUDA kernels."""

    _kernels: Any

    def _columns(self, name: str, shape: tuple[int, int], given: tuple[Any, ...], *out: Array) -> Array:
        """Run one of COLUMNS over arrays of this shape, (rows, columns). Returns the first of `out`."""
        rows, columns = shape
        if rows <= _FEW:
            getattr(self._kernels, name)(*given, rows, columns, *out, size=LANES * columns)
            return out[0]
        # A thread adds up as many rows as a lane then adds up parts.
        parts = 1 << (LANES * rows).bit_length() // 2
        found = self.xp.empty(len(COLUMNS[name][1]) * parts * columns, np.float64)
        getattr(self._kernels, f"{name}_parts")(*given, rows, columns, parts, found, size=parts * columns)
        getattr(self._kernels, f"{name}_end")(*given, rows, columns, found, parts, *out, size=LANES * columns)
        return out[0]

    def column_sums(self, x: Array, out: Array, accumulate: bool = False) -> Array:
        return self._columns("column_sums", x.shape, (x, accumulate), out)

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
        self._kernels.clip_gradient(x, mean, factor, bias, x.shape[1], *bounds, d)
        return self.channel_products(d, x, mean)

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
        if clip is not None:
            bias, bounds = clip
            self._kernels.clip_gradient(x, of.about, of.factor, bias, x.shape[1], *bounds, d)
        weights, more = self.xp.empty((3, x.shape[1]), x.dtype), sum(add << k for k, (_, add) in enumerate(grads))
        given = d, x, of.mean, of.var, of.inverse, of.about, *values, share, more
        self._columns("batch_gradients", x.shape, given, *(grad for grad, _ in grads), weights)
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
            x, labels, x.shape[1], topk, smoothing, out, numbers, size=LANES * len(x)
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
