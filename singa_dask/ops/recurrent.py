"""Time steps of recurrent cells, and their gradients.   T time steps of B rows, H hidden units, G gates.

A step's sums come in two parts: ax = x Wx' + b, which is computed for all steps at once, and ah = h Wh' of the state
before. Gates stand side by side, in the order of the kernel's formula. `da` is the gradient for ax, `dah` that for ah,
which differ for GRU only; the part of dh_before that goes through ah is not a cell's.

`*_steps` run all T steps. ax, gates, da, dah: (T B, G H), the first step's rows first; h, cell: ((T + 1) B, H), whose
first block is the state before the first step; dy: (T B, H), which they overwrite; dbefore: (B, H), the gradient for
that first state, if it is `given` from elsewhere. w: the weights of ah as `pack` has laid them out, (H, G H), on the
way back (G H, H). begun: False where the first state is zero. ah: (T B, G H) for GRU, else (B, G H), used in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Array = Any


class RecurrentOps:
    """Cells over `self.xp`. All arrays are C-contiguous, or blocks of columns of such."""

    xp: Any

    def sigmoid(self, x: Array, out: Array) -> Array:
        """As ActivationOps has it."""
        raise NotImplementedError

    def gemm(self, a: Array, b: Array, out: Array | None = None, accumulate: bool = False) -> Array:
        """As ArrayOps has it."""
        raise NotImplementedError

    def packed_shape(self, length: int, columns: int, batch: int) -> tuple[int, ...]:
        """The shape of what `pack` makes of a matrix (length, columns) for products with `batch` rows."""
        return length, columns

    def pack(self, matrices: Sequence[Array], out: Array) -> Array:
        """out: matrices (K, N) of any strides side by side, as `*_steps` want them."""
        first = 0
        for matrix in matrices:
            out[:, first : first + matrix.shape[1]] = matrix
            first += matrix.shape[1]
        return out

    def _steps(self, w: Array, begun: bool, ah: Array, h: Array, rows: int, cell: Callable[..., None]) -> None:
        """cell(this step's rows, those of the state after it, ah of this step), step by step."""
        batch = h.shape[0] - rows
        for start in range(0, rows, batch):
            now = slice(start, start + batch)
            part = ah[now] if ah.shape[0] == rows else ah
            if start or begun:
                self.gemm(h[now], w, out=part)
            else:
                part[...] = 0
            cell(now, slice(start + batch, start + 2 * batch), part)

    def _steps_backward(
        self, dy: Array, w: Array, given: bool, dah: Array, dbefore: Array, cell: Callable[..., None]
    ) -> None:
        """cell(this step's rows, those of the state after it, its dh), from the last step to the first."""
        batch, rows = dbefore.shape[0], dy.shape[0]
        for start in range(rows - batch, -1, -batch):
            now = slice(start, start + batch)
            if start < rows - batch:
                dy[now] += dbefore
            cell(now, slice(start + batch, start + 2 * batch), dy[now])
            if start or given:
                self.gemm(dah[now], w, out=dbefore)

    def rnn_steps(self, ax: Array, w: Array, begun: bool, ah: Array, h: Array) -> None:
        """`rnn_cell` T times."""
        self._steps(w, begun, ah, h, ax.shape[0], lambda now, after, part: self.rnn_cell(ax[now], part, h[after]))

    def rnn_steps_backward(self, dy: Array, w: Array, given: bool, h: Array, da: Array, dbefore: Array) -> None:
        """`rnn_cell_backward` T times."""
        self._steps_backward(
            dy, w, given, da, dbefore, lambda now, after, dh: self.rnn_cell_backward(dh, h[after], da[now])
        )

    def gru_steps(self, ax: Array, w: Array, begun: bool, ah: Array, gates: Array, h: Array) -> None:
        """`gru_cell` T times."""

        def cell(now: slice, after: slice, part: Array) -> None:
            self.gru_cell(ax[now], part, h[now], gates[now], h[after])

        self._steps(w, begun, ah, h, ax.shape[0], cell)

    def gru_steps_backward(
        self,
        dy: Array,
        w: Array,
        given: bool,
        gates: Array,
        ah: Array,
        h: Array,
        da: Array,
        dah: Array,
        dpast: Array,
        dbefore: Array,
    ) -> None:
        """`gru_cell_backward` T times. dpast: (B, H), for use in between."""
        last = dy.shape[0] - dbefore.shape[0]

        def cell(now: slice, after: slice, dh: Array) -> None:
            if now.start < last:
                dh += dpast
            self.gru_cell_backward(dh, gates[now], ah[now], h[now], da[now], dah[now], dpast)

        self._steps_backward(dy, w, given, dah, dbefore, cell)
        if given:
            dbefore += dpast

    def lstm_steps(self, ax: Array, w: Array, begun: bool, ah: Array, gates: Array, cell: Array, h: Array) -> None:
        """`lstm_cell` T times."""

        def step(now: slice, after: slice, part: Array) -> None:
            self.lstm_cell(ax[now], part, cell[now], gates[now], cell[after], h[after])

        self._steps(w, begun, ah, h, ax.shape[0], step)

    def lstm_steps_backward(
        self, dy: Array, w: Array, given: bool, dcell: Array, gates: Array, cell: Array, da: Array, dbefore: Array
    ) -> None:
        """`lstm_cell_backward` T times. dcell: (B, H), which becomes the gradient for the first cell."""

        def step(now: slice, after: slice, dh: Array) -> None:
            self.lstm_cell_backward(dh, dcell, gates[now], cell[now], cell[after], da[now])

        self._steps_backward(dy, w, given, da, dbefore, step)

    def rnn_cell(self, ax: Array, ah: Array, h: Array) -> None:
        """h = tanh(ax + ah).   All (B, H)."""
        self.xp.add(ax, ah, out=h)
        self.xp.tanh(h, out=h)

    def rnn_cell_backward(self, dh: Array, h: Array, da: Array) -> None:
        """da = dh (1 - h^2).   All (B, H)."""
        self.xp.multiply(h, h, out=da)
        self.xp.subtract(1, da, out=da)
        da *= dh

    def gru_cell(self, ax: Array, ah: Array, before: Array, gates: Array, h: Array) -> None:
        """z, r = sigmoid(ax + ah); c = tanh(ax + r ah); h = z before + (1 - z) c.   (Cho et al. 2014, as in SINGA)

        ax, ah, gates (z, r, c): (B, 3 H); before, h: (B, H).
        """
        xp, units = self.xp, h.shape[1]
        both, z, r, c = gates[:, : 2 * units], *_columns(gates, 3)
        xp.add(ax[:, : 2 * units], ah[:, : 2 * units], out=both)
        self.sigmoid(both, both)
        xp.multiply(r, ah[:, 2 * units :], out=c)
        c += ax[:, 2 * units :]
        xp.tanh(c, out=c)
        xp.subtract(before, c, out=h)
        h *= z
        h += c

    def gru_cell_backward(
        self, dh: Array, gates: Array, ah: Array, before: Array, da: Array, dah: Array, dbefore: Array
    ) -> None:
        """da = (dz, dr, dc) before their nonlinearities, dah = (dz, dr, r dc), dbefore = z dh."""
        xp, units = self.xp, dh.shape[1]
        z, r, c = _columns(gates, 3)
        dz, dr, dc = _columns(da, 3)
        xp.subtract(before, c, out=dz)
        dz *= dh
        dz *= z
        dz *= 1 - z
        xp.multiply(c, c, out=dc)
        xp.subtract(1, dc, out=dc)
        dc *= dh
        dc *= 1 - z
        xp.multiply(dc, ah[:, 2 * units :], out=dr)
        dr *= r
        dr *= 1 - r
        dah[:, : 2 * units] = da[:, : 2 * units]
        xp.multiply(dc, r, out=dah[:, 2 * units :])
        xp.multiply(dh, z, out=dbefore)

    def lstm_cell(self, ax: Array, ah: Array, cell_before: Array, gates: Array, cell: Array, h: Array) -> None:
        """i, f, o = sigmoid(ax + ah); g = tanh(ax + ah); cell = f cell_before + i g; h = o tanh(cell).

        ax, ah, gates (i, f, o, g): (B, 4 H); the others: (B, H).   (Gers, Schmidhuber & Cummins 2000)
        """
        xp, units = self.xp, h.shape[1]
        i, f, o, g = _columns(gates, 4)
        xp.add(ax, ah, out=gates)
        self.sigmoid(gates[:, : 3 * units], gates[:, : 3 * units])
        xp.tanh(g, out=g)
        xp.multiply(f, cell_before, out=cell)
        xp.multiply(i, g, out=h)
        cell += h
        xp.tanh(cell, out=h)
        h *= o

    def lstm_cell_backward(
        self, dh: Array, dcell: Array, gates: Array, cell_before: Array, cell: Array, da: Array
    ) -> None:
        """da = (di, df, do, dg) before their nonlinearities; dcell, the gradient for `cell`, becomes that for
        `cell_before`."""
        xp = self.xp
        i, f, o, g = _columns(gates, 4)
        di, df, do, dg = _columns(da, 4)
        squashed = xp.tanh(cell)
        xp.multiply(dh, squashed, out=do)
        do *= o
        do *= 1 - o
        squashed *= squashed
        xp.subtract(1, squashed, out=squashed)
        squashed *= dh
        squashed *= o
        dcell += squashed
        xp.multiply(dcell, g, out=di)
        di *= i
        di *= 1 - i
        xp.multiply(dcell, cell_before, out=df)
        df *= f
        df *= 1 - f
        xp.multiply(g, g, out=dg)
        xp.subtract(1, dg, out=dg)
        dg *= dcell
        dg *= i
        dcell *= f

    def one_hot_columns(self, x: Array) -> Array:
        """columns[i]: where row i of x has its 1. None unless every row has one 1 and else zeros.

        x: (B, I) -> (B,) integers. A product of such an x picks rows of a table (`embed`). Devices on which the
        question costs more than the product answer None.
        """
        xp = self.xp
        columns = xp.argmax(x, axis=1)
        ones = x[xp.arange(x.shape[0]), columns] == 1
        return columns if ones.all() and ((x != 0).sum(axis=1) == 1).all() else None

    def embed(self, table: Array, rows: Array, out: Array) -> Array:
        """out = table[rows].   table: (V, D), rows: (B,) integers in [0, V) -> out: (B, D)."""
        return self.xp.take(table, rows, axis=0, out=out)

    def embed_backward(self, dy: Array, rows: Array, out: Array) -> None:
        """out[rows[i]] += dy[i] for every i.   dy: (B, D), out: (V, D)."""
        self.xp.add.at(out, rows, dy)


def _columns(array: Array, count: int) -> list[Array]:
    width = array.shape[1] // count
    return [array[:, k * width : (k + 1) * width] for k in range(count)]
