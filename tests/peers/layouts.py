"""Where PyTorch keeps the parameters of our layers: names and axes, by type of layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np
from peers.drawn import initial

from singa_dask.layers import Layer

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """Where a parameter is. theirs: the name behind that of the layer. axes: of theirs, in our order. joined: how many
    of their axes lie in each axis of their array. part: which of `parts` equal parts of their first axis ours is."""

    theirs: str
    axes: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()
    part: int = 0
    parts: int = 1


_SCALED = {"scale": Layout("weight"), "bias": Layout("bias")}
_WINDOW = {"weight": Layout("weight", (2, 3, 1, 0)), "bias": Layout("bias")}
_OF_IMAGES = Layout("weight", (2, 3, 1, 0), (1, 3))  # (H, W, C, out)
# Our gates in the order in which they have them.
_GATES = {"kRNN": ("",), "kGRU": ("r", "z", "c"), "kLSTM": ("i", "f", "g", "o")}


def _recurrent(gates: tuple[str, ...]) -> dict[str, Layout]:
    kinds = {"hx": "weight_ih_l0", "hh": "weight_hh_l0", "b": "bias_ih_l0"}  # we have one bias a gate
    return {
        f"{gate}_{own}".lstrip("_"): Layout(theirs, part=i, parts=len(gates))
        for own, theirs in kinds.items()
        for i, gate in enumerate(gates)
    }


# Type -> role of the parameter -> where it is.
LAYOUTS: Mapping[str, Mapping[str, Layout]] = {
    "kInnerProduct": {"weight": Layout("weight", (1, 0)), "bias": Layout("bias")},
    "kConvolution": _WINDOW,  # (H, W, in, out)
    "kTransposedConvolution": _WINDOW,  # (H, W, out, in)
    "kBM": {**_SCALED, "mean": Layout("running_mean"), "var": Layout("running_var")},
    "kLayerNorm": _SCALED,
    "kGroupNorm": _SCALED,
    "kEmbedding": {"table": Layout("weight")},
    "kPositionalEmbedding": {"table": Layout("weight")},
    "kClassToken": {"token": Layout("")},  # a tensor that is a parameter itself
    "kAttention": {
        "weight": Layout("in_proj_weight", (3, 0, 1, 2), (3, 1)),  # (in, 3, heads, d)
        "bias": Layout("in_proj_bias", (0, 1, 2), (3,)),
        "output_weight": Layout("out_proj.weight", (1, 2, 0), (1, 2)),  # (heads, d, out)
        "output_bias": Layout("out_proj.bias"),
    },
    **{kind: _recurrent(gates) for kind, gates in _GATES.items()},
}


class Place(NamedTuple):
    """One of our parameters, and where it is. own: its shape, before axes are joined."""

    ours: str
    theirs: str
    layout: Layout
    own: Shape

    @property
    def shape(self) -> Shape:
        """Of their array."""
        axes, groups = iter(self._whole), self.layout.joined or (1,) * len(self.own)
        first, *rest = [prod(islice(axes, count)) for count in groups]
        return (first * self.layout.parts, *rest)

    @property
    def _whole(self) -> Shape:
        """Of their part, before axes are joined."""
        axes = self.layout.axes
        return tuple(self.own[axes.index(axis)] for axis in range(len(axes))) if axes else self.own

    def taken(self, theirs: np.ndarray) -> np.ndarray:
        """Ours, from their array."""
        array = np.split(theirs, self.layout.parts)[self.layout.part].reshape(self._whole)
        return np.ascontiguousarray(array.transpose(self.layout.axes) if self.layout.axes else array)

    def given(self, ours: np.ndarray) -> np.ndarray:
        """Their part of the array."""
        array = ours.reshape(self.own)
        array = array.transpose(np.argsort(self.layout.axes)) if self.layout.axes else array
        return array.reshape(self.shape[0] // self.layout.parts, *self.shape[1:])


def places(named: Iterable[tuple[str, Any]], shapes: Mapping[str, Shape], images: Mapping[str, Shape]) -> list[Place]:
    """Where the parameters of a module are. named: its layers and tensors; shapes: of its parameters, by name. images:
    the shape (H, W, C) of what an InnerProduct reads, by layer. A layer x_reverse is the second one of a bidirectional
    layer x."""
    found = []
    for name, part in named:
        if not isinstance(part, Layer):  # a tensor that is a parameter itself
            found.append(Place(name, name, Layout(name), shapes[name]))
            continue
        for role, layout in LAYOUTS.get(part.type, {"factor": Layout("factor")}).items():
            if (ours := f"{name}_{role}") not in shapes:
                continue
            own, theirs = shapes[ours], f"{name}.{layout.theirs}".rstrip(".")
            if name.endswith("_reverse"):
                theirs = f"{name.removesuffix('_reverse')}.{layout.theirs}_reverse"
            if role == "weight" and name in images:
                own, layout = (*images[name], own[-1]), _OF_IMAGES
            if role == "token":
                own = (1, *own)
            found.append(Place(ours, theirs, layout, own))
    return found


def drawn(net: str, places: Iterable[Place], shapes: Mapping[str, Shape]) -> dict[str, np.ndarray]:
    """Our initial parameters, by name."""
    return {p.ours: p.taken(initial(net, p.theirs, p.shape)).reshape(shapes[p.ours]) for p in places}


def as_theirs(places: Iterable[Place], state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our parameters as they have them."""
    found: dict[str, dict[int, np.ndarray]] = {}
    for place in places:
        found.setdefault(place.theirs, {})[place.layout.part] = place.given(state[place.ours])
    return {name: np.concatenate([parts[i] for i in sorted(parts)]) for name, parts in found.items()}
