"""Array creation and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Any, ClassVar

import numpy as np

Array = Any  # numpy.ndarray on the CPU, cupy.ndarray on a GPU
Bounds = tuple[float, float]
UNBOUNDED: Bounds = (-inf, inf)


def address_of(array: Array) -> int:
    """Where the memory of an array begins."""
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return interface["data"][0]


def on_host(array: Array) -> np.ndarray:
    """The array as one of NumPy's."""
    return array.get() if hasattr(array, "get") else array


class ArrayOps:
    """Array creation and matrix products over `self.xp`.

    sees_values: whether the host sees the values of arrays without waiting for the device. Otherwise layers look at
    labels and symbols in training only once a loss is NaN, which wrong ones make it.
    launches: whether what a call costs is mostly its launch on the device. Layers then do with fewer calls, and with
    more memory: those that add a bias compute the ReLU behind them too, and convolutions keep their columns.
    """

    sees_values: ClassVar[bool] = True
    launches: ClassVar[bool] = False
    xp: Any
    dtype: np.dtype

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        """An uninitialised array on the device, of `ops.dtype` by default."""
        return self.xp.empty(shape, self.dtype if dtype is None else dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any = None) -> Array:
        """An array of zeros on the device, of `ops.dtype` by default."""
        return self.xp.zeros(shape, self.dtype if dtype is None else dtype)

    def asarray(self, array: Any, dtype: Any = None) -> Array:
        """The array on the device, copied only if necessary; it keeps its dtype by default."""
        return self.xp.asarray(array, dtype)

    def to_host(self, array: Array) -> np.ndarray:
        """The array as a NumPy array, copied only if necessary."""
        return np.asarray(array)

    def floats(self, scalars: Array) -> list[float]:
        """Several scalars, or the elements of an array, on the host."""
        return [float(scalar) for scalar in scalars]

    def gemm(self, a: Array, b: Array, out: Array | None = None, accumulate: bool = False) -> Array:
        """out = a b, or out += a b.   a: (M, K), b: (K, N), transposed views or not -> out: (M, N), C-contiguous."""
        product = self.xp.multiply if a.shape[1] == 1 else self.xp.matmul  # BLAS takes long for a column times a row
        if accumulate:
            out += product(a, b)
            return out
        return product(a, b, out=out)

    def matmul(self, a: Array, b: Array) -> Array:
        """The products of equally many matrices.   a: (..., M, K), b: (..., K, N) -> (..., M, N)."""
        return self.xp.matmul(a, b)

    def affine(self, x: Array, w: Array, b: Array | None, out: Array | None = None) -> Array:
        """out = x w + b.   x: (B, I), w: (I, O), b: (O,) or None -> out: (B, O)."""
        out = self.gemm(x, w, out)
        if b is not None:
            out += b
        return out

    def add_bias(self, y: Array, b: Array, bounds: Bounds = UNBOUNDED) -> Array:
        """y += b, then cut to bounds.   y: (B, O), b: (O,)."""
        y += b
        return y if bounds == UNBOUNDED else self.xp.clip(y, *bounds, out=y)

    def add_bias_backward(
        self, y: Array, dy: Array, bounds: Bounds, out: Array, accumulate: bool = False, b: Array | None = None
    ) -> Array:
        """dy = 0 where y is not between the bounds, in place; out = the gradient of `add_bias` for b, or out += it.

        y: what `add_bias` has made; with b, what it would be of.
        """
        y = y if b is None else y + b
        dy *= (bounds[0] < y) & (y < bounds[1])
        return self.column_sums(dy, out, accumulate)

    def column_sums(self, x: Array, out: Array, accumulate: bool = False) -> Array:
        """out = sum over rows of x, or out += it.   x: (B, I) -> out: (I,)."""
        if accumulate:
            out += self.sum_rows(x, self.xp.empty_like(out))
            return out
        return self.sum_rows(x, out)

    def sum_rows(self, x: Array, out: Array) -> Array:
        """out = sum over rows of x, added up in the type of out.   x: (B, I) -> out: (I,)."""
        return self.xp.sum(x, axis=0, dtype=out.dtype, out=out)

    def join(self, pieces: Sequence[Array], out: Array) -> Array:
        """out = the pieces side by side.   Each (R, N_i) -> out: (R, sum of N_i)."""
        for piece, part in zip(pieces, _parts(pieces, out), strict=True):
            part[...] = piece
        return out

    def cut(self, x: Array, pieces: Sequence[Array]) -> None:
        """The inverse of `join`: fills the pieces."""
        for piece, part in zip(pieces, _parts(pieces, x), strict=True):
            piece[...] = part


def _parts(pieces: Sequence[Array], whole: Array) -> list[Array]:
    """The view of each piece in that of all of them."""
    ends = accumulate((piece.shape[1] for piece in pieces), initial=0)
    return [whole[:, start:stop] for start, stop in pairwise(ends)]
