"""Recurrent layers.   T time steps of B rows, I inputs, H hidden units, G gates.

In a folded net (net/fold.py) one call computes all T steps as consecutive blocks of rows: x: (T B, I) -> y: (T B, H).
In an unrolled net each of T instances computes one step, and its second source is the previous instance. Both compute
the same numbers. The initial state is the second source (B, H) if there is one, else the final state of the last
mini-batch if the algorithm carries it over (kBPTT), else zero.

Parameters: for each gate `<gate>_hx` (H, I), then for each `<gate>_hh` (H, H), then for each its bias `<gate>_b` (H,).
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Param, Shape
from singa_dask.layers.recurrent_layer import check_rows
from singa_dask.layers.split_recurrent import SplitSteps
from singa_dask.ops.arrays import Array
from singa_dask.ops.recurrent import Chosen


class Recurrent(Layer):
    """Base of recurrent layers: parameters, time loop, gradients of the weights.

    gates: their names, in the order of the parameters and of the kernel. carried: names of the state arrays (B, H),
    output first. returned: how many of these the output has, side by side. An initial state has the first one, or all.

    Split by features, a worker computes its share of the units, for which it has rows of every parameter.
    """

    gates: ClassVar[tuple[str, ...]]
    carried: ClassVar[tuple[str, ...]] = ("h",)
    num_sources: ClassVar[tuple[int, int | None]] = (1, 2)
    rowwise: ClassVar[bool] = True
    step_axes: ClassVar[int] = 2
    recurrent: ClassVar[bool] = True
    _given = 0

    @property
    def splits_features(self) -> bool:  # type: ignore[override]
        return self.returned == 1 and self._given < 2

    @property
    def returned(self) -> int:
        """How many of the state arrays the output has."""
        return 1

    def setup(self, *src: Shape) -> Shape:
        shape, *context = self.sources(src)
        inputs, size = self._inputs, self._size = prod(shape), self.conf.dim_hidden
        if size < 1:
            raise self.problem("dim_hidden must be at least 1", size)
        if context and context[0] not in ((size,), (size * len(self.carried),)):
            expected = (
                "dim_hidden units" if len(self.carried) == 1 else "dim_hidden units, or twice as many with the cell"
            )
            raise self.problem(f"the second source, the initial state, must have {expected}", context[0])
        self._given = context[0][0] // size if context else 0
        self._split = self.partition.splits and self.partition.size > 1
        self._axis = 0 if self._split else None
        weights = [(self._role(gate, "hx"), (size, inputs), inputs, size) for gate in self.gates]
        weights += [(self._role(gate, "hh"), (size, size), size, size) for gate in self.gates]
        declared = [self.declare(*weight, axis=self._axis) for weight in weights]
        self.input_weights, self.state_weights = declared[: len(self.gates)], declared[len(self.gates) :]
        self.biases = [self._bias(gate) for gate in self.gates] if self._has_biases() else []
        self._units = declared[0].shape[0]
        return (self._units * self.returned,)

    @property
    def sent(self) -> tuple[float, float]:
        """The state after each time step but the last, and its gradient."""
        if not self.partition.splits:
            return 0.0, 0.0
        values = self.partition.others * self.conf.dim_hidden * (self.steps - 1) / self.steps
        return values, values

    def _role(self, gate: str, what: str) -> str:
        return f"{gate}_{what}" if gate else what

    def _has_biases(self) -> bool:
        """SINGA's rule: no biases with `bias_term: false` or with `param` blocks for the weights alone."""
        return self.conf.bias_term and len(self.proto.param) != 2 * len(self.gates)

    def _bias(self, gate: str, value: float | None = None) -> Param:
        size = self._size
        return self.declare(self._role(gate, "b"), (size,), self._inputs, size, value=value, axis=self._axis)

    def forward(self, ctx: Context, *x: Array) -> Array:
        ops, width, units = ctx.ops, len(self.gates) * self._units, self._units
        ctx.x_shape, rows = x[0].shape, x[0].shape[0]
        ctx.x_RI = x[0].reshape(rows, self._inputs)
        ctx.rows = batch = rows // self.steps
        ctx.given = len(x) > 1
        gates = ctx.buffer("gates", (rows, width))
        ctx.chosen = self._from_inputs(ctx, gates)
        # The transposed matrices (H, H) of a product, side by side.
        w = []
        for n, weights in enumerate(self._products()):
            packed = ctx.buffer(f"wh_T{n}", self._packed_shape(ctx, self._size, len(weights) * units))
            w.append(ops.pack([weight.value.T for weight in weights], packed))
        # One block more than steps: block t is the state before step t, block t + 1 the state after it.
        states = ctx.states = [ctx.buffer(name, (rows + batch, units)) for name in self.carried]
        self._begin(ctx, states, x[1] if ctx.given else None)
        if self._split:
            if ctx.chosen is not None:
                table, symbols = ctx.chosen
                ops.embed(table, symbols, gates)
            sums = self._state_sums(ctx, gates)
            ctx.split.forward(states[0], ctx.begun, sums, w, partial(self._cell, ctx, gates))
        else:
            self._steps(ctx, gates, w)
        ctx.memory.state = [state[rows:] for state in states]
        if self.returned == 1:
            return states[0][batch:]
        y = ctx.buffer("y", (rows, units * self.returned))
        return ops.xp.concatenate([state[batch:] for state in states], axis=1, out=y)

    def _packed_shape(self, ctx: Context, length: int, columns: int) -> Shape:
        """The layout of weights for products: rows, for a product of its own at every step of a split layer."""
        return (length, columns) if self._split else ctx.ops.packed_shape(length, columns, ctx.rows)

    def _from_inputs(self, ctx: Context, ax: Array) -> Chosen:
        """The inputs' part of the gates: one product for all steps, or rows of a table if every input is one-hot."""
        ops = ctx.ops
        table = ctx.buffer("wx_T", (self._inputs, ax.shape[1]))
        for k, param in enumerate(self.input_weights):
            table[:, k * self._units : (k + 1) * self._units] = param.value.T
        bias = ops.xp.concatenate([param.value for param in self.biases]) if self.biases else None
        ctx.wx_T, ctx.columns = table, ops.one_hot_columns(ctx.x_RI)
        if ctx.columns is None:
            ops.affine(ctx.x_RI, table, bias, out=ax)
            return None
        if bias is not None:
            table = ops.xp.add(table, bias, out=ctx.buffer("table", table.shape))
        return table, ctx.columns

    def _begin(self, ctx: Context, states: list[Array], given: Array | None) -> None:
        """Write the state before the first step into the first block."""
        memory, batch, whole, units = ctx.memory, ctx.rows, given, self._units
        if self._split:
            ctx.split = SplitSteps(ctx, self.partition.bounds(self._size), batch, len(ctx.x_RI))
            given = whole if whole is None else whole[:, ctx.split.own]
        before = [None] * len(states) if memory.state is None else memory.state
        if given is not None and self._given > 1:
            before = [given[:, :units], given[:, units:]]
        elif given is not None:
            # An unrolled instance reads the previous one; the other state arrays come through the context.
            before = [given, *(before[1:] if self.proto.unroll_index else [None] * (len(states) - 1))]
        for state, value in zip(states, before, strict=True):
            check_rows(self, value, batch)
            state[:batch] = 0 if value is None else value
        ctx.begun = before[0] is not None  # otherwise the state is zero, and so is its part of the gates
        memory.gradients = None
        if self._split and ctx.begun:
            ctx.split.begin(states[0][:batch], whole)

    def backward(self, ctx: Context, dy: Array) -> Any:
        ops, batch, rows = ctx.ops, ctx.rows, ctx.x_RI.shape[0]
        if self.returned > 1:
            dy, ctx.dcells = (ops.xp.ascontiguousarray(part) for part in (dy[:, : self._units], dy[:, self._units :]))
        width = len(self.gates) * self._units
        da, dbefore = ctx.buffer("gates", (rows, width)), ctx.buffer("dbefore", (batch, self._size))
        dbefore[...] = 0
        w = []
        for n, weights in enumerate(self._products()):
            lines = len(weights) * self._units
            packed = ctx.buffer(f"wh{n}", self._packed_shape(ctx, lines, self._size))
            for k, weight in enumerate(weights):
                ops.pack([weight.value], packed[..., k * self._units : (k + 1) * self._units, :])
            w.append(packed)
        self._begin_backward(ctx)
        if self._split:
            sums = self._state_sums(ctx, da)
            ctx.split.backward(dy, ctx.given, sums, w, partial(self._cell_backward, ctx, dy, da), dbefore)
        else:
            self._steps_backward(ctx, dy, w, da, dbefore)
        dx = None
        if 0 in ctx.wanted:
            dx = ops.gemm(da, ctx.wx_T.T, out=ctx.buffer("dx", ctx.x_RI.shape)).reshape(ctx.x_shape)
            if not ctx.given:
                ctx.send_gradient(dx)
        self._learn(ctx, da)
        if self._given > 1:
            dbefore = ops.xp.concatenate((dbefore, ctx.dcell), axis=1)
        return (dx, dbefore) if ctx.given else dx

    def _learn(self, ctx: Context, da: Array) -> None:
        """The gradients of the parameters: one product for all steps, or row sums per symbol for one-hot inputs."""
        ops, units = ctx.ops, self._units
        before = ctx.split.before if self._split else ctx.states[0][: da.shape[0]]
        nonzero = slice(0 if ctx.begun else ctx.rows, None)
        if ctx.columns is not None:
            table = ctx.buffer("dtable", ctx.wx_T.shape)
            table[...] = 0
            ops.embed_backward(da, ctx.columns, table)
            of_inputs = table.T
        else:
            of_inputs = ops.gemm(da.T, ctx.x_RI, out=ctx.buffer("dwx", (da.shape[1], self._inputs)))
        sums = ops.column_sums(da if ctx.columns is None else table, ctx.buffer("db", da.shape[1:]))
        for k, weight in enumerate(self.input_weights):
            gate = slice(k * units, (k + 1) * units)
            _add(weight, of_inputs[gate])
            if self.biases:
                _add(self.biases[k], sums[gate])
        for n, (dah, weights) in enumerate(zip(self._state_sums(ctx, da), self._products(), strict=True)):
            dah = dah[nonzero]
            if len(weights) == 1:
                ops.gemm(dah.T, before[nonzero], out=weights[0].grad, accumulate=weights[0].claim())
                continue
            total = ops.gemm(dah.T, before[nonzero], out=ctx.buffer(f"dwh{n}", (dah.shape[1], self._size)))
            for k, weight in enumerate(weights):
                _add(weight, total[k * units : (k + 1) * units])

    # What a cell implements:

    def _products(self) -> list[list[Param]]:
        """The weights of the state, by product."""
        return [self.state_weights]

    def _state_sums(self, ctx: Context, gates: Array) -> list[Array]:
        """Where these products are added up, and where the backward pass leaves their gradients: the gates, unless the
        cell distinguishes them."""
        return [gates]

    def _steps(self, ctx: Context, gates: Array, w: list[Array]) -> None:
        """Compute all states. gates: holds ax, the inputs' part, unless ctx.chosen does; the backward pass needs it.
        w: the packed weights, by product."""
        raise NotImplementedError

    def _steps_backward(self, ctx: Context, dy: Array, w: list[Array], da: Array, dbefore: Array) -> None:
        """Fill da, which holds the gates from `_steps`, and add to dbefore if an initial state is given."""
        raise NotImplementedError

    def _begin_backward(self, ctx: Context) -> None:
        """Prepare gradients that the cell carries from step to step."""

    def _cell(self, ctx: Context, gates: Array, now: slice, after: slice) -> None:
        """One step of a split layer: of the gates' rows `now`, with the state's rows `now` before and `after` it."""
        raise NotImplementedError

    def _cell_backward(self, ctx: Context, dh: Array, da: Array, now: slice, after: slice, dbefore: Array) -> None:
        """Fill rows `now` of da, and add to dbefore, (B, own units), what does not come from the products."""
        raise NotImplementedError


def _add(param: Param, gradient: Array) -> None:
    param.grad[...] = param.grad + gradient if param.claim() else gradient


class RNN(Recurrent):
    """h_t = tanh(W_hx x_t + W_hh h_(t-1) + b)   (Elman 1990).   rnn_conf: dim_hidden (H), bias_term.

    Parameters: hx, hh, b.
    """

    type: ClassVar[str] = "kRNN"
    conf_field: ClassVar[str | None] = "rnn_conf"
    gates: ClassVar[tuple[str, ...]] = ("",)

    def _steps(self, ctx: Context, gates: Array, w: list[Array]) -> None:
        (packed,) = w
        ctx.ops.rnn_steps(gates, packed, ctx.begun, ctx.states[0], ctx.chosen)

    def _steps_backward(self, ctx: Context, dy: Array, w: list[Array], da: Array, dbefore: Array) -> None:
        (packed,) = w
        ctx.ops.rnn_steps_backward(dy, packed, ctx.given, ctx.states[0], da, dbefore)

    def _cell(self, ctx: Context, gates: Array, now: slice, after: slice) -> None:
        ctx.ops.rnn_cell(gates[now], ctx.states[0][after])

    def _cell_backward(self, ctx: Context, dh: Array, da: Array, now: slice, after: slice, dbefore: Array) -> None:
        ctx.ops.rnn_cell_backward(dh[now], ctx.states[0][after], da[now])


class GRU(Recurrent):
    """z, r = sigmoid(W_hx x_t + W_hh h_(t-1) + b), c = tanh(W_hx x_t + r (W_hh h_(t-1)) + b),
    h_t = z h_(t-1) + (1 - z) c   (Cho et al. 2014, as in SINGA).   gru_conf: dim_hidden (H), bias_term.

    Parameters: z_hx, r_hx, c_hx, z_hh, r_hh, c_hh, z_b, r_b, c_b.
    """

    type: ClassVar[str] = "kGRU"
    conf_field: ClassVar[str | None] = "gru_conf"
    gates: ClassVar[tuple[str, ...]] = ("z", "r", "c")

    def _steps(self, ctx: Context, gates: Array, w: list[Array]) -> None:
        w_zr, w_c = w
        ctx.ops.gru_steps(gates, w_zr, w_c, ctx.begun, self._ahc(ctx), ctx.states[0], ctx.chosen)

    def _steps_backward(self, ctx: Context, dy: Array, w: list[Array], da: Array, dbefore: Array) -> None:
        w_zr, w_c = w
        ctx.ops.gru_steps_backward(dy, w_zr, w_c, ctx.given, da, self._ahc(ctx), ctx.states[0], dbefore)

    def _cell(self, ctx: Context, gates: Array, now: slice, after: slice) -> None:
        h = ctx.states[0]
        ctx.ops.gru_cell(gates[now], self._ahc(ctx)[now], h[now], h[after])

    def _cell_backward(self, ctx: Context, dh: Array, da: Array, now: slice, after: slice, dbefore: Array) -> None:
        ctx.ops.gru_cell_backward(dh[now], da[now], self._ahc(ctx)[now], ctx.states[0][now], dbefore)

    def _ahc(self, ctx: Context) -> Array:
        return ctx.buffer("ahc", (ctx.x_RI.shape[0], self._units))

    def _products(self) -> list[list[Param]]:
        return [self.state_weights[:2], self.state_weights[2:]]

    def _state_sums(self, ctx: Context, gates: Array) -> list[Array]:
        return [gates[:, : 2 * self._units], self._ahc(ctx)]


class LSTM(Recurrent):
    """i, f, o = sigmoid(W_hx x_t + W_hh h_(t-1) + b), g = tanh(W_hx x_t + W_hh h_(t-1) + b),
    c_t = f c_(t-1) + i g, h_t = o tanh(c_t)   (Gers, Schmidhuber & Cummins 2000).   lstm_conf: dim_hidden, bias_term,
    return_cell.

    Parameters: i_hx, f_hx, o_hx, g_hx, i_hh, ..., i_b, ...; f_b starts at 1 unless the job sets `init`
    (Jozefowicz, Zaremba & Sutskever 2015). With return_cell the output is (T B, 2 H), h and c side by side. A second
    source of 2 H units provides both; one of H units h, and the cell then starts at zero.
    """

    type: ClassVar[str] = "kLSTM"
    conf_field: ClassVar[str | None] = "lstm_conf"
    gates: ClassVar[tuple[str, ...]] = ("i", "f", "o", "g")
    carried: ClassVar[tuple[str, ...]] = ("h", "cell")

    @property
    def returned(self) -> int:
        return 1 + self.conf.return_cell

    def _bias(self, gate: str, value: float | None = None) -> Param:
        return super()._bias(gate, 1.0 if gate == "f" else None)

    def _steps(self, ctx: Context, gates: Array, w: list[Array]) -> None:
        h, cell = ctx.states
        (packed,) = w
        ctx.ops.lstm_steps(gates, packed, ctx.begun, cell, h, ctx.chosen)

    def _steps_backward(self, ctx: Context, dy: Array, w: list[Array], da: Array, dbefore: Array) -> None:
        (packed,) = w
        dcells = ctx.dcells if self.conf.return_cell else None
        ctx.ops.lstm_steps_backward(dy, packed, ctx.given, ctx.dcell, da, ctx.states[1], dbefore, dcells)

    def _begin_backward(self, ctx: Context) -> None:
        dcell = ctx.dcell = ctx.buffer("dcell", (ctx.rows, self._units))
        dcell[...] = 0 if ctx.memory.gradients is None else ctx.memory.gradients
        if self.proto.unroll_index and self._given < 2:
            ctx.memory.gradients = dcell  # for the previous instance, once the steps have changed it

    def _cell(self, ctx: Context, gates: Array, now: slice, after: slice) -> None:
        h, cell = ctx.states
        ctx.ops.lstm_cell(gates[now], cell[now], cell[after], h[after])

    def _cell_backward(self, ctx: Context, dh: Array, da: Array, now: slice, after: slice, dbefore: Array) -> None:
        cell = ctx.states[1]
        ctx.ops.lstm_cell_backward(dh[now], ctx.dcell, da[now], cell[now], cell[after])
