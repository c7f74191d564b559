"""PyTorch's numbers: what is kept of them, and how far others are from them.

Of each array its size, norm, sum, and up to eight elements at drawn places are kept in float64, and the norm of the
difference between PyTorch's own float32 and its float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from peers import drawn

FILE = Path(__file__).with_name("pytorch.npz")
Arrays = Mapping[str, np.ndarray]


def sketch(net: str, name: str, array: np.ndarray) -> np.ndarray:
    """Its norm, its sum, its elements at the places drawn for it."""
    flat = np.asarray(array, np.float64).reshape(-1)
    return np.concatenate([[np.linalg.norm(flat), flat.sum()], flat[drawn.places(net, name, flat.size)]])


def summary(net: str, losses: np.ndarray, gradients: Arrays, state: Arrays, single: list[Arrays]) -> Arrays:
    """What is kept of a net. single: gradients and state in float32."""
    found = {"losses": losses}
    for kind, arrays, rounded in (("gradients", gradients, single[0]), ("state", state, single[1])):
        found[f"{kind}/names"] = np.array(list(arrays))
        found[f"{kind}/sketches"] = np.concatenate([sketch(net, name, array) for name, array in arrays.items()])
        off = [np.linalg.norm(rounded[name] - array) for name, array in arrays.items()]
        found[f"{kind}/sizes"], found[f"{kind}/off"] = (
            np.array([array.size for array in arrays.values()]),
            np.array(off),
        )
    return found


class Kept(NamedTuple):
    """What is kept of an array: its name in PyTorch, its size, how far their float32 is from it, and its sketch."""

    name: str
    size: int
    off: float
    sketch: np.ndarray

    @property
    def norm(self) -> float:
        return float(self.sketch[0])


@cache
def numbers() -> Arrays:
    with np.load(FILE) as arrays:
        return dict(arrays)


def losses(net: str) -> np.ndarray:
    return numbers()[f"{net}/losses"]


def kept(net: str, kind: str) -> Iterator[Kept]:
    """Of each array of a net; kind: gradients or state."""
    names, sizes, off, sketches = (numbers()[f"{net}/{kind}/{what}"] for what in ("names", "sizes", "off", "sketches"))
    pieces = np.split(sketches, np.cumsum(np.minimum(8, sizes) + 2)[:-1])
    for name, size, distance, piece in zip(names, sizes, off, pieces, strict=True):
        yield Kept(str(name), int(size), float(distance), piece)


def distances(net: str, kind: str, found: Arrays) -> tuple[float, float]:
    """How far arrays are from PyTorch's float64, and how far its float32 is: the root of the sum of squared relative
    distances. Ours is estimated from the elements that are kept.

    Arrays that are small beside the others are compared with the others: a gradient may be rounding alone.
    """
    every = list(kept(net, kind))
    usual = (sum(each.norm**2 for each in every) / sum(each.size for each in every)) ** 0.5
    ours = theirs = 0.0
    for each in every:
        scale = max(each.norm, 0.1 * usual * each.size**0.5)
        apart = sketch(net, each.name, found[each.name]) - each.sketch
        elements = np.linalg.norm(apart[2:]) * (each.size / len(apart[2:])) ** 0.5
        ours += (max(elements, abs(apart[0])) / scale) ** 2
        theirs += (each.off / scale) ** 2
    return ours**0.5, theirs**0.5
