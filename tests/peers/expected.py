"""PyTorch's numbers: what is kept of them, and how far others are from them.

Of each array its size, norm, sum, and up to eight elements at drawn places are kept in float64, and the norm of the
difference between PyTorch's own float32 and its float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
