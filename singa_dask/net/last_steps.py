"""Where a net goes on with the last time step alone, and what would mean something else for all steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from singa_dask.errors import ConfigError
from singa_dask.job.unroll import origin
from singa_dask.layers import Add, Attention, Div, Lambda, LastStep, Max, Mul, Sub
from singa_dask.layers.base import Layer

_COMBINE = (Add, Div, Max, Mul, Sub)


class Last(NamedTuple):
    """The layer over time of which the last step is read, and its steps."""

    layer: str
    steps: int


def last_step(layer: Layer, found: Mapping[str, Last], layers: Mapping[str, Layer], shapes: Sequence[Any]) -> Any:
    """What the layer's output is the last step of; None if of nothing. found: of the layers before; shapes: of its
    sources.

    Raises ConfigError if the layer combines a last step with all steps of a sequence, or computes something else
    than it would for all steps, as a training loop does.
    """
    if isinstance(layer, LastStep):
        return Last(layer.proto.srclayers[0], layer.steps)
    if layer.steps > 1 or layer.proto.num_instances > 1:
        return None
    read = {i: last for i, name in enumerate(layer.proto.srclayers) if (last := _read(name, found, layers))}
    if not read:
        return None
    whole = [j for j, shape in enumerate(shapes) if j not in read and len(shape) > min(len(shapes[i]) for i in read)]
    if isinstance(layer, _COMBINE) and whole:
        raise _problem(layer, read, f"and combines it with all steps of {layer.proto.srclayers[whole[0]]!r}", layers)
    steps = {i: last.steps for i, last in read.items() if len(shapes[i]) == 1}
    if isinstance(layer, Lambda) and steps and layer.needs_steps(shapes, steps):
        raise _problem(layer, read, "but its function of all steps gives something else there", layers)
    return read.get(0) if layer.rowwise else None


def _read(name: str, found: Mapping[str, Last], layers: Mapping[str, Layer]) -> Last | None:
    proto = layers[name].proto  # of an unrolled net, the last instance
    return Last(origin(proto), proto.num_instances) if proto.num_instances > 1 else found.get(name)


def _problem(layer: Layer, read: Mapping[int, Last], why: str, layers: Mapping[str, Layer]) -> ConfigError:
    source = next(iter(read.values())).layer
    hint = "Do this before the last layer over time, or write a training loop of your own."
    if isinstance(layers.get(source), Attention):
        hint = f"To have all steps, write Attention(..., unroll_len=1) for {source!r}: it then reads sequences whole."
    return layer.problem(f"reads only the last time step of {source!r}, {why}", hint=hint)
