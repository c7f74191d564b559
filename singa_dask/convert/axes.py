"""Arrays whose axes are turned, joined and split as a text says, for example "O (C *) -> (* C) O".

A name is an axis; names in parentheses are axes that lie in one. * stands for the axes of positions, such as height
and width; a number is an axis of that size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import numpy as np

from singa_dask.layers.partition import Shape


class Turn(NamedTuple):
    """An array there and here: for each axis of the array, the names of those that lie in it. sizes: by name."""

    there: list[list[str]]
    here: list[list[str]]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, text: str, shape: Shape, known: dict[str, int], positions: int) -> Turn:
        """shape: of the array here. known: sizes of axes, as far as `shape` does not tell them. positions: how many
        axes * stands for: "*0", "*1", ..."""
        stars = " ".join(f"*{i}" for i in range(positions))
        sides = [re.findall(r"\(([^)]*)\)|(\S+)", side) for side in text.replace("*", stars).split("->")]
        there, here = ([(joined or single).split() for joined, single in side] for side in sides)
        sizes = {axis: int(axis) for group in here for axis in group if axis.isdigit()} | known
        for group, size in zip(here, shape, strict=True):
            rest = size // prod(sizes[axis] for axis in group if axis in sizes)
            sizes |= {axis: rest for axis in group if axis not in sizes}
        return cls(there, here, sizes)

    @property
    def shape_there(self) -> Shape:
        return _shape(self.there, self.sizes)

    def to_here(self, array: np.ndarray) -> np.ndarray:
        """An array of shape `shape_there`, as it is here."""
        return _turned(array, self.there, self.here, self.sizes)

    def to_there(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `to_here`."""
        return _turned(array, self.here, self.there, self.sizes)


def _shape(groups: list[list[str]], sizes: Mapping[str, int]) -> Shape:
    return tuple(prod(sizes[axis] for axis in group) for group in groups)


def _turned(
    array: np.ndarray, before: list[list[str]], after: list[list[str]], sizes: Mapping[str, int]
) -> np.ndarray:
    split = [axis for group in before for axis in group]
    order = [split.index(axis) for group in after for axis in group]
    return array.reshape([sizes[axis] for axis in split]).transpose(order).reshape(_shape(after, sizes))
