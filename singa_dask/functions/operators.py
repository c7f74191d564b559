"""Python's operators, as functions."""

from __future__ import annotations

from numbers import Real
from typing import Any

from singa_dask.functions.elementwise import (
    abs,
    add,
    div,
    greater,
    greater_equal,
    less,
    less_equal,
    mul,
    negative,
    power,
    sub,
)
from singa_dask.functions.products import matmul
from singa_dask.functions.shapes import getitem


def is_operand(value: Any) -> bool:
    """Whether functions compute with it: a number, an array, a tensor, or a layer of a net."""
    return isinstance(value, Real | list) or hasattr(value, "shape") or hasattr(value, "_node_of")


def _forth(of: Any) -> Any:
    return lambda self, other: of(self, other) if is_operand(other) else NotImplemented


def _back(of: Any) -> Any:
    return lambda self, other: of(other, self) if is_operand(other) else NotImplemented


class Operators:
    """a + b, a - b, a * b, a / b, a ** b, a @ b, -a, +a, abs(a), a[index], and comparisons; == and != are those of the
    class."""

    __array_ufunc__ = None  # so that NumPy's numbers leave a + b to this class

    __add__, __radd__ = _forth(add), _back(add)
    __sub__, __rsub__ = _forth(sub), _back(sub)
    __mul__, __rmul__ = _forth(mul), _back(mul)
    __truediv__, __rtruediv__ = _forth(div), _back(div)
    __pow__, __rpow__ = _forth(power), _back(power)
    __matmul__, __rmatmul__ = _forth(matmul), _back(matmul)
    __gt__, __ge__, __lt__, __le__ = _forth(greater), _forth(greater_equal), _forth(less), _forth(less_equal)

    def __getitem__(self, index: Any) -> Any:
        return getitem(self, index)

    def __neg__(self) -> Any:
        return negative(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return abs(self)
