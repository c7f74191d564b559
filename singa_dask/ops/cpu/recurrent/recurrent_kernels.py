"""Recurrent cells and rows of tables in one pass over memory; singa_dask.ops.recurrent has formulas and arguments.

Loops have few arrays: LLVM does not vectorise where it would have to check many for overlap.
`*_steps` run the whole loop over time for the rows [first, last) of every step, so that threads share a batch.
Products add to sums and gradients in place. `rows` is empty where nothing is chosen from a table.
"""

import math

import numpy as np
from numba import types
from numba.extending import overload

from singa_dask.ops.cpu.gemm.packed_product import product
from singa_dask.ops.cpu.toolkit.exponentials import sigmoid_of
from singa_dask.ops.cpu.toolkit.numba_kernel import FASTMATH, kernel


def tanh(x):
    """tanh(x), for use in kernels."""
    raise NotImplementedError


@overload(tanh, jit_options={"fastmath": FASTMATH, "error_model": "numpy"})
def _tanh(x):
    if x != types.float32:
        return lambda x: math.tanh(x)

    def rational(x):
        """x P(x^2) / Q(x^2), the minimax approximation of Eigen; within 6 units in the last place,
        or 5 where a CPU fuses multiplication and addition."""
        limit = np.float32(7.90531110763549805)  # tanh is 1 from here on in float32
        x = -limit if x < -limit else limit if x > limit else x
        s = x * x
        p = np.float32(-2.76076847742355e-16) * s + np.float32(2.00018790482477e-13)
        p = p * s + np.float32(-8.60467152213735e-11)
        p = p * s + np.float32(5.12229709037114e-08)
        p = p * s + np.float32(1.48572235717979e-05)
        p = p * s + np.float32(6.37261928875436e-04)
        p = p * s + np.float32(4.89352455891786e-03)
        q = np.float32(1.19825839466702e-06) * s + np.float32(1.18534705686654e-04)
        q = q * s + np.float32(2.26843463243900e-03)
        q = q * s + np.float32(4.89352518554385e-03)
        return x * p / q

    return rational


@kernel
def rnn_cell(sums, h):
    for i in range(h.shape[0]):
        a, out = sums[i], h[i]
        for j in range(out.size):
            out[j] = tanh(a[j])


@kernel
def rnn_cell_backward(dh, h, da):
    one = h.dtype.type(1)
    for i in range(h.shape[0]):
        d, y, out = dh[i], h[i], da[i]
        for j in range(out.size):
            out[j] = d[j] * (one - y[j] * y[j])


@kernel
def _sigmoid_gates(x):
    for j in range(x.size):
        x[j] = sigmoid_of(x[j])


@kernel
def gru_cell(gates, ahc, before, h):
    units = h.shape[1]
    for i in range(h.shape[0]):
        z, r, c = gates[i, :units], gates[i, units : 2 * units], gates[i, 2 * units :]
        part, past, out = ahc[i], before[i], h[i]
        _sigmoid_gates(gates[i, : 2 * units])
        for j in range(units):
            c[j] = tanh(c[j] + r[j] * part[j])
        for j in range(units):
            out[j] = c[j] + z[j] * (past[j] - c[j])


@kernel
def gru_cell_backward(dh, gates, ahc, before, dbefore):
    units = dh.shape[1]
    one = dh.dtype.type(1)
    for i in range(dh.shape[0]):
        z, r, c = gates[i, :units], gates[i, units : 2 * units], gates[i, 2 * units :]
        d, part, past, dpast = dh[i], ahc[i], before[i], dbefore[i]
        for j in range(units):
            dpast[j] += d[j] * z[j]
        for j in range(units):
            through, state = d[j] * (one - z[j]), c[j]
            c[j] = through * (one - state * state)
            z[j] = through * (past[j] - state) * z[j]
        for j in range(units):
            through = c[j] * r[j]
            r[j] = through * part[j] * (one - r[j])
            part[j] = through


@kernel
def lstm_cell(gates, cell_before, cell, h):
    units = h.shape[1]
    for i in range(h.shape[0]):
        gi, gf, go = gates[i, :units], gates[i, units : 2 * units], gates[i, 2 * units : 3 * units]
        g, past, now, out = gates[i, 3 * units :], cell_before[i], cell[i], h[i]
        _sigmoid_gates(gates[i, : 3 * units])
        for j in range(units):
            g[j] = tanh(g[j])
        for j in range(units):
            now[j] = gf[j] * past[j] + gi[j] * g[j]
        for j in range(units):
            out[j] = go[j] * tanh(now[j])


@kernel
def lstm_cell_backward(dh, dcell, gates, cell_before, cell):
    units = dh.shape[1]
    one = dh.dtype.type(1)
    for i in range(dh.shape[0]):
        gi, gf, go = gates[i, :units], gates[i, units : 2 * units], gates[i, 2 * units : 3 * units]
        g, d, dc, past, now = gates[i, 3 * units :], dh[i], dcell[i], cell_before[i], cell[i]
        for j in range(units):
            squashed, through = tanh(now[j]), d[j] * go[j]
            dc[j] += through * (one - squashed * squashed)
            go[j] = through * squashed * (one - go[j])
        for j in range(units):
            through, new = dc[j] * gi[j], g[j]
            gi[j] = through * new * (one - gi[j])
            g[j] = through * (one - new * new)
        for j in range(units):
            through = dc[j] * gf[j]
            gf[j] = through * past[j] * (one - gf[j])
            dc[j] = through


@kernel
def embed(table, rows, out):
    for i in range(rows.size):
        source, target = table[rows[i]], out[i]
        for j in range(target.size):
            target[j] = source[j]


@kernel
def rnn_steps(sums, panels, begun, h, table, rows, first, last):
    batch = h.shape[0] - sums.shape[0]
    for t in range(sums.shape[0] // batch):
        a, b = t * batch + first, t * batch + last
        if rows.size > 0:
            embed(table, rows[a:b], sums[a:b])
        if t > 0 or begun:
            product(h[a:b], panels, sums[a:b], True)
        rnn_cell(sums[a:b], h[a + batch : b + batch])


@kernel
def gru_steps(gates, panels, panels_c, begun, ahc, h, table, rows, first, last):
    batch = h.shape[0] - gates.shape[0]
    units = h.shape[1]
    for t in range(gates.shape[0] // batch):
        a, b = t * batch + first, t * batch + last
        if rows.size > 0:
            embed(table, rows[a:b], gates[a:b])
        if t > 0 or begun:
            product(h[a:b], panels, gates[a:b, : 2 * units], True)
            product(h[a:b], panels_c, ahc[a:b], False)
        else:
            ahc[a:b] = 0
        gru_cell(gates[a:b], ahc[a:b], h[a:b], h[a + batch : b + batch])


@kernel
def lstm_steps(gates, panels, begun, cell, h, table, rows, first, last):
    batch = h.shape[0] - gates.shape[0]
    for t in range(gates.shape[0] // batch):
        a, b = t * batch + first, t * batch + last
        if rows.size > 0:
            embed(table, rows[a:b], gates[a:b])
        if t > 0 or begun:
            product(h[a:b], panels, gates[a:b], True)
        lstm_cell(gates[a:b], cell[a:b], cell[a + batch : b + batch], h[a + batch : b + batch])


@kernel
def _before(dh, dbefore, t, first, last):
    """The sum of gradients for the state before step t: dh of the previous step, or `dbefore`."""
    batch = dbefore.shape[0]
    return dh[(t - 1) * batch + first : (t - 1) * batch + last] if t > 0 else dbefore[first:last]


@kernel
def rnn_steps_backward(dh, panels, given, h, da, dbefore, first, last):
    batch = dbefore.shape[0]
    for t in range(dh.shape[0] // batch - 1, -1, -1):
        a, b, before = t * batch + first, t * batch + last, _before(dh, dbefore, t, first, last)
        rnn_cell_backward(dh[a:b], h[a + batch : b + batch], da[a:b])
        if t > 0 or given:
            product(da[a:b], panels, before, True)


@kernel
def gru_steps_backward(dh, panels, panels_c, given, gates, ahc, h, dbefore, first, last):
    batch, units = dbefore.shape
    for t in range(dh.shape[0] // batch - 1, -1, -1):
        a, b, before = t * batch + first, t * batch + last, _before(dh, dbefore, t, first, last)
        gru_cell_backward(dh[a:b], gates[a:b], ahc[a:b], h[a:b], before)
        if t > 0 or given:
            product(gates[a:b, : 2 * units], panels, before, True)
            product(ahc[a:b], panels_c, before, True)


@kernel
def _add(source, target):
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] += source[i, j]


@kernel
def lstm_steps_backward(dh, panels, given, dcell, gates, cell, dbefore, dcells, first, last):
    batch = dbefore.shape[0]
    for t in range(dh.shape[0] // batch - 1, -1, -1):
        a, b, before = t * batch + first, t * batch + last, _before(dh, dbefore, t, first, last)
        if dcells.size > 0:
            _add(dcells[a:b], dcell[first:last])
        lstm_cell_backward(dh[a:b], dcell[first:last], gates[a:b], cell[a:b], cell[a + batch : b + batch])
        if t > 0 or given:
            product(gates[a:b], panels, before, True)


@kernel
def one_hot_columns(x, columns):
    for i in range(x.shape[0]):
        row = x[i]
        ones, others, column = 0, 0, 0
        for j in range(row.size):
            ones += row[j] == 1
            others += row[j] != 0
            column += j if row[j] == 1 else 0
        if ones != 1 or others != 1:
            return False
        columns[i] = column
    return True


@kernel
def embed_backward(dy, rows, out):
    for i in range(rows.size):
        source, target = dy[i], out[rows[i]]
        for j in range(target.size):
            target[j] += source[j]
