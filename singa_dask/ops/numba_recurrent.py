"""Recurrent cells and rows of tables in one pass over memory; singa_dask.ops.recurrent states the formulas.

Each loop writes one array: LLVM gives up vectorising where it would have to check many arrays for overlap.
`*_steps` run the whole time loop for the rows [first, last) of every step, so that threads share a batch.
"""

import math

import numpy as np
from numba import types
from numba.extending import overload

from singa_dask.ops.numba_kernel import FASTMATH, kernel
from singa_dask.ops.packed_product import product


def tanh(x):
    """tanh(x), for use in kernels."""
    raise NotImplementedError


@overload(tanh, jit_options={"fastmath": FASTMATH, "error_model": "numpy"})
def _tanh(x):
    if x != types.float32:
        return lambda x: math.tanh(x)

    def rational(x):
        """x P(x^2) / Q(x^2), the minimax approximation of Eigen; within 5 units in the last place."""
        limit = np.float32(7.90531110763549805)  # where tanh is 1 in this precision
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
def _sigmoid(x):
    half = type(x)(0.5)
    return half + half * tanh(half * x)


@kernel
def rnn_cell(ax, ah, h):
    for i in range(h.shape[0]):
        a, b, out = ax[i], ah[i], h[i]
        for j in range(out.size):
            out[j] = tanh(a[j] + b[j])


@kernel
def rnn_cell_backward(dh, h, da):
    one = h.dtype.type(1)
    for i in range(h.shape[0]):
        d, y, out = dh[i], h[i], da[i]
        for j in range(out.size):
            out[j] = d[j] * (one - y[j] * y[j])


@kernel
def _gates(ax, ah, out, sigmoids):
    """The sum of both parts, its first `sigmoids` elements through sigmoid, the others through tanh."""
    for j in range(sigmoids):
        out[j] = _sigmoid(ax[j] + ah[j])
    for j in range(sigmoids, out.size):
        out[j] = tanh(ax[j] + ah[j])


@kernel
def gru_cell(ax, ah, before, gates, h):
    units = h.shape[1]
    for i in range(h.shape[0]):
        z, r, c = gates[i, :units], gates[i, units : 2 * units], gates[i, 2 * units :]
        axc, ahc, past, out = ax[i, 2 * units :], ah[i, 2 * units :], before[i], h[i]
        _gates(ax[i, : 2 * units], ah[i, : 2 * units], gates[i, : 2 * units], 2 * units)
        for j in range(units):
            c[j] = tanh(axc[j] + r[j] * ahc[j])
        for j in range(units):
            out[j] = c[j] + z[j] * (past[j] - c[j])


@kernel
def gru_cell_backward(dh, gates, ah, before, da, dah, dbefore):
    units = dh.shape[1]
    one = dh.dtype.type(1)
    for i in range(dh.shape[0]):
        z, r, c = gates[i, :units], gates[i, units : 2 * units], gates[i, 2 * units :]
        dz, dr, dc = da[i, :units], da[i, units : 2 * units], da[i, 2 * units :]
        d, ahc, past, through, dpast = dh[i], ah[i, 2 * units :], before[i], dah[i], dbefore[i]
        dahc = through[2 * units :]
        for j in range(units):
            dz[j] = d[j] * (past[j] - c[j]) * z[j] * (one - z[j])
        for j in range(units):
            dc[j] = d[j] * (one - z[j]) * (one - c[j] * c[j])
        for j in range(units):
            dr[j] = dc[j] * ahc[j] * r[j] * (one - r[j])
        for j in range(2 * units):
            through[j] = da[i, j]
        for j in range(units):
            dahc[j] = dc[j] * r[j]
        for j in range(units):
            dpast[j] = d[j] * z[j]


@kernel
def lstm_cell(ax, ah, cell_before, gates, cell, h):
    units = h.shape[1]
    for i in range(h.shape[0]):
        _gates(ax[i], ah[i], gates[i], 3 * units)
        gi, gf, go = gates[i, :units], gates[i, units : 2 * units], gates[i, 2 * units : 3 * units]
        g, past, now, out = gates[i, 3 * units :], cell_before[i], cell[i], h[i]
        for j in range(units):
            now[j] = gf[j] * past[j] + gi[j] * g[j]
        for j in range(units):
            out[j] = go[j] * tanh(now[j])


@kernel
def lstm_cell_backward(dh, dcell, gates, cell_before, cell, da):
    units = dh.shape[1]
    one = dh.dtype.type(1)
    for i in range(dh.shape[0]):
        gi, gf, go = gates[i, :units], gates[i, units : 2 * units], gates[i, 2 * units : 3 * units]
        g, d, dc, past, now = gates[i, 3 * units :], dh[i], dcell[i], cell_before[i], cell[i]
        di, df = da[i, :units], da[i, units : 2 * units]
        do, dg = da[i, 2 * units : 3 * units], da[i, 3 * units :]
        for j in range(units):
            do[j] = tanh(now[j])
        for j in range(units):
            dc[j] += d[j] * go[j] * (one - do[j] * do[j])
        for j in range(units):
            do[j] = d[j] * do[j] * go[j] * (one - go[j])
        for j in range(units):
            di[j] = dc[j] * g[j] * gi[j] * (one - gi[j])
        for j in range(units):
            df[j] = dc[j] * past[j] * gf[j] * (one - gf[j])
        for j in range(units):
            dg[j] = dc[j] * gi[j] * (one - g[j] * g[j])
        for j in range(units):
            dc[j] = dc[j] * gf[j]


@kernel
def _from_state(h, panels, begun, t, first, last, ah):
    """ah = the state before step t times the packed weights; nothing where it is known to be zero."""
    if t > 0 or begun:
        product(h[first:last], panels, ah)
    else:
        ah[:] = 0


@kernel
def rnn_steps(ax, panels, begun, ah, h, first, last):
    batch = h.shape[0] - ax.shape[0]
    for t in range(ax.shape[0] // batch):
        a, b = t * batch + first, t * batch + last
        _from_state(h, panels, begun, t, a, b, ah[first:last])
        rnn_cell(ax[a:b], ah[first:last], h[a + batch : b + batch])


@kernel
def gru_steps(ax, panels, begun, ah, gates, h, first, last):
    batch = h.shape[0] - ax.shape[0]
    for t in range(ax.shape[0] // batch):
        a, b = t * batch + first, t * batch + last
        _from_state(h, panels, begun, t, a, b, ah[a:b])
        gru_cell(ax[a:b], ah[a:b], h[a:b], gates[a:b], h[a + batch : b + batch])


@kernel
def lstm_steps(ax, panels, begun, ah, gates, cell, h, first, last):
    batch = h.shape[0] - ax.shape[0]
    for t in range(ax.shape[0] // batch):
        a, b = t * batch + first, t * batch + last
        _from_state(h, panels, begun, t, a, b, ah[first:last])
        lstm_cell(
            ax[a:b], ah[first:last], cell[a:b], gates[a:b], cell[a + batch : b + batch], h[a + batch : b + batch]
        )


@kernel
def _add_to(x, out):
    for i in range(out.shape[0]):
        row, target = x[i], out[i]
        for j in range(target.size):
            target[j] += row[j]


@kernel
def rnn_steps_backward(dy, panels, given, h, da, dbefore, first, last):
    batch = dbefore.shape[0]
    through = dbefore[first:last]
    steps = dy.shape[0] // batch
    for t in range(steps - 1, -1, -1):
        a, b = t * batch + first, t * batch + last
        if t < steps - 1:
            _add_to(through, dy[a:b])
        rnn_cell_backward(dy[a:b], h[a + batch : b + batch], da[a:b])
        if t > 0 or given:
            product(da[a:b], panels, through)


@kernel
def gru_steps_backward(dy, panels, given, gates, ah, h, da, dah, dpast, dbefore, first, last):
    batch = dbefore.shape[0]
    through = dbefore[first:last]
    steps = dy.shape[0] // batch
    for t in range(steps - 1, -1, -1):
        a, b = t * batch + first, t * batch + last
        if t < steps - 1:
            _add_to(through, dy[a:b])
        gru_cell_backward(dy[a:b], gates[a:b], ah[a:b], h[a:b], da[a:b], dah[a:b], dpast[first:last])
        if t > 0 or given:
            product(dah[a:b], panels, through)
            _add_to(dpast[first:last], through)


@kernel
def lstm_steps_backward(dy, panels, given, dcell, gates, cell, da, dbefore, first, last):
    batch = dbefore.shape[0]
    through = dbefore[first:last]
    steps = dy.shape[0] // batch
    for t in range(steps - 1, -1, -1):
        a, b = t * batch + first, t * batch + last
        if t < steps - 1:
            _add_to(through, dy[a:b])
        lstm_cell_backward(dy[a:b], dcell[first:last], gates[a:b], cell[a:b], cell[a + batch : b + batch], da[a:b])
        if t > 0 or given:
            product(da[a:b], panels, through)


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
def embed(table, rows, out):
    for i in range(rows.size):
        source, target = table[rows[i]], out[i]
        for j in range(target.size):
            target[j] = source[j]


@kernel
def embed_backward(dy, rows, out):
    for i in range(rows.size):
        source, target = dy[i], out[rows[i]]
        for j in range(target.size):
            target[j] += source[j]
