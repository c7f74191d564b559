"""Sequences of different lengths, filled up to the longest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

LENGTH = "length"
"""The column of the lengths, and the input layer that reads it."""


@dataclass(frozen=True)
class Padded:
    """x: (N, T, ...), in which sequence i has lengths[i] time steps, and zeros after them."""

    x: np.ndarray
    lengths: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    @classmethod
    def of(cls, sequences: Any, steps: int | None = None) -> Self:
        """Arrays (T_i, ...). steps: T, by default the longest of them. Raises ValueError."""
        arrays = [np.asarray(each) for each in sequences]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) != 1 or any(array.ndim < 1 or array.dtype.kind not in "biuf" for array in arrays):
            raise ValueError(f"X must hold sequences of numbers (steps, ...), with equal features: found {shapes}.")
        lengths = np.array([len(array) for array in arrays])
        if not lengths.all():
            raise ValueError(f"X[{int(np.argmin(lengths))}] has no time steps. Leave it out.")
        longest = int(lengths.max())
        if steps is not None and longest > steps:
            message = f"X[{int(np.argmax(lengths))}] has {longest} time steps, and those in fit at most {steps}"
            raise ValueError(f"{message}: cut it.")
        x = np.zeros((len(arrays), steps or longest, *shapes.pop()), np.result_type(*arrays))
        for row, array in zip(x, arrays, strict=True):
            row[: len(array)] = array
        return cls(x, lengths)


def is_ragged(x: Any) -> bool:
    """Whether x is a list of arrays of different lengths."""
    if not isinstance(x, list | tuple) and getattr(getattr(x, "dtype", None), "kind", "") != "O":
        return False
    arrays = getattr(x, "ndim", 1) == 1 and all(hasattr(each, "shape") and each.shape for each in x)
    return arrays and len({len(each) for each in x}) > 1
