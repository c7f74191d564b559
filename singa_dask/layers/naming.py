"""The module that is being called, and the names that its layers and tensors have in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from singa_dask.tensors.tensor import Tensor

# The outermost module that is being called, and its layers.
_called: ContextVar[tuple[Any, dict[int, tuple[str, Any]]] | None] = ContextVar("module", default=None)


@contextmanager
def calling(module: Any) -> Iterator[bool]:
    """Inside, each call of a layer makes a node of the net, named as the outermost module's `named` says, and
    tensors that are parameters are named after their attributes. Yields whether this is the outermost module."""
    outermost = _called.get() is None
    token = None
    if outermost:
        token = _called.set((module, {}))
        name_again()
    try:
        yield outermost
    finally:
        if token is not None:
            _called.reset(token)


def name_again() -> None:
    """Name the parts that the outermost module that is being called has now."""
    if called := _called.get():
        module, names = called
        names.update(module.named())
        for name, part in names.values():
            if isinstance(part, Tensor) and part.param is not None:
                part.param.name = name


def called_module() -> Any:
    """The outermost module that is being called, or None."""
    return (_called.get() or (None,))[0]


def layers_around(layer: Any) -> list[Any]:
    """The layers of the outermost module that is being called, if this is one of them."""
    _, names = _called.get() or (None, {})
    return [part for _, part in names.values() if not isinstance(part, Tensor)] if id(layer) in names else []


def check_attribute(layer: Any, params: Collection[Any]) -> None:
    """Raise ConfigError if a module is being called, and a layer with parameters is not one of its layers."""
    called = _called.get()
    if params and called is not None and id(layer) not in called[1] and layer.template is None:
        kind = type(layer).__name__
        message = f"has parameters and is called in the forward of {type(called[0]).__name__}, but is not an attribute"
        name = layer.name or kind.lower()
        hint = f"Create it in __init__: self.{name} = {kind}(...). Lists and dicts may hold it too."
        raise layer.problem(message, repr(layer), hint)


def tensor_name(tensor: Tensor) -> str:
    """The name of a tensor in the outermost module that is being called; "" if it is none of its parameters."""
    _, names = _called.get() or (None, {})
    return names[id(tensor)][0] if id(tensor) in names else ""


def node_name(layer: Any) -> str:
    """The name of a layer in the outermost module that is being called, or else its own."""
    _, names = _called.get() or (None, {})
    return names[id(layer)][0] if id(layer) in names else layer.name
