"""Functions that move elements."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from singa_dask.errors import DataError
from singa_dask.functions.primitive import Primitive, function, library

_Shape = tuple[int, ...]
IMAGES = (4, 5)  # axes of images and volumes, (B, C, ...)


def as_images(array: Any) -> Any:
    """The view with the channels second of images that have them last; other arrays as they are."""
    return array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1)) if array.ndim in IMAGES else array


def channels_last(array: Any) -> Any:
    """The inverse of `as_images`."""
    return array.transpose(0, *range(2, array.ndim), 1) if array.ndim in IMAGES else array


def _scatter(xp: Any, dy: Any, *arrays: Any, index: Any, shape: _Shape) -> Any:
    """Zeros of this shape, to which dy is added at the index."""
    x = xp.zeros(shape, dy.dtype)
    where = _filled(index, arrays)
    if arrays:
        xp.add.at(x, where, dy)
    else:
        x[where] = dy
    return x


def _filled(index: Any, arrays: Any) -> Any:
    """The index, with the arrays in the places of _Place."""
    rest = iter(arrays)
    return tuple(next(rest) if each is _PLACE else each for each in index)


_PLACE = "array"  # where an array was in an index

_getitem: Primitive = Primitive(
    "getitem",
    "The elements at an index.",
    lambda xp, x, *arrays, index: x[_filled(index, arrays)],
    lambda dy, y, x, *arrays, index: scatter(dy, *arrays, index=index, shape=x.shape),
    real=False,
)
scatter: Primitive = Primitive(
    "scatter",
    "Zeros of this shape, to which dy is added at the index.",
    _scatter,
    lambda dy, y, x, *arrays, index, shape: _getitem(dy, *arrays, index=index),
    real=False,
)
broadcast_to: Primitive = Primitive(
    "broadcast_to",
    "x, repeated to a shape.",
    lambda xp, x, shape: xp.broadcast_to(x, shape),
    lambda dy, y, x, shape: dy,
    real=False,
)
_reshape: Primitive = Primitive(
    "reshape",
    "",
    lambda xp, x, shape: xp.reshape(x, shape),
    lambda dy, y, x, shape: _reshape(dy, shape=x.shape),
    real=False,
)
_transpose: Primitive = Primitive(
    "transpose",
    "",
    lambda xp, x, axes: xp.transpose(x, axes),
    lambda dy, y, x, axes: _transpose(dy, axes=tuple(int(i) for i in np.argsort(axes))),
    real=False,
)


def _piece(position: int, dy: Any, y: Any, *xs: Any, axis: int = 0) -> Any:
    """The part of dy that belongs to one of the arrays."""
    start = sum(x.shape[axis] for x in xs[:position])
    cut = [slice(None)] * len(y.shape)
    cut[axis] = slice(start, start + xs[position].shape[axis])
    return getitem(dy, tuple(cut))


def _joined(xp: Any, *xs: Any, axis: int) -> Any:
    """In the order of the axes that the first array has in memory: of images, the channels stay last."""
    order = sorted(range(xs[0].ndim), key=lambda i: -xs[0].strides[i])
    joined = xp.concatenate([x.transpose(order) for x in xs], axis=order.index(axis % len(order)))
    return joined.transpose(sorted(range(len(order)), key=order.__getitem__))


_concatenate: Primitive = Primitive("concatenate", "", _joined, of_any=_piece, real=False)
_pad: Primitive = Primitive(
    "pad",
    "",
    lambda xp, x, widths, value: xp.pad(x, widths, constant_values=value),
    lambda dy, y, x, widths, value: getitem(
        dy, tuple(slice(low, low + size) for (low, _), size in zip(widths, x.shape, strict=True))
    ),
    real=False,
)


@function
def getitem(x: Any, index: Any) -> Any:
    """x[index], of slices, numbers, None, ... and arrays of integers or of booleans, as NumPy has it."""
    parts = index if isinstance(index, tuple) else (index,)
    arrays = [_as_index(each) for each in parts if _is_array(each)]
    return _getitem(x, *arrays, index=tuple(_PLACE if _is_array(each) else each for each in parts))


def _is_array(part: Any) -> bool:
    return isinstance(part, list) or (hasattr(part, "shape") and part.shape != ())


def _as_index(part: Any) -> Any:
    return np.asarray(part) if isinstance(part, list) else part


@function
def reshape(x: Any, shape: Any) -> Any:
    """The elements of x in another shape, of which one size may be -1."""
    return _reshape(x, shape=tuple(int(size) for size in shape))


@function
def flatten(x: Any) -> Any:
    """x as rows of features; of tensors of images, (B, C, H, W), the channels of each position follow each other."""
    if hasattr(x, "_recorded") and len(x.shape) in IMAGES:
        x = transpose(x, (0, *range(2, len(x.shape)), 1))
    return reshape(x, (x.shape[0], -1))


@function
def transpose(x: Any, axes: Any = None) -> Any:
    """x with its axes in another order; by default reversed."""
    count = len(x.shape)
    return _transpose(x, axes=tuple(axis % count for axis in (range(count - 1, -1, -1) if axes is None else axes)))


@function
def swapaxes(x: Any, first: int, second: int) -> Any:
    """x with two of its axes exchanged."""
    axes = list(range(len(x.shape)))
    axes[first], axes[second] = axes[second], axes[first]
    return transpose(x, axes)


@function
def expand_dims(x: Any, axis: int) -> Any:
    """x with one more axis, of size 1."""
    shape = list(x.shape)
    shape.insert(axis % (len(shape) + 1), 1)
    return reshape(x, shape)


@function
def squeeze(x: Any, axis: Any = None) -> Any:
    """x without axes of size 1: all of them, or the given ones."""
    count = len(x.shape)
    given = range(count) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
    gone = {each % count for each in given if axis is not None or x.shape[each] == 1}
    if any(x.shape[each] != 1 for each in gone):
        raise DataError(f"squeeze: axis {axis} of shape {tuple(x.shape)} has not size 1")
    return reshape(x, [size for i, size in enumerate(x.shape) if i not in gone])


@function
def concatenate(xs: Any, axis: int = 0) -> Any:
    """The arrays one after the other along an axis."""
    return _concatenate(*xs, axis=axis)


@function
def cat(xs: Any, axis: int = 1) -> Any:
    """As `concatenate`, by default along the second axis."""
    return concatenate(xs, axis)


@function
def stack(xs: Any, axis: int = 0) -> Any:
    """The arrays along a new axis."""
    return concatenate([expand_dims(x, axis) for x in xs], axis)


@function
def split(x: Any, axis: int, parts: Any) -> Any:
    """A tuple of pieces along an axis. parts: their sizes, or a number of equal pieces, of which the last one also has
    the remainder."""
    return tuple(getitem(x, cut) for cut in _cuts(x.shape, axis, parts))


@function
def piece(x: Any, axis: int, parts: Any, number: int) -> Any:
    """One of the pieces of `split`."""
    return split(x, axis, parts)[number]


def _cuts(shape: _Shape, axis: int, parts: Any) -> list[tuple[slice, ...]]:
    size, before = shape[axis], (slice(None),) * (axis % len(shape))
    sizes = [size // parts] * (parts - 1) if isinstance(parts, int) else list(parts)
    if isinstance(parts, int):
        sizes.append(size - sum(sizes))
    if sum(sizes) != size or min(sizes, default=0) < 1:
        raise DataError(f"split: pieces of sizes {sizes} do not make up axis {axis} of size {size}")
    return [(*before, slice(start, stop)) for start, stop in pairwise([0, *accumulate(sizes)])]


@function
def pad(x: Any, widths: Any, value: float = 0) -> Any:
    """x with elements of one value around it. widths: for each axis how many before and behind, or one number."""
    pairs = [(widths, widths)] * len(x.shape) if isinstance(widths, int) else [tuple(pair) for pair in widths]
    return _pad(x, widths=tuple(pairs), value=value)


@function
def take(x: Any, indices: Any, axis: int = 0) -> Any:
    """The elements of x at these positions of an axis, as rows of a table."""
    return getitem(x, (*(slice(None),) * (axis % len(x.shape)), indices))


@function
def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    """x[..., indices, ...]: at each place of the other axes, the elements at the positions that stand there."""
    axis, xp = axis % len(x.shape), library((getattr(x, "array", x),))
    others = [
        xp.arange(size).reshape([-1 if i == other else 1 for i in range(len(x.shape))])
        for other, size in enumerate(x.shape)
    ]
    return getitem(x, tuple(indices if i == axis else each for i, each in enumerate(others)))


@function
def one_hot(x: Any, depth: int) -> Any:
    """1 at the position that each integer tells, else 0.   (...) -> (..., depth); it has no gradient."""
    return _one_hot(x, depth=depth)


_one_hot: Primitive = Primitive(
    "one_hot", "", lambda xp, x, depth: (x[..., None] == xp.arange(depth)).astype(np.float32), real=False
)
