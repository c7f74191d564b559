"""The operators of ONNX over time: recurrent cells.   T time steps, B rows, H hidden units, D directions.

(reader, node, its attributes) -> the values of its outputs, as in convert/onnx_ops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from singa_dask import functions as F
from singa_dask import layers as kinds
from singa_dask.convert.onnx_file import ROWS
from singa_dask.convert.onnx_net import ResultIndex, all_steps
from singa_dask.convert.onnx_reader import Reader, Value


class _Cell(NamedTuple):
    """layer: what it is here. order: of its gates in PyTorch, by their places in ONNX. activations: those that it must
    have."""

    layer: Any
    order: Sequence[int]
    activations: Sequence[bytes]


_CELLS = {
    "RNN": _Cell(kinds.RNN, (0,), (b"Tanh",)),
    "GRU": _Cell(kinds.GRU, (1, 0, 2), (b"Sigmoid", b"Tanh")),
    "LSTM": _Cell(kinds.LSTM, (0, 2, 3, 1), (b"Sigmoid", b"Tanh", b"Tanh")),
}
_WAYS = {b"forward": (1,), b"reverse": (-1,), b"bidirectional": (1, -1)}
_UNREAD = {4: "sequences of different lengths", 7: "gates that read the cell"}
_READS = ("kUnrollOneToEach", "kUnrollFirstToLast")
_ALL = slice(None)


def recurrent(reader: Reader, node: Any, a: dict[str, Any]) -> list[Value | None]:
    """x (T, B, I), weights, biases, lengths, h (D, B, H), c (D, B, H) -> y (T, D, B, H), and h and c after the last
    step, as far as something reads them."""
    cell, ways = _CELLS[node.op_type], _WAYS[a.get("direction", b"forward")]
    activations = [*cell.activations] * len(ways)
    wanted = {"activations": activations, "clip": None, "layout": 0, "input_forget": 0}
    for key, value in wanted.items():
        if a.get(key, value) != value:
            reader.refuse(node, key, a[key])
    if cell.layer is kinds.GRU and not a.get("linear_before_reset"):
        reader.refuse(node, "linear_before_reset", 0)
    for i in [i for i in _UNREAD if i < len(node.input) and node.input[i]]:
        reader.refuse(node, f"input {i}", f"there: {_UNREAD[i]}")
    x, units, given = reader.value(node), a["hidden_size"], _state(reader, node)
    if tuple(x.axes[1]) != (0,):
        reader.refuse(node, "the axis of the rows", x.rows_axis)
    rows = reader.arranged(x, [x.axes[0], x.axes[2]])
    made: tuple[list[ResultIndex], ...] = ([], [], [])
    for way, step in enumerate(ways):
        turn = slice(None, None, step)
        read = rows if step > 0 else reader.call(F.getitem, rows, index=(_ALL, turn))
        before = [] if given is None else [reader.call(F.getitem, given, index=(_ALL, way))]
        name = _layer(
            reader,
            node,
            cell,
            way,
            dim_hidden=units,
            unroll_len=x.shape[0],
            unroll_conn_type=_READS[: 1 + len(before)],
        )
        y = reader.call(name, read, *before)
        y = reader.call(all_steps, y, x.shape[0], units * (1 + reader.used(node, 2)))
        for i, (steps, part) in enumerate([(turn, 0), (-1, 0), (-1, units)]):
            if reader.used(node, i):
                made[i].append(reader.call(F.getitem, y, index=(_ALL, steps, slice(part, part + units))))
    return [
        _joined(reader, each, x.shape[:1] if i < 1 else (), units) if each else None for i, each in enumerate(made)
    ]


def _joined(reader: Reader, each: list[ResultIndex], steps: tuple[int, ...], units: int) -> Value:
    """What the directions have made, each (B, T, H) or (B, H), as (T, D, B, H) or (D, B, H)."""
    sizes = (*steps, len(each), units)
    place = each[0] if len(each) == 1 else reader.call(F.cat, each, axis=len(sizes) - 1)
    place, last = reader.call(F.reshape, place, shape=(-1, *sizes)), len(sizes)
    return Value(place, (ROWS, *sizes), (*((i,) for i in range(1, last)), (0,), (last,)))


def _state(reader: Reader, node: Any) -> ResultIndex | None:
    """What is given of h and c before the first step, (B, D, H) or (B, D, 2 H); None if it is zero."""
    names = [name for name in node.input[5:7] if name]
    if all(name in reader.file.zeros for name in names):
        return None
    values = [reader.value(node, i) for i in range(5, 5 + len(names))]
    states = [reader.arranged(value, [value.axes[0], value.axes[2]]) for value in values]
    return states[0] if len(states) == 1 else reader.call(F.cat, states, axis=2)


def _layer(reader: Reader, node: Any, cell: _Cell, way: int, **settings: Any) -> str:
    """The layer of a direction, with weights as PyTorch has them."""
    units = settings["dim_hidden"]

    def turned(i: int, first: int) -> np.ndarray:
        """The gates of a weight, of those that begin at `first`; the same array for the same weight."""
        weight, count = reader.weight(node, i), len(cell.order)
        blocks = weight[way].reshape(-1, units, *weight.shape[2:])[[first + k for k in cell.order]]
        key = f"{node.input[i]} {way} {first}"
        return reader.file.constants.setdefault(key, blocks.reshape(count * units, *weight.shape[2:]))

    has_bias = reader.constant(node, 3) is not None
    weights = {"weight_ih_l0": turned(1, 0), "weight_hh_l0": turned(2, 0)}
    if has_bias:
        weights |= {"bias_ih_l0": turned(3, 0), "bias_hh_l0": turned(3, len(cell.order))}
    settings |= {"return_cell": True} if reader.used(node, 2) else {}
    return reader.layer(reader.name(node, 1), cell.layer(bias_term=has_bias, **settings), **weights)
