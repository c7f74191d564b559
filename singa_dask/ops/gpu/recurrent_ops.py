"""Time steps of recurrent cells on a GPU: one product and one kernel each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from singa_dask.ops.arrays import Array
from singa_dask.ops.base import Ops
from singa_dask.ops.recurrent import Chosen


class GpuRecurrentOps(Ops):
    """Recurrent cells by CUDA kernels."""

    _kernels: Any

    def _cell(
        self, kernel: Callable[..., None], given: tuple[Array, ...], out: tuple[Array, ...], like: Array
    ) -> None:
        """Run a kernel on the rows of one step, whose products have been added. like: (B, H)."""
        kernel(*given, like, 0, like.shape[1], 0, 0, *out, size=like.size)

    def rnn_cell(self, sums: Array, h: Array) -> None:
        self._cell(self._kernels.rnn_cell, (sums,), (h,), h)

    def rnn_cell_backward(self, dh: Array, h: Array, da: Array) -> None:
        self._cell(self._kernels.rnn_cell_backward, (dh, h), (da,), h)

    def gru_cell(self, gates: Array, ahc: Array, before: Array, h: Array) -> None:
        self._cell(self._kernels.gru_cell, (before,), (gates, ahc, h), h)

    def gru_cell_backward(self, dh: Array, gates: Array, ahc: Array, before: Array, dbefore: Array) -> None:
        out = gates, ahc, dbefore, self.xp.empty_like(gates)
        self._cell(self._kernels.gru_cell_backward, (dh, before), out, dh)

    def lstm_cell(self, gates: Array, cell_before: Array, cell: Array, h: Array) -> None:
        self._cell(self._kernels.lstm_cell, (cell_before,), (gates, cell, h), h)

    def lstm_cell_backward(self, dh: Array, dcell: Array, gates: Array, cell_before: Array, cell: Array) -> None:
        self._cell(self._kernels.lstm_cell_backward, (dh, cell_before, cell), (gates, dcell), dh)

    def _products(self, h: Array, w: Array, gates: Array, chosen: Chosen) -> Iterator[tuple[Array, int, int]]:
        """The product of the state before each step with w, the first rows of the step and of the state after it."""
        if chosen is not None:
            self.embed(*chosen, gates)
        batch = len(h) - len(gates)
        products = self.xp.empty((batch, w.shape[1]), w.dtype)
        for first in range(0, len(gates), batch):
            self.gemm(h[first : first + batch], w, out=products)
            yield products, first, first + batch

    def rnn_steps(self, sums: Array, w: Array, begun: bool, h: Array, chosen: Chosen = None) -> None:
        units, size = h.shape[1], (len(h) - len(sums)) * h.shape[1]
        for products, first, after in self._products(h, w, sums, chosen):
            self._kernels.rnn_cell(sums, products, units, units, first, after, h, size=size)

    def gru_steps(
        self, gates: Array, w: Array, wc: Array, begun: bool, ahc: Array, h: Array, chosen: Chosen = None
    ) -> None:
        units, size = h.shape[1], (len(h) - len(gates)) * h.shape[1]
        for products, first, after in self._products(h, self.xp.concatenate((w, wc), axis=1), gates, chosen):
            self._kernels.gru_cell(h, products, 3 * units, units, first, after, gates, ahc, h, size=size)

    def lstm_steps(self, gates: Array, w: Array, begun: bool, cell: Array, h: Array, chosen: Chosen = None) -> None:
        units, size = h.shape[1], (len(h) - len(gates)) * h.shape[1]
        for products, first, after in self._products(h, w, gates, chosen):
            self._kernels.lstm_cell(cell, products, 4 * units, units, first, after, gates, cell, h, size=size)

    def _back(self, dh: Array, w: Array, given: bool, dbefore: Array, step: Callable[..., Array]) -> None:
        """Call step(products, columns, first) for each time step, the last one first. It returns the gradients for the
        step's products, (B, G H), whose product with w is that for the state before it: the next call's products."""
        batch, units = dbefore.shape
        products, columns = self.xp.empty_like(dbefore), 0
        for first in range(len(dh) - batch, -1, -batch):
            da = step(products, columns, first)
            if first or given:
                self.gemm(da, w, out=products)
            columns = units
        if given:
            dbefore += products

    def rnn_steps_backward(self, dh: Array, w: Array, given: bool, h: Array, da: Array, dbefore: Array) -> None:
        batch, units = dbefore.shape

        def step(products: Array, columns: int, first: int) -> Array:
            sizes = columns, units, first, first + batch
            self._kernels.rnn_cell_backward(dh, h, products, *sizes, da, size=dbefore.size)
            return da[first : first + batch]

        self._back(dh, w, given, dbefore, step)

    def gru_steps_backward(
        self, dh: Array, w: Array, wc: Array, given: bool, gates: Array, ahc: Array, h: Array, dbefore: Array
    ) -> None:
        batch, units = dbefore.shape
        dah = self.xp.empty((batch, 3 * units), gates.dtype)

        def step(products: Array, columns: int, first: int) -> Array:
            earlier, at = (dh, first - batch) if first else (dbefore, 0)
            out = gates, ahc, earlier, dah
            self._kernels.gru_cell_backward(dh, h, products, columns, units, first, at, *out, size=dbefore.size)
            return dah

        self._back(dh, self.xp.concatenate((w, wc)), given, dbefore, step)

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
        batch, units = dbefore.shape

        def step(products: Array, columns: int, first: int) -> Array:
            nonlocal dcell
            if dcells is not None:
                dcell += dcells[first : first + batch]
            sizes = columns, units, first, first + batch
            self._kernels.lstm_cell_backward(dh, cell, cell, products, *sizes, gates, dcell, size=dbefore.size)
            return gates[first : first + batch]

        self._back(dh, w, given, dbefore, step)
