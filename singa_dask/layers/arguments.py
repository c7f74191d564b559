"""The arguments of a function in a net, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from numbers import Real
from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, Problem
from singa_dask.functions import elementwise, products, reductions, shapes
from singa_dask.functions.primitive import Primitive
from singa_dask.layers.naming import tensor_name
from singa_dask.tensors.tensor import FunctionCall, Tensor


class Arguments:
    """Arguments that are written one after the other.

    nodes: the layers among them, in order. parameters: the tensors among them that are parameters of a Module itself,
    by name; calls: what was computed from these, sources first.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.parameters: dict[str, Tensor] = {}
        self.calls: list[dict[str, Any]] = []
        self._numbers: dict[Any, int] = {}

    def written(self, value: Any) -> Any:
        """An argument as JSON; layers become {"source": their number}. Raises ConfigError for what cannot be."""
        if hasattr(value, "_node_of"):
            self.nodes.append(value)
            return {"source": len(self.nodes) - 1}
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, slice):
            return {"slice": [value.start, value.stop, value.step]}
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, tuple):
            return {"tuple": [self.written(each) for each in value]}
        if isinstance(value, list):
            return [self.written(each) for each in value]
        if isinstance(value, np.ndarray):
            return {"array": value.tolist(), "dtype": value.dtype.str}
        if value is None or isinstance(value, str | bool | Real):
            return value.item() if isinstance(value, np.generic) else value
        hint = "Give numbers, text, arrays, layers, and tensors that are parameters of the Module."
        raise _problem("cannot be written into a net", value, hint)

    def _tensor(self, tensor: Tensor) -> Any:
        call: Any = tensor.call
        if tensor.param is not None:
            name = tensor_name(tensor)
            if not name:
                hint = "Make it in __init__ and keep it: self.scale = Tensor(data=..., stores_grad=True)."
                raise _problem("is a parameter, but no attribute of the Module that is called", tensor, hint)
            self.parameters[name] = tensor
            return {"parameter": list(self.parameters).index(name)}
        if call is None:
            return self.written(tensor.device.ops.to_host(tensor.array))
        if not isinstance(call, FunctionCall):
            return self._tensor(call.by_formula())
        if call not in self._numbers:
            operands = [self.written(each) for each in call.operands]
            settings = {key: self.written(value) for key, value in call.settings.items()}
            self._numbers[call] = len(self.calls)
            self.calls.append({"function": str(call.primitive), "operands": operands, "settings": settings})
        return {"call": self._numbers[call]}


def read(value: Any, sources: Sequence[Any] = (), parameters: Sequence[Any] = (), calls: Sequence[Any] = ()) -> Any:
    """The argument that was written. calls: what the calls have given."""
    if isinstance(value, list):
        return [read(each, sources, parameters, calls) for each in value]
    if not isinstance(value, dict):
        return value
    for key, of in (("source", sources), ("parameter", parameters), ("call", calls)):
        if key in value:
            return of[value[key]]
    if "slice" in value:
        return slice(*value["slice"])
    if "ellipsis" in value:
        return Ellipsis
    if "array" in value:
        return np.array(value["array"], value["dtype"])
    return tuple(read(each, sources, parameters, calls) for each in value["tuple"])


def called(calls: Sequence[Any], parameters: Sequence[Any]) -> list[Any]:
    """What the calls give."""
    found: list[Any] = []
    for call in calls:
        settings = {key: read(value) for key, value in call["settings"].items()}
        found.append(_primitive(call["function"])(*read(call["operands"], (), parameters, found), **settings))
    return found


@cache
def _primitive(name: str) -> Primitive:
    every = (each for module in (elementwise, products, reductions, shapes) for each in vars(module).values())
    return next(each for each in every if isinstance(each, Primitive) and each.__name__ == name)


def _problem(message: str, received: Any, hint: str) -> ConfigError:
    return ConfigError(Problem("an argument of a function", message, repr(received), hint))
