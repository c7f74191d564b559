"""Arrays whose bias and ReLU are still to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from singa_dask.ops.arrays import Array, Bounds


@dataclass(frozen=True)
class Pending:
    """`Ops.add_bias` of an array (B, ..., C), which the reader computes as it reads the elements.

    Where calls are launches, a layer passes one on in place of its output. `im2col`, `max_pool`, `half_squares` and
    `softmax_cross_entropy` then read it as an array.
    """

    array: Array
    bias: Array
    bounds: Bounds

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def flags(self) -> Any:
        return self.array.flags

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: slice) -> Pending:
        return Pending(self.array[rows], self.bias, self.bounds)

    def reshape(self, *shape: int) -> Pending:
        """In a shape with as many channels."""
        return Pending(self.array.reshape(*shape), self.bias, self.bounds)


def settled(x: Any, ops: Any) -> Array:
    """What x stands for; x itself if it is an array."""
    if not isinstance(x, Pending):
        return x
    y = x.array.copy()
    ops.add_bias(y.reshape(-1, y.shape[-1]), x.bias, x.bounds)
    return y
