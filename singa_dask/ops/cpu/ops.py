"""Ops on the CPU: NumPy's BLAS for products, Numba for what NumPy would do in several passes over memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu import row_products
from singa_dask.ops.cpu.convolution import CpuConvolutionOps
from singa_dask.ops.cpu.kernels import (
    numba_elementwise,
    numba_loss,
    numba_lrn,
    numba_pooling,
    numba_recurrent,
    numba_update,
    row_tile,
)
from singa_dask.ops.cpu.kernels.vectors import VECTOR
from singa_dask.ops.cpu.team import Team
from singa_dask.ops.cpu.workspace import aligned
from singa_dask.ops.random import drop_threshold
from singa_dask.ops.recurrent import Chosen
from singa_dask.ops.window import Window


def _geometry(window: Window) -> tuple[int, int, int, int, int, int]:
    return *window.kernel, *window.stride, *window.pad


class CpuOps(CpuConvolutionOps):
    """NumPy and Numba. Every override computes what its base does, on C-contiguous arrays.

    threads: that share the work of a kernel. Where there are several BLAS must have one (threadpool_limits): its own
    threads spin for milliseconds after each product, on the cores that the next kernel needs.
    """

    device: ClassVar[str] = "cpu"

    # Elements on which an elementwise kernel takes some ten microseconds, as waking a thread does.
    _worth_a_thread: ClassVar[int] = 1 << 15
    # Multiplications of a matrix product that take some twenty microseconds.
    _product_worth_a_thread: ClassVar[int] = 1 << 20
    # Parameters of an update that keep a thread busy for about ten times as long as it takes to wake it.
    _update_worth_a_thread: ClassVar[int] = 1 << 18

    def __init__(self, dtype: Any = np.float32, threads: int = 1):
        super().__init__(dtype)
        self._team = Team(threads)

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return aligned(np.empty, shape, self.dtype if dtype is None else dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        return aligned(np.zeros, shape, self.dtype if dtype is None else dtype)

    def gemm(self, a: Array, b: Array, out: Array | None = None, accumulate: bool = False) -> Array:
        rows, columns = a.shape[0], b.shape[1]
        out = self.empty((rows, columns), np.result_type(a, b)) if out is None else out
        count = max(1, min(self._team.size, a.size * columns // self._product_worth_a_thread))
        if by_tile := row_products.product_of(a, b, out):
            by_tile(self._team, count, a, b, out, accumulate)
            return out
        product = super().gemm
        if count == 1:
            return product(a, b, out, accumulate)

        if rows > columns:
            self._team.share(rows, count, lambda share: product(a[share], b, out[share], accumulate))
        else:
            self._team.share(columns, count, lambda share: product(a, b[:, share], out[:, share], accumulate))
        return out

    def affine(self, x: Array, w: Array, b: Array | None, out: Array | None = None) -> Array:
        out = self.gemm(x, w, out)
        if b is not None:
            numba_elementwise.add_rows(b, out)
        return out

    def column_sums(self, x: Array, out: Array, accumulate: bool = False) -> Array:
        numba_elementwise.column_sums(x, accumulate, out)
        return out

    def _share(self, x: Array, task: Callable[[slice], None]) -> None:
        """task(rows) on shares of x's rows, at once where they are worth a thread each."""
        rows = x.shape[0]
        count = max(1, min(self._team.size, rows, x.size // self._worth_a_thread))
        self._team.share(rows, count, task)

    def max_pool(self, x: Array, window: Window, out: Array, argmax: Array) -> Array:
        in_vectors = VECTOR > 0 and x.dtype == np.float32 and argmax.dtype == np.uint8
        run = numba_pooling.max_pool_vectors if in_vectors else numba_pooling.max_pool
        self._share(x, lambda n: run(x[n], *_geometry(window), out[n], argmax[n]))
        return out

    def max_pool_backward(self, dy: Array, argmax: Array, window: Window, dx: Array) -> Array:
        in_vectors = VECTOR > 0 and dx.dtype == np.float32 and argmax.dtype == np.uint8
        run = numba_pooling.max_pool_backward_vectors if in_vectors else numba_pooling.max_pool_backward
        self._share(dx, lambda n: run(dy[n], argmax[n], *_geometry(window), dx[n]))
        return dx

    def average_pool(self, x: Array, window: Window, out: Array) -> Array:
        self._share(x, lambda n: numba_pooling.average_pool(x[n], *_geometry(window), out[n]))
        return out

    def average_pool_backward(self, dy: Array, window: Window, dx: Array) -> Array:
        self._share(dx, lambda n: numba_pooling.average_pool_backward(dy[n], *_geometry(window), dx[n]))
        return dx

    def relu(self, x: Array, slope: float, out: Array) -> Array:
        source, target = x.reshape(-1), out.reshape(-1)
        self._share(source, lambda n: numba_elementwise.relu(source[n], slope, target[n]))
        return out

    def _in_place(self, dy: Array, out: Array, task: Callable[[Array, slice], None]) -> Array:
        """out = dy, then task(out, n) on runs n of its elements, by the threads."""
        if out is not dy:
            np.copyto(out, dy)
        flat = out.reshape(-1)
        self._share(flat, lambda n: task(flat, n))
        return out

    def relu_backward(self, y: Array, dy: Array, slope: float, out: Array) -> Array:
        value = y.reshape(-1)
        return self._in_place(dy, out, lambda d, n: numba_elementwise.relu_backward(value[n], slope, d[n]))

    def sigmoid_backward(self, y: Array, dy: Array, out: Array) -> Array:
        value = y.reshape(-1)
        return self._in_place(dy, out, lambda d, n: numba_elementwise.sigmoid_backward(value[n], d[n]))

    def tanh_backward(self, y: Array, dy: Array, out: Array) -> Array:
        value = y.reshape(-1)
        return self._in_place(dy, out, lambda d, n: numba_elementwise.tanh_backward(value[n], d[n]))

    def stanh_backward(self, y: Array, dy: Array, out: Array) -> Array:
        value = y.reshape(-1)
        return self._in_place(dy, out, lambda d, n: numba_elementwise.stanh_backward(value[n], d[n]))

    def lrn(
        self, x: Array, local_size: int, alpha: float, beta: float, knorm: float, out: Array, scale: Array
    ) -> Array:
        if beta != 0.75:
            return super().lrn(x, local_size, alpha, beta, knorm, out, scale)
        channels = x.shape[-1]
        source, target, sums = (a.reshape(-1, channels) for a in (x, out, scale))

        def rows(n: slice) -> None:
            padded = np.empty(channels + local_size - 1, x.dtype)
            numba_lrn.lrn(source[n], local_size, alpha, knorm, target[n], sums[n], padded)

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
            numba_lrn.lrn_backward(x[n], y[n], scale[n], local_size, alpha, gradient[n], padded, sums)

        self._share(x, rows)
        return out

    def dropout(self, x: Array, ratio: float, key: int, first: int, out: Array, mask: Array) -> Array:
        bits = np.uint64(drop_threshold(ratio)), 1 - ratio, np.uint64(key), np.uint64(first)
        numba_elementwise.dropout(x.reshape(-1), *bits, out.reshape(-1), mask.reshape(-1))
        return out

    def dropout_backward(self, dy: Array, mask: Array, ratio: float, out: Array) -> Array:
        kept = mask.reshape(-1)
        return self._in_place(dy, out, lambda d, n: numba_elementwise.dropout_backward(kept[n], 1 - ratio, d[n]))

    def crop(self, x: Array, top: Array, left: Array, mirror: Array, mean: Array, scale: float, out: Array) -> Array:
        numba_elementwise.crop(x, top, left, mirror, mean, scale, out)
        return out

    def softmax_cross_entropy(self, x: Array, labels: Array, topk: int, out: Array) -> tuple[Array, Array]:
        loss, correct = numba_loss.softmax_cross_entropy(x, labels, topk, out)
        return x.dtype.type(loss), correct

    def softmax_cross_entropy_backward(self, y: Array, labels: Array, scale: float, out: Array) -> Array:
        numba_loss.softmax_cross_entropy_backward(y, labels, scale, out)
        return out

    def count_topk(self, x: Array, labels: Array, topk: int) -> Array:
        return numba_loss.count_topk(x, labels, topk)

    def rnn_cell(self, sums: Array, h: Array) -> None:
        numba_recurrent.rnn_cell(sums, h)

    def rnn_cell_backward(self, dh: Array, h: Array, da: Array) -> None:
        numba_recurrent.rnn_cell_backward(dh, h, da)

    def gru_cell(self, gates: Array, ahc: Array, before: Array, h: Array) -> None:
        numba_recurrent.gru_cell(gates, ahc, before, h)

    def gru_cell_backward(self, dh: Array, gates: Array, ahc: Array, before: Array, dbefore: Array) -> None:
        numba_recurrent.gru_cell_backward(dh, gates, ahc, before, dbefore)

    def lstm_cell(self, gates: Array, cell_before: Array, cell: Array, h: Array) -> None:
        numba_recurrent.lstm_cell(gates, cell_before, cell, h)

    def lstm_cell_backward(self, dh: Array, dcell: Array, gates: Array, cell_before: Array, cell: Array) -> None:
        numba_recurrent.lstm_cell_backward(dh, dcell, gates, cell_before, cell)

    def packed_shape(self, length: int, columns: int, batch: int) -> tuple[int, ...]:
        if VECTOR == 0 or self.dtype != np.float32 or batch < row_tile.ROWS:
            return super().packed_shape(length, columns, batch)
        return row_products.packed_shape(length, columns)

    def pack(self, matrices: Sequence[Array], out: Array) -> Array:
        if out.ndim == 2:
            return super().pack(matrices, out)
        column = 0
        for matrix in matrices:
            row_tile.pack_right(matrix, column, out)
            column += matrix.shape[1]
        return out

    def _share_steps(self, batch: int, steps: Callable[..., None], *arguments: Any) -> None:
        """steps(*arguments, first, last) in every thread, for its rows of the batch."""
        count = max(1, min(self._team.size, batch // row_tile.ROWS))
        self._team.share(batch, count, lambda rows: steps(*arguments, rows.start, rows.stop))

    def _rows_of_table(self, chosen: Chosen) -> tuple[Array, Array]:
        """As kernels have them, none where nothing is chosen."""
        return (np.empty((0, 0), self.dtype), np.empty(0, np.int64)) if chosen is None else chosen

    def rnn_steps(self, sums: Array, w: Array, begun: bool, h: Array, chosen: Chosen = None) -> None:
        if w.ndim == 2:
            return super().rnn_steps(sums, w, begun, h, chosen)
        arguments = sums, w, begun, h, *self._rows_of_table(chosen)
        return self._share_steps(len(h) - len(sums), numba_recurrent.rnn_steps, *arguments)

    def rnn_steps_backward(self, dh: Array, w: Array, given: bool, h: Array, da: Array, dbefore: Array) -> None:
        if w.ndim == 2:
            return super().rnn_steps_backward(dh, w, given, h, da, dbefore)
        return self._share_steps(len(dbefore), numba_recurrent.rnn_steps_backward, dh, w, given, h, da, dbefore)

    def gru_steps(
        self, gates: Array, w: Array, wc: Array, begun: bool, ahc: Array, h: Array, chosen: Chosen = None
    ) -> None:
        if w.ndim == 2:
            return super().gru_steps(gates, w, wc, begun, ahc, h, chosen)
        arguments = gates, w, wc, begun, ahc, h, *self._rows_of_table(chosen)
        return self._share_steps(len(h) - len(gates), numba_recurrent.gru_steps, *arguments)

    def gru_steps_backward(
        self, dh: Array, w: Array, wc: Array, given: bool, gates: Array, ahc: Array, h: Array, dbefore: Array
    ) -> None:
        arguments = dh, w, wc, given, gates, ahc, h, dbefore
        if w.ndim == 2:
            return super().gru_steps_backward(*arguments)
        return self._share_steps(len(dbefore), numba_recurrent.gru_steps_backward, *arguments)

    def lstm_steps(self, gates: Array, w: Array, begun: bool, cell: Array, h: Array, chosen: Chosen = None) -> None:
        if w.ndim == 2:
            return super().lstm_steps(gates, w, begun, cell, h, chosen)
        arguments = gates, w, begun, cell, h, *self._rows_of_table(chosen)
        return self._share_steps(len(h) - len(gates), numba_recurrent.lstm_steps, *arguments)

    def lstm_steps_backward(
        self, dh: Array, w: Array, given: bool, dcell: Array, gates: Array, cell: Array, dbefore: Array
    ) -> None:
        arguments = dh, w, given, dcell, gates, cell, dbefore
        if w.ndim == 2:
            return super().lstm_steps_backward(*arguments)
        return self._share_steps(len(dbefore), numba_recurrent.lstm_steps_backward, *arguments)

    def one_hot_columns(self, x: Array) -> Array:
        columns = np.empty(x.shape[0], np.int64)
        return columns if numba_recurrent.one_hot_columns(x, columns) else None

    def embed(self, table: Array, rows: Array, out: Array) -> Array:
        numba_recurrent.embed(table, rows, out)
        return out

    def embed_backward(self, dy: Array, rows: Array, out: Array) -> None:
        numba_recurrent.embed_backward(dy, rows, out)

    def _update(self, rule: Callable[..., None], arrays: Sequence[Array], *settings: float) -> None:
        """The rule on runs of the arrays, a run per thread."""
        size = arrays[0].size
        count = max(1, min(self._team.size, size // self._update_worth_a_thread))

        self._team.share(size, count, lambda run: rule(*(array[run] for array in arrays), *settings))

    def sgd_update(
        self,
        w: Array,
        g: Array,
        v: Array,
        lr: float,
        momentum: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        self._update(numba_update.sgd, (w, g, v), lr, momentum, weight_decay, clip_low, clip_high)

    def nesterov_update(
        self,
        w: Array,
        g: Array,
        v: Array,
        lr: float,
        momentum: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        self._update(numba_update.nesterov, (w, g, v), lr, momentum, weight_decay, clip_low, clip_high)

    def adagrad_update(
        self,
        w: Array,
        g: Array,
        h: Array,
        lr: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        self._update(numba_update.adagrad, (w, g, h), lr, delta, weight_decay, clip_low, clip_high)

    def rmsprop_update(
        self,
        w: Array,
        g: Array,
        h: Array,
        lr: float,
        rho: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        self._update(numba_update.rmsprop, (w, g, h), lr, rho, delta, weight_decay, clip_low, clip_high)

    def adadelta_update(
        self,
        w: Array,
        g: Array,
        h: Array,
        u: Array,
        lr: float,
        rho: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        self._update(numba_update.adadelta, (w, g, h, u), lr, rho, delta, weight_decay, clip_low, clip_high)

    def adam_update(
        self,
        w: Array,
        g: Array,
        m: Array,
        v: Array,
        lr: float,
        beta1: float,
        beta2: float,
        correction1: float,
        correction2: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        settings = lr, beta1, beta2, correction1, correction2, delta, weight_decay, clip_low, clip_high
        self._update(numba_update.adam, (w, g, m, v), *settings)

    def adamax_update(
        self,
        w: Array,
        g: Array,
        m: Array,
        u: Array,
        lr: float,
        beta1: float,
        beta2: float,
        correction1: float,
        delta: float,
        weight_decay: float,
        clip_low: float,
        clip_high: float,
    ) -> None:
        settings = lr, beta1, beta2, correction1, delta, weight_decay, clip_low, clip_high
        self._update(numba_update.adamax, (w, g, m, u), *settings)
