"""Time steps of recurrent cells, and their gradients.   T time steps of B rows, H hidden units, G gates.

A step's sums have two parts: ax = x Wx' + b, which is computed for all steps at once, and ah = h Wh' of the previous
state. Gates are side by side, in the order of the kernel's formula. `da` is the gradient for ax, `dah` the gradient
for ah. They differ for c of GRU only, whose part of ah is ahc. Results overwrite the inputs that nothing else reads:
`gates` contain ax + ah (for c of GRU ax) at first, the gates after the forward pass, and da after the backward pass;
ahc becomes dahc.

`*_steps` run all T steps.
gates, da: (T B, G H), the first step's rows first; gates contain ax at first. ahc: (T B, H).
h, cell: ((T + 1) B, H); the first block is the state before the first step.
dh: (T B, H), the gradient for the outputs at first. dbefore: (B, H); the gradient for the first state is added to it
where that state is `given` from outside.
w: the weights of ah in the layout of `pack`, (H, G H), for the backward pass (G H, H). For GRU w has the weights of z
and r, and wc the weights of c. begun: False where the first state is zero.
chosen: table (V, G H) and rows (T B,) where ax = table[rows]. Each step then looks up its own rows; the initial values
of the gates are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from singa_dask.ops.arrays import Array

Chosen = tuple[Array, Array] | None


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
        """The shape of a matrix (length, columns) that `pack` lays out for products with `batch` rows."""
        return length, columns

    def pack(self, matrices: Sequence[Array], out: Array) -> Array:
        """out = matrices (K, N), of contiguous rows or columns, side by side, in the layout that `*_steps` take.

        To stack matrices, pack each into its rows, out[..., first:last, :].
        """
        first = 0
        for matrix in matrices:
            out[:, first : first + matrix.shape[1]] = matrix
            first += matrix.shape[1]
        return out

    def _begun(self, gates: Array, h: Array, chosen: Chosen) -> Iterator[tuple[slice, slice]]:
        """The rows of each step, whose gates are now ax, and of the state after it."""
        batch = h.shape[0] - gates.shape[0]
        for start in range(0, gates.shape[0], batch):
            now = slice(start, start + batch)
            if chosen is not None:
                table, rows = chosen
                self.embed(table, rows[now], gates[now])
            yield now, slice(start + batch, start + 2 * batch)

    def rnn_steps(self, sums: Array, w: Array, begun: bool, h: Array, chosen: Chosen = None) -> None:
        """`rnn_cell` T times."""
        for now, after in self._begun(sums, h, chosen):
            if now.start or begun:
                self.gemm(h[now], w, out=sums[now], accumulate=True)
            self.rnn_cell(sums[now], h[after])

    def rnn_steps_backward(self, dh: Array, w: Array, given: bool, h: Array, da: Array, dbefore: Array) -> None:
        """`rnn_cell_backward` T times."""
        for now, after, before in _steps_back(dh, dbefore):
            self.rnn_cell_backward(dh[now], h[after], da[now])
            if now.start or given:
                self.gemm(da[now], w, out=before, accumulate=True)

    def gru_steps(
        self, gates: Array, w: Array, wc: Array, begun: bool, ahc: Array, h: Array, chosen: Chosen = None
    ) -> None:
        """`gru_cell` T times."""
        for now, after in self._begun(gates, h, chosen):
            if now.start or begun:
                gates[now, : w.shape[1]] += self.gemm(h[now], w)
                self.gemm(h[now], wc, out=ahc[now])
            else:
                ahc[now] = 0
            self.gru_cell(gates[now], ahc[now], h[now], h[after])

    def gru_steps_backward(
        self, dh: Array, w: Array, wc: Array, given: bool, gates: Array, ahc: Array, h: Array, dbefore: Array
    ) -> None:
        """`gru_cell_backward` T times."""
        for now, _, before in _steps_back(dh, dbefore):
            self.gru_cell_backward(dh[now], gates[now], ahc[now], h[now], before)
            if now.start or given:
                self.gemm(gates[now, : w.shape[0]], w, out=before, accumulate=True)
                self.gemm(ahc[now], wc, out=before, accumulate=True)

    def lstm_steps(self, gates: Array, w: Array, begun: bool, cell: Array, h: Array, chosen: Chosen = None) -> None:
        """`lstm_cell` T times."""
        for now, after in self._begun(gates, h, chosen):
            if now.start or begun:
                self.gemm(h[now], w, out=gates[now], accumulate=True)
            self.lstm_cell(gates[now], cell[now], cell[after], h[after])

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
        """`lstm_cell_backward` T times. dcell: (B, H), which becomes the gradient for the first cell. dcells:
        (T B, H), further gradients for the cells after each step."""
        for now, after, before in _steps_back(dh, dbefore):
            if dcells is not None:
                dcell += dcells[now]
            self.lstm_cell_backward(dh[now], dcell, gates[now], cell[now], cell[after])
            if now.start or given:
                self.gemm(gates[now], w, out=before, accumulate=True)

    def rnn_cell(self, sums: Array, h: Array) -> None:
        """h = tanh(sums).   All (B, H)."""
        self.xp.tanh(sums, out=h)

    def rnn_cell_backward(self, dh: Array, h: Array, da: Array) -> None:
        """da = dh (1 - h^2).   All (B, H)."""
        self.xp.multiply(h, h, out=da)
        self.xp.subtract(1, da, out=da)
        da *= dh

    def gru_cell(self, gates: Array, ahc: Array, before: Array, h: Array) -> None:
        """z, r = sigmoid(ax + ah); c = tanh(ax + r ah); h = z before + (1 - z) c.   (Cho et al. 2014, as in SINGA)

        gates (z, r, c): (B, 3 H); the others: (B, H).
        """
        xp, units = self.xp, h.shape[1]
        both, z, r, c = gates[:, : 2 * units], *_columns(gates, 3)
        self.sigmoid(both, both)
        c += r * ahc
        xp.tanh(c, out=c)
        xp.subtract(before, c, out=h)
        h *= z
        h += c

    def gru_cell_backward(self, dh: Array, gates: Array, ahc: Array, before: Array, dbefore: Array) -> None:
        """gates = da = (dz, dr, dc) before their nonlinearities; ahc = r dc; dbefore += z dh. dh is used in
        between."""
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

    def lstm_cell(self, gates: Array, cell_before: Array, cell: Array, h: Array) -> None:
        """i, f, o = sigmoid(ax + ah); g = tanh(ax + ah); cell = f cell_before + i g; h = o tanh(cell).

        gates (i, f, o, g): (B, 4 H); the others: (B, H).   (Gers, Schmidhuber & Cummins 2000)
        """
        xp, units = self.xp, h.shape[1]
        i, f, o, g = _columns(gates, 4)
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
        """columns[i]: the column of the 1 in row i of x. None unless every row has one 1 and zeros otherwise.

        x: (B, I) -> (B,) integers. A product with such an x picks rows of a table (`embed`). None on devices where
        this test costs more than the product.
        """
        xp = self.xp
        columns = xp.argmax(x, axis=1)
        ones = x[xp.arange(x.shape[0]), columns] == 1
        return columns if ones.all() and ((x != 0).sum(axis=1) == 1).all() else None

    def table_rows(self, x: Array, size: int) -> Array:
        """x as integers, and -1 for what is none of 0 ... size - 1.   x: (B,) -> (B,)."""
        rows = x.astype("int64")
        return self.xp.where((rows == x) & (rows >= 0) & (rows < size), rows, -1)

    def one_hot(self, rows: Array, out: Array) -> Array:
        """out[i, rows[i]] = 1, and zeros otherwise.   rows: (B,) integers in [0, V) -> out: (B, V)."""
        out[...] = 0
        out[self.xp.arange(len(rows)), rows] = 1
        return out

    def embed(self, table: Array, rows: Array, out: Array) -> Array:
        """out = table[rows].   table: (V, D), rows: (B,) integers in [0, V) -> out: (B, D)."""
        return self.xp.take(table, rows, axis=0, out=out)

    def embed_backward(self, dy: Array, rows: Array, out: Array) -> None:
        """out[rows[i]] += dy[i] for every i.   dy: (B, D), out: (V, D)."""
        self.xp.add.at(out, rows, dy)


def _columns(array: Array, count: int) -> list[Array]:
    width = array.shape[1] // count
    return [array[:, k * width : (k + 1) * width] for k in range(count)]


def _steps_back(dh: Array, dbefore: Array) -> Iterator[tuple[slice, slice, Array]]:
    """The rows of each step and of the state after it, and the sum of gradients for the state before it; the last
    step first."""
    batch = dbefore.shape[0]
    for start in range(dh.shape[0] - batch, -1, -batch):
        before = dh[start - batch : start] if start else dbefore
        yield slice(start, start + batch), slice(start + batch, start + 2 * batch), before
