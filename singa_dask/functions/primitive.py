"""What a function is: of arrays, of tensors, which remember it, and of layers of a net, which it joins to a node."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from singa_dask.errors import DataError

_PLAIN = frozenset({np.ndarray, np.float32, np.float64, float, int, bool})
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Primitive:
    """A function of arrays, and its gradients, which are written as functions too.

    forward(xp, *x, **settings): of arrays. vjps: for each operand a function (dy, y, *x, **settings) that gives its
    gradient, None for one that has none. A gradient may have the shape to which its operand was broadcast. of_any: one
    function (position, dy, y, *x, **settings) for any number of operands instead. real: whether integers become
    real before it. Tensors have a method `_recorded`, and layers of a net have `_node_of`.
    """

    def __init__(
        self,
        name: str,
        doc: str,
        forward: Callable[..., Any],
        *vjps: Callable[..., Any] | None,
        of_any: Callable[..., Any] | None = None,
        real: bool = True,
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = doc
        self.forward, self.real = forward, real
        self._vjps, self._of_any = vjps, of_any
        self.differentiable = of_any is not None or any(vjps)

    def vjp(self, position: int) -> Callable[..., Any] | None:
        """What gives the gradient of an operand."""
        if self._of_any is not None:
            return functools.partial(self._of_any, position)
        return self._vjps[position] if position < len(self._vjps) else None

    def __call__(self, *operands: Any, **settings: Any) -> Any:
        if _PLAIN.issuperset(map(type, operands)):  # the quickest test
            return self.computed(np, operands, operands, settings)
        for each in operands:
            if hasattr(each, "_recorded"):
                return each._recorded(self, operands, settings)
            if hasattr(each, "_node_of"):
                return each._node_of(self, operands, settings)
        return self.computed(library(operands), operands, operands, settings)

    def computed(self, xp: Any, arrays: Sequence[Any], operands: Sequence[Any], settings: dict[str, Any]) -> Any:
        """Of arrays. Raises DataError that names the shapes of the operands if they do not fit."""
        try:
            return self.forward(xp, *arrays, **settings)
        except (ValueError, TypeError, IndexError) as error:
            shapes = " and ".join(str(tuple(getattr(each, "shape", ()))) for each in operands)
            told = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise DataError(f"{self} of {shapes}{told and f', {told}'}: {error} ({line_of_user()})") from error

    def __repr__(self) -> str:
        return self.__name__


def function(of: Callable[..., Any]) -> Callable[..., Any]:
    """A function of functions. Of layers of a net it makes one node."""

    @functools.wraps(of)
    def called(*operands: Any, **settings: Any) -> Any:
        for each in operands:
            for one in each if isinstance(each, list | tuple) else (each,):
                if hasattr(one, "_node_of"):
                    return one._node_of(called, operands, settings)
        return of(*operands, **settings)

    return called


def library(operands: Sequence[Any]) -> Any:
    """NumPy, or CuPy where an array is CuPy's."""
    if any(hasattr(each, "__cuda_array_interface__") for each in operands):
        import cupy

        return cupy
    return np


def line_of_user() -> str:
    """The line outside this package that called it, as "file:line"; or ""."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
