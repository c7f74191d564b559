"""The arithmetic and the bytes that a layer's passes cannot do without, from its shapes.

Arithmetic: sums of products as the formulas have them, without what falls on padding; an addition, a multiplication, a
comparison and a function such as tanh count as one each, though tanh takes far longer. Bytes: every array that a pass
needs or makes crosses once, whatever a kernel copies in between. Those that the pass before has made, or that the next
one needs, are `near`: they may still be in a cache. Those that nobody touches before the other pass over the net, or
the next step, are `far`: parameters, their gradients, and what a forward call keeps for the backward call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from singa_dask.net import Net

REAL = 4


@dataclass(frozen=True)
class Work:
    """Of one pass. near, far: bytes."""

    flop: float
    near: float
    far: float = 0


@dataclass(frozen=True)
class Case:
    """A layer on a mini-batch. rows: samples, of all time steps; x, y, w: elements of input, output and parameters;
    below: whether a gradient for the input is wanted; x_shape: of a sample."""

    layer: Any
    rows: int
    x: int
    y: int
    w: int
    below: bool
    x_shape: tuple[int, ...]


Passes = tuple[Work, Work]


def cases(net: Net, batch: int) -> dict[str, Case]:
    """The layers that have a source, by name; of those that pooling goes before, on what it leaves."""
    found = {}
    for name, layer in net.layers.items():
        if layer.proto.srclayers:
            shape, made, rows = net.source_shape(name, 0), net.shapes[name], batch * layer.steps
            if name in net.pooled_first:
                shape = made = net.shapes[net.pooled_first[name]]
            sizes = rows * prod(shape), rows * prod(made), sum(param.size for param in layer.params)
            found[name] = Case(layer, rows, *sizes, net.contexts[name].needs_input_grad, shape)
    return found


def held(net: Net, batch: int) -> int:
    """Bytes that a step goes through: parameters, gradients and velocities, outputs and their gradients."""
    return REAL * (3 * net.flat.size + 2 * sum(case.y for case in cases(net, batch).values()))


def update(net: Net) -> Work:
    """Momentum SGD: v = m v - r g, w += v."""
    return Work(4 * net.flat.size, 0, 5 * REAL * net.flat.size)


def passes(case: Case) -> Passes:
    """The forward and the backward pass of a layer."""
    return KINDS[type(case.layer).__name__](case)


def inner_product(case: Case) -> Passes:
    return _product(case, 2 * case.rows * case.w)


def convolution(case: Case) -> Passes:
    height, width, channels = case.x_shape
    window, filters = case.layer.window, case.layer.conf.num_filters
    within = ((oh.stop - oh.start) * (ow.stop - ow.start) for _, (oh, ow), _ in window.offsets(height, width))
    return _product(case, 2 * case.rows * sum(within) * channels * filters)


def _product(case: Case, flop: float) -> Passes:
    """Of input and parameters; backward one for the parameters and one for the input."""
    below = int(case.below)
    forward = Work(flop, REAL * (case.x + case.y), REAL * case.w)
    return forward, Work(flop * (1 + below), REAL * (case.y + below * case.x), REAL * (case.x + (1 + below) * case.w))


def pooling(case: Case) -> Passes:
    """MAX keeps a byte an output, for which pixel it was."""
    layer = case.layer
    flop, kept = case.y * layer.window.area, case.y if layer.is_max else 0
    both = REAL * (case.x + case.y)
    return Work(flop, both, kept), Work(case.y if kept else flop, both, kept)


def lrn(case: Case) -> Passes:
    """Keeps input, output and sums. The power is two roots and a division."""
    flop = case.x * (6 + case.layer.conf.local_size)
    return Work(flop, 2 * REAL * case.x, REAL * case.x), Work(flop + 4 * case.x, 2 * REAL * case.x, 3 * REAL * case.x)


def activation(flop: int) -> Callable[[Case], Passes]:
    """So many operations an element in either pass; the output is kept."""

    def of(case: Case) -> Passes:
        moved = 2 * REAL * case.x
        return Work(flop * case.x, moved), Work(flop * case.x, moved, REAL * case.x)

    return of


def recurrent(gates: int, kept: int) -> Callable[[Case], Passes]:
    """Of one-hot inputs, which choose a row of the input's part, from a state of zero, with which the first step needs
    no product. kept: arrays like the output that the backward pass needs beside it; some 5 operations a gate."""

    def of(case: Case) -> Passes:
        units = case.y // case.rows
        product = 2 * (case.rows - case.rows // case.layer.steps) * gates * units**2
        cells, kept_nbytes, weights = 5 * gates * case.y, REAL * kept * case.y, REAL * case.w
        forward = Work(product + cells, REAL * (case.x + case.y), kept_nbytes + weights)
        return forward, Work(2 * product + cells, REAL * case.y, kept_nbytes + REAL * case.y + 2 * weights)

    return of


def loss(case: Case) -> Passes:
    return Work(5 * case.x, REAL * (case.x + case.y)), Work(2 * case.x, REAL * (case.x + case.y))


def copying(case: Case) -> Passes:
    """No arithmetic, and no way back."""
    return Work(0, REAL * 2 * case.y), Work(0, 0)


KINDS: dict[str, Callable[[Case], Passes]] = {
    "InnerProduct": inner_product,
    "Convolution": convolution,
    "Pooling": pooling,
    "LRN": lrn,
    "ReLU": activation(1),
    "STanh": activation(3),
    "RNN": recurrent(gates=1, kept=0),
    "GRU": recurrent(gates=3, kept=4),  # the gates, and the state's part of the candidate
    "LSTM": recurrent(gates=4, kept=5),  # the gates and the cell
    "SoftmaxLoss": loss,
    "OneHot": copying,
    "Frame": copying,
    "RNNLabel": copying,
}
