"""Functions of layers: the nodes that they make in a net."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from singa_dask import functions
from singa_dask.layers.connection import Concate, Reshape, Slice
from singa_dask.layers.elementwise import Add, Div, Max, Mul, Sub
from singa_dask.layers.node import Node

_LAYERS: dict[Any, type[Node]] = {
    functions.add: Add,
    functions.sub: Sub,
    functions.mul: Mul,
    functions.div: Div,
    functions.maximum: Max,
}


def node_of(self: Node, function: Callable[..., Any], operands: Sequence[Any], settings: Mapping[str, Any]) -> Any:
    """The node that computes a function of layers."""
    kind = _LAYERS.get(function)
    if kind is not None and all(isinstance(each, Node) for each in operands):
        return kind()(*operands)
    if function is functions.cat:
        return Concate(concate_dim=settings.get("axis", 1))(*operands[0])
    if function is functions.split:
        x, axis, parts = operands
        given = {"num_slices": parts} if isinstance(parts, int) else {"sizes": tuple(parts)}
        count = parts if isinstance(parts, int) else len(parts)
        return tuple(Slice(slice_dim=axis, piece=i, **given)(x) for i in range(count))
    if function is functions.reshape:
        return Reshape(shape=tuple(operands[1])[1:])(operands[0])
    raise self.problem("a net combines layers with layers, by +, -, * and /")


Node._node_of = node_of  # type: ignore[method-assign]
