"""Activations, dropout, normalisation, losses and updates on the CPU, each in one pass over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import ClassVar

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.elementwise import (
    elementwise_kernels,
    group_norm_kernels,
    loss_kernels,
    lrn_kernels,
    update_kernels,
)
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps
from singa_dask.ops.random import Columns, drop_threshold
from singa_dask.ops.update import hyperparameters, trust_ratio


class CpuElementwiseOps(ThreadedOps):
    """Activations, dropout, normalisation, losses and updates of CpuOps."""

    # Parameters whose update takes a thread about ten times as long as waking it.
    _update_worth_a_thread: ClassVar[int] = 1 << 18
    # Elements of which a core keeps several arrays in its second-level cache.
    _cached: ClassVar[int] = 1 << 13

    def relu(self, x: Array, slope: float, out: Array, limit: float = inf) -> Array:
        return self._by_element(lambda x, out: elementwise_kernels.relu(x, slope, limit, out), x, out)

    def _by_element(self, task: Callable[..., None], x: Array, *outs: Array) -> Array:
        """Run the task on runs of the elements of these arrays, by the threads. Returns the first of `outs`."""
        flat = [array.reshape(-1) for array in (x, *outs)]
        self._share(flat[0], lambda n: task(*[array[n] for array in flat]))
        return outs[0]

    def _in_place(self, dy: Array, out: Array, task: Callable[[Array, slice], None]) -> Array:
        """out = dy, then task(out, n) on runs n of its elements, by the threads."""
        if out is not dy:
            np.copyto(out, dy)
        flat = out.reshape(-1)
        self._share(flat, lambda n: task(flat, n))
        return out

    def relu_backward(self, y: Array, dy: Array, slope: float, out: Array, limit: float = inf) -> Array:
        value = y.reshape(-1)
        return self._in_place(dy, out, lambda d, n: elementwise_kernels.relu_backward(value[n], slope, limit, d[n]))

    def sigmoid(self, x: Array, out: Array) -> Array:
        if x.dtype != np.float32:
            return self._in_parts(super().sigmoid, x, out)
        # In place LLVM would take the loop without vectors.
        return self._by_element(elementwise_kernels.sigmoid, x.copy() if x is out else x, out)

    def sigmoid_backward(self, y: Array, dy: Array, out: Array) -> Array:
        value = y.reshape(-1)
        return self._in_place(dy, out, lambda d, n: elementwise_kernels.sigmoid_backward(value[n], d[n]))

    def tanh_backward(self, y: Array, dy: Array, out: Array) -> Array:
        value = y.reshape(-1)
        return self._in_place(dy, out, lambda d, n: elementwise_kernels.tanh_backward(value[n], d[n]))

    def stanh_backward(self, y: Array, dy: Array, out: Array) -> Array:
        value = y.reshape(-1)
        return self._in_place(dy, out, lambda d, n: elementwise_kernels.stanh_backward(value[n], d[n]))

    def elu(self, x: Array, alpha: float, out: Array) -> Array:
        reference = super().elu
        return self._in_parts(lambda x, out: reference(x, alpha, out), x, out)

    def silu(self, x: Array, out: Array, slope: Array) -> Array:
        if x.dtype != np.float32:
            return self._in_parts(super().silu, x, out, slope)
        return self._by_element(elementwise_kernels.silu, x, out, slope)

    def gelu(self, x: Array, out: Array, slope: Array) -> Array:
        return self._by_element(elementwise_kernels.gelu, x, out, slope)

    def gelu_tanh(self, x: Array, out: Array, slope: Array) -> Array:
        return self._by_element(elementwise_kernels.gelu_tanh, x, out, slope)

    def _in_parts(self, passes: Callable[..., object], x: Array, *outs: Array) -> Array:
        """Run several passes over the arrays on parts of them that stay in a core's cache."""
        flat = [array.reshape(-1) for array in (x, *outs)]

        def task(n: slice) -> None:
            for start in range(n.start, n.stop, self._cached):
                part = slice(start, min(start + self._cached, n.stop))
                passes(*[array[part] for array in flat])

        self._share(flat[0], task)
        return outs[0]

    def lrn(
        self, x: Array, local_size: int, alpha: float, beta: float, knorm: float, out: Array, scale: Array
    ) -> Array:
        if beta != 0.75:
            return super().lrn(x, local_size, alpha, beta, knorm, out, scale)
        channels = x.shape[-1]
        source, target, sums = (a.reshape(-1, channels) for a in (x, out, scale))

        def rows(n: slice) -> None:
            padded = np.empty(channels + local_size - 1, x.dtype)
            lrn_kernels.lrn(source[n], local_size, alpha, knorm, target[n], sums[n], padded)

        self._share(source, rows)
        return out

    def lrn_backward(
        self, x: Array, y: Array, scale: Array, dy: Array, local_size: int, alpha: float, beta: float, out: Array
    ) -> Array:
        if beta != 0.75:
            return super().lrn_backward(x, y, scale, dy, local_size, alpha, beta, out)
        channels = x.shape[-1]
        if out is not dy:
            np.copyto(out, dy)
        x, y, scale, gradient = (a.reshape(-1, channels) for a in (x, y, scale, out))

        def rows(n: slice) -> None:
            padded, sums = np.empty(channels + local_size - 1, x.dtype), np.empty(channels, x.dtype)
            lrn_kernels.lrn_backward(x[n], y[n], scale[n], local_size, alpha, gradient[n], padded, sums)

        self._share(x, rows)
        return out

    def group_norm(
        self, x: Array, scale: Array, bias: Array, epsilon: float, out: Array, mean: Array, inverse: Array
    ) -> Array:
        def rows(n: slice) -> None:
            group_norm_kernels.group_norm(x[n], scale, bias, epsilon, out[n], mean[n], inverse[n])

        self._share(x, rows)
        return out

    def group_norm_backward(
        self, x: Array, scale: Array, mean: Array, inverse: Array, d: Array, grads: Sequence[tuple[Array, bool]]
    ) -> Array:
        run, like = group_norm_kernels.group_norm_backward, self.empty((2, *x.shape[2:]), x.dtype)
        self._add_sums(grads, self._summed(x, lambda n, own: run(x[n], scale, mean[n], inverse[n], d[n], own), like))
        return d

    def dropout(
        self, x: Array, ratio: float, key: int, first: int, out: Array, mask: Array, columns: Columns | None = None
    ) -> Array:
        width, stride = columns or (x.size, x.size)
        rows = (1, x.size) if width == stride or not x.size else (x.size // width, width)
        bits = np.uint64(drop_threshold(ratio)), 1 - ratio, np.uint64(key), np.uint64(first), np.uint64(stride)
        elementwise_kernels.dropout(x.reshape(rows), *bits, out.reshape(rows), mask.reshape(rows))
        return out

    def dropout_backward(self, dy: Array, mask: Array, ratio: float, out: Array) -> Array:
        kept = mask.reshape(-1)
        return self._in_place(dy, out, lambda d, n: elementwise_kernels.dropout_backward(kept[n], 1 - ratio, d[n]))

    def crop(self, x: Array, top: Array, left: Array, mirror: Array, mean: Array, scale: float, out: Array) -> Array:
        elementwise_kernels.crop(x, top, left, mirror, mean, scale, out)
        return out

    def softmax_cross_entropy(
        self, x: Array, labels: Array, topk: int, out: Array, smoothing: float = 0.0
    ) -> Sequence[Array]:
        loss, correct = loss_kernels.softmax_cross_entropy(x, labels, topk, out, float(smoothing))
        return x.dtype.type(loss), correct

    def softmax_cross_entropy_backward(
        self, y: Array, labels: Array, scale: float, out: Array, smoothing: float = 0.0
    ) -> Array:
        loss_kernels.softmax_cross_entropy_backward(y, labels, scale, out, float(smoothing))
        return out

    def binary_cross_entropy(self, x: Array, t: Array, positive: Array, out: Sequence[Array]) -> None:
        self._share(x, lambda n: loss_kernels.binary_cross_entropy(x[n], t[n], positive, *(each[n] for each in out)))

    def count_topk(self, x: Array, labels: Array, topk: int) -> Array:
        return loss_kernels.count_topk(x, labels, topk)

    def update(self, rule: str, w: Array, g: Array, states: Sequence[Array], **given: float) -> None:
        numbers = hyperparameters(rule, given)
        kernel = getattr(update_kernels, rule)
        self._share_update(w, lambda n: kernel(w[n], g[n], *(state[n] for state in states), *numbers))

    def moving_average(self, average: Array, w: Array, decay: float) -> None:
        self._share_update(w, lambda n: update_kernels.moving_average(average[n], w[n], decay))

    def lamb(
        self, w: Array, g: Array, m: Array, v: Array, *,
        lr: float, beta1: float, beta2: float, correction1: float, correction2: float, delta: float,
        weight_decay: float, clip_low: float, clip_high: float,
    ) -> None:  # fmt: skip
        squares: dict[int, tuple[float, float]] = {}
        shared = correction1, correction2, delta, weight_decay

        def moments(n: slice) -> None:
            clip = clip_low, clip_high
            squares[n.start] = update_kernels.lamb_moments(w[n], g[n], m[n], v[n], beta1, beta2, *shared, *clip)

        self._share_update(w, moments)
        of_w, of_r = (sum(squares[start][i] for start in sorted(squares)) for i in (0, 1))
        rate = lr * trust_ratio(of_w, of_r)
        self._share_update(w, lambda n: update_kernels.lamb_step(w[n], m[n], v[n], rate, *shared))

    def _share_update(self, w: Array, task: Callable[[slice], None]) -> None:
        """Run task(n) on shares n of the elements of w."""
        count = max(1, min(self._team.size, w.size // self._update_worth_a_thread))
        self._team.share(w.size, count, task)
