"""Functions over axes.   axis: a number, several, or None for all; keepdims: whether they stay, with size 1."""

from __future__ import annotations

from math import prod
from typing import Any

from singa_dask.functions.elementwise import div, equal, exp, mul, sub
from singa_dask.functions.primitive import Primitive, function
from singa_dask.functions.shapes import broadcast_to, reshape


def _kept(dy: Any, x: Any, axis: Any, *, keepdims: bool) -> Any:
    """The gradient of a reduction, with the reduced axes of size 1."""
    return dy if keepdims else reshape(dy, _reduced(x.shape, axis))


def _reduced(shape: tuple[int, ...], axis: Any) -> tuple[int, ...]:
    gone = _axes(axis, len(shape))
    return tuple(1 if i in gone else size for i, size in enumerate(shape))


def _axes(axis: Any, count: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(count))
    return tuple(each % count for each in (axis if isinstance(axis, tuple | list) else (axis,)))


def _logsumexp(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    axis = _axes(axis, x.ndim)
    largest = xp.max(x, axis=axis, keepdims=True)
    largest = xp.where(xp.isfinite(largest), largest, 0)
    y = xp.log(xp.sum(xp.exp(x - largest), axis=axis, keepdims=True)) + largest
    return y if keepdims else y.reshape([size for i, size in enumerate(x.shape) if i not in axis])


def _reduction(name: str, doc: str, of: str, vjp: Any) -> Primitive:
    def forward(xp: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return getattr(xp, of)(x, axis=None if axis is None else _axes(axis, x.ndim), keepdims=keepdims)

    return Primitive(name, doc, forward, vjp)


def _spread(dy: Any, y: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return broadcast_to(_kept(dy, x, axis, keepdims=keepdims), x.shape)


def _of_extremum(dy: Any, y: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Equal shares for those that are the largest, or smallest."""
    those = equal(x, _kept(y, x, axis, keepdims=keepdims))
    return mul(those, div(_kept(dy, x, axis, keepdims=keepdims), sum(those, axis=axis, keepdims=True)))


def _of_logsumexp(dy: Any, y: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return mul(_kept(dy, x, axis, keepdims=keepdims), exp(sub(x, _kept(y, x, axis, keepdims=keepdims))))


sum = _reduction("sum", "The sum.", "sum", _spread)
max = _reduction("max", "The largest; equal ones share the gradient.", "max", _of_extremum)
min = _reduction("min", "The smallest; equal ones share the gradient.", "min", _of_extremum)
logsumexp = Primitive("logsumexp", "log of the sum of exp(x), without overflow.", _logsumexp, _of_logsumexp)


@function
def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The mean."""
    count = prod(x.shape[each] for each in _axes(axis, len(x.shape)))
    return div(sum(x, axis=axis, keepdims=keepdims), count)


@function
def var(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The mean squared distance to the mean."""
    away = sub(x, mean(x, axis=axis, keepdims=True))
    return mean(mul(away, away), axis=axis, keepdims=keepdims)


def _log_softmax(xp: Any, x: Any, axis: Any = -1) -> Any:
    away = x - xp.max(x, axis=axis, keepdims=True)
    return away - xp.log(xp.sum(xp.exp(away), axis=axis, keepdims=True))


def _softmax(xp: Any, x: Any, axis: Any = -1) -> Any:
    y = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return y / xp.sum(y, axis=axis, keepdims=True)


log_softmax = Primitive(
    "log_softmax",
    "log softmax(x), without overflow.",
    _log_softmax,
    lambda dy, y, x, axis=-1: sub(dy, mul(exp(y), sum(dy, axis=axis, keepdims=True))),
)
softmax: Primitive = Primitive(
    "softmax",
    "exp(x) / sum exp(x), over the last axis or the given ones.",
    _softmax,
    lambda dy, y, x, axis=-1: mul(y, sub(dy, sum(mul(dy, y), axis=axis, keepdims=True))),
)


def fitted(gradient: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of what was broadcast, summed over the axes along which it was repeated."""
    if tuple(gradient.shape) == tuple(shape):
        return gradient
    more = len(gradient.shape) - len(shape)
    axes = (*range(more), *(i + more for i, size in enumerate(shape) if size == 1 and gradient.shape[i + more] != 1))
    summed = sum(gradient, axis=axes, keepdims=True) if axes else gradient
    return reshape(summed, shape) if prod(summed.shape) == prod(shape) else broadcast_to(summed, shape)
