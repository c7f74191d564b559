"""Time steps of recurrent cells, and their gradients.   T time steps of B rows, H hidden units, G gates.

A step's sums come in two parts: ax = x Wx' + b, which is computed for all steps at once, and ah = h Wh' of the state
before. Gates stand side by side, in the order of the kernel's formula. `da` is the gradient for ax, `dah` that for ah,
which differ for GRU only. What only the next pass reads takes the place of what it is made from: `gates` of GRU and
LSTM come as ax, are the gates after the forward and da after the backward pass.

`*_steps` run all T steps. ax, gates, da: (T B, G H), the first step's rows first; h, cell: ((T + 1) B, H), whose first
block is the state before the first step; dh: (T B, H), which comes as the gradient for the outputs; dbefore: (B, H);
the gradient for the first state is added to it, if that is `given` from elsewhere. w: the weights of ah as `pack` has
laid them out, (H, G H), on the way back (G H, H). begun: False where the first state is zero. ah: (B, G H), used in
between.
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

    def _steps(self, w: Array, begun: bool, ah: Array, h: Array, cell: Callable[[slice, slice], None]) -> None:
        """cell(this step's rows, those of the state after it), step by step."""
        batch = ah.shape[0]
        for start in range(0, h.shape[0] - batch, batch):
            now, after = slice(start, start + batch), slice(start + batch, start + 2 * batch)
            if start or begun:
                self.gemm(h[now], w, out=ah)
            else:
                ah[...] = 0
            cell(now, after)

    def _steps_backward(
        self, dh: Array, w: Array, given: bool, dah: Array, dbefore: Array, cell: Callable[..., None]
    ) -> None:
        """cell(this step's rows, those of the state after it, where the gradient for the state before it is summed
        up), from the last step to the first."""
        batch = dbefore.shape[0]
        for start in range(dh.shape[0] - batch, -1, -batch):
            now, after = slice(start, start + batch), slice(start + batch, start + 2 * batch)
            before = dh[start - batch : start] if start else dbefore
            cell(now, after, before)
            if start or given:
                line = 0
                for part in dah:
                    self.gemm(part[now], w[line : line + part.shape[1]], out=before, accumulate=True)
                    line += part.shape[1]

    def rnn_steps(self, ax: Array, w: Array, begun: bool, ah: Array, h: Array) -> None:
        """`rnn_cell` T times."""
        self._steps(w, begun, ah, h, lambda now, after: self.rnn_cell(ax[now], ah, h[after]))

    def rnn_steps_backward(self, dh: Array, w: Array, given: bool, h: Array, da: Array, dbefore: Array) -> None:
        """`rnn_cell_backward` T times."""

        def cell(now: slice, after: slice, before: Array) -> None:
            self.rnn_cell_backward(dh[now], h[after], da[now])

        self._steps_backward(dh, w, given, [da], dbefore, cell)

    def gru_steps(self, gates: Array, w: Array, begun: bool, ah: Array, ahc: Array, h: Array) -> None:
        """`gru_cell` T times. ahc: (T B, H)."""
        self._steps(w, begun, ah, h, lambda now, after: self.gru_cell(gates[now], ah, h[now], ahc[now], h[after]))

    def gru_steps_backward(
        self, dh: Array, w: Array, given: bool, gates: Array, ahc: Array, h: Array, dbefore: Array
    ) -> None:
        """`gru_cell_backward` T times."""

        def cell(now: slice, after: slice, before: Array) -> None:
            self.gru_cell_backward(dh[now], gates[now], ahc[now], h[now], before)

        self._steps_backward(dh, w, given, [gates[:, : 2 * dh.shape[1]], ahc], dbefore, cell)

    def lstm_steps(self, gates: Array, w: Array, begun: bool, ah: Array, cell: Array, h: Array) -> None:
        """`lstm_cell` T times."""
        self._steps(
            w, begun, ah, h, lambda now, after: self.lstm_cell(gates[now], ah, cell[now], cell[after], h[after])
        )

    def lstm_steps_backward(
        self, dh: Array, w: Array, given: bool, dcell: Array, gates: Array, cell: Array, dbefore: Array
    ) -> None:
        """`lstm_cell_backward` T times. dcell: (B, H), which becomes the gradient for the first cell."""

        def step(now: slice, after: slice, before: Array) -> None:
            self.lstm_cell_backward(dh[now], dcell, gates[now], cell[now], cell[after])

        self._steps_backward(dh, w, given, [gates], dbefore, step)

    def rnn_cell(self, ax: Array, ah: Array, h: Array) -> None:
        """h = tanh(ax + ah).   All (B, H)."""
        self.xp.add(ax, ah, out=h)
        self.xp.tanh(h, out=h)

    def rnn_cell_backward(self, dh: Array, h: Array, da: Array) -> None:
        """da = dh (1 - h^2).   All (B, H)."""
        self.xp.multiply(h, h, out=da)
        self.xp.subtract(1, da, out=da)
        da *= dh

    def gru_cell(self, gates: Array, ah: Array, before: Array, ahc: Array, h: Array) -> None:
        """z, r = sigmoid(ax + ah); c = tanh(ax + r ah); h = z before + (1 - z) c.   (Cho et al. 2014, as in SINGA)

        gates: (B, 3 H), comes as ax and becomes z, r, c; ah: (B, 3 H); before, h: (B, H); ahc: (B, H), becomes the
        part of ah for c.
        """
        xp, units = self.xp, h.shape[1]
        both, z, r, c = gates[:, : 2 * units], *_columns(gates, 3)
        both += ah[:, : 2 * units]
        self.sigmoid(both, both)
        ahc[...] = ah[:, 2 * units :]
        c += r * ahc
        xp.tanh(c, out=c)
        xp.subtract(before, c, out=h)
        h *= z
        h += c

    def gru_cell_backward(self, dh: Array, gates: Array, ahc: Array, before: Array, dbefore: Array) -> None:
        """gates = da = (dz, dr, dc) before their nonlinearities; ahc = the part of dah for c, r dc, whose others are
        those of da; dbefore += z dh. dh is used in between."""
        z, r, c = _columns(gates, 3)
        dbefore += z * dh
        dh *= 1 - z
        z *= before - c
        z *= dh
        c *= c
        c[...] = 1 - c
        c *= dh
        through = c * r
        ahc *= through
        r[...] = 1 - r
        r *= ahc
        ahc[...] = through

    def lstm_cell(self, gates: Array, ah: Array, cell_before: Array, cell: Array, h: Array) -> None:
        """i, f, o = sigmoid(ax + ah); g = tanh(ax + ah); cell = f cell_before + i g; h = o tanh(cell).

        gates: (B, 4 H), comes as ax and becomes i, f, o, g; ah: (B, 4 H); the others: (B, H).
        (Gers, Schmidhuber & Cummins 2000)
        """
        xp, units = self.xp, h.shape[1]
        i, f, o, g = _columns(gates, 4)
        gates += ah
        self.sigmoid(gates[:, : 3 * units], gates[:, : 3 * units])
        xp.tanh(g, out=g)
        xp.multiply(f, cell_before, out=cell)
        xp.multiply(i, g, out=h)
        cell += h
        xp.tanh(cell, out=h)
        h *= o

    def lstm_cell_backward(self, dh: Array, dcell: Array, gates: Array, cell_before: Array, cell: Array) -> None:
        """gates = da = (di, df, do, dg) before their nonlinearities; dcell, the gradient for `cell`, becomes that for
        `cell_before`. dh is used in between."""
        xp = self.xp
        i, f, o, g = _columns(gates, 4)
        squashed = xp.tanh(cell)
        dh *= o
        dcell += dh * (1 - squashed * squashed)
        o[...] = dh * squashed * (1 - o)
        through = dcell * i
        i[...] = through * g * (1 - i)
        g[...] = through * (1 - g * g)
        dcell *= f
        f[...] = dcell * cell_before * (1 - f)

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
