"""Recurrent cells, their loops over time, and rows of tables on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.gemm import row_products, row_tile
from singa_dask.ops.cpu.recurrent import recurrent_kernels
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps
from singa_dask.ops.cpu.toolkit.vectors import VECTOR
from singa_dask.ops.recurrent import Chosen


class CpuRecurrentOps(ThreadedOps):
    """Recurrent cells of CpuOps; the base's loops over time where weights are not packed."""

    def rnn_cell(self, sums: Array, h: Array) -> None:
        recurrent_kernels.rnn_cell(sums, h)

    def rnn_cell_backward(self, dh: Array, h: Array, da: Array) -> None:
        recurrent_kernels.rnn_cell_backward(dh, h, da)

    def gru_cell(self, gates: Array, ahc: Array, before: Array, h: Array) -> None:
        recurrent_kernels.gru_cell(gates, ahc, before, h)

    def gru_cell_backward(self, dh: Array, gates: Array, ahc: Array, before: Array, dbefore: Array) -> None:
        recurrent_kernels.gru_cell_backward(dh, gates, ahc, before, dbefore)

    def lstm_cell(self, gates: Array, cell_before: Array, cell: Array, h: Array) -> None:
        recurrent_kernels.lstm_cell(gates, cell_before, cell, h)

    def lstm_cell_backward(self, dh: Array, dcell: Array, gates: Array, cell_before: Array, cell: Array) -> None:
        recurrent_kernels.lstm_cell_backward(dh, dcell, gates, cell_before, cell)

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
        """Run steps(*arguments, first, last) in every thread, for its rows of the batch."""
        count = max(1, min(self._team.size, batch // row_tile.ROWS))
        self._team.share(batch, count, lambda rows: steps(*arguments, rows.start, rows.stop))

    def _rows_of_table(self, chosen: Chosen) -> tuple[Array, Array]:
        """The table and rows that kernels take; empty where nothing is chosen."""
        return (np.empty((0, 0), self.dtype), np.empty(0, np.int64)) if chosen is None else chosen

    def rnn_steps(self, sums: Array, w: Array, begun: bool, h: Array, chosen: Chosen = None) -> None:
        if w.ndim == 2:
            return super().rnn_steps(sums, w, begun, h, chosen)
        arguments = sums, w, begun, h, *self._rows_of_table(chosen)
        return self._share_steps(len(h) - len(sums), recurrent_kernels.rnn_steps, *arguments)

    def rnn_steps_backward(self, dh: Array, w: Array, given: bool, h: Array, da: Array, dbefore: Array) -> None:
        if w.ndim == 2:
            return super().rnn_steps_backward(dh, w, given, h, da, dbefore)
        return self._share_steps(len(dbefore), recurrent_kernels.rnn_steps_backward, dh, w, given, h, da, dbefore)

    def gru_steps(
        self, gates: Array, w: Array, wc: Array, begun: bool, ahc: Array, h: Array, chosen: Chosen = None
    ) -> None:
        if w.ndim == 2:
            return super().gru_steps(gates, w, wc, begun, ahc, h, chosen)
        arguments = gates, w, wc, begun, ahc, h, *self._rows_of_table(chosen)
        return self._share_steps(len(h) - len(gates), recurrent_kernels.gru_steps, *arguments)

    def gru_steps_backward(
        self, dh: Array, w: Array, wc: Array, given: bool, gates: Array, ahc: Array, h: Array, dbefore: Array
    ) -> None:
        arguments = dh, w, wc, given, gates, ahc, h, dbefore
        if w.ndim == 2:
            return super().gru_steps_backward(*arguments)
        return self._share_steps(len(dbefore), recurrent_kernels.gru_steps_backward, *arguments)

    def lstm_steps(self, gates: Array, w: Array, begun: bool, cell: Array, h: Array, chosen: Chosen = None) -> None:
        if w.ndim == 2:
            return super().lstm_steps(gates, w, begun, cell, h, chosen)
        arguments = gates, w, begun, cell, h, *self._rows_of_table(chosen)
        return self._share_steps(len(h) - len(gates), recurrent_kernels.lstm_steps, *arguments)

    def lstm_steps_backward(
        self,
        dh: Array,
        w: Array,
        given: bool,
        dcell: Array,
        gates: Array,
        cell: Array,
        dbefore: Array,
        dcells: Array | None = None,
    ) -> None:
        arguments = dh, w, given, dcell, gates, cell, dbefore
        if w.ndim == 2:
            return super().lstm_steps_backward(*arguments, dcells)
        more = np.empty((0, 0), self.dtype) if dcells is None else dcells
        return self._share_steps(len(dbefore), recurrent_kernels.lstm_steps_backward, *arguments, more)

    def one_hot_columns(self, x: Array) -> Array:
        columns = np.empty(x.shape[0], np.int64)
        return columns if recurrent_kernels.one_hot_columns(x, columns) else None

    def embed(self, table: Array, rows: Array, out: Array) -> Array:
        recurrent_kernels.embed(table, rows, out)
        return out

    def embed_backward(self, dy: Array, rows: Array, out: Array) -> None:
        recurrent_kernels.embed_backward(dy, rows, out)
