"""Where a net goes on with the last time step alone, and what would mean something else for all steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from singa_dask.job.unroll import origin
from singa_dask.layers import Add, Div, LastStep, Max, Mul, Sub
from singa_dask.layers.base import Layer

_COMBINE = (Add, Div, Max, Mul, Sub)


def last_step(
    layer: Layer, found: Mapping[str, str], layers: Mapping[str, Layer], shapes: Sequence[Any]
) -> str | None:
    """The layer over time that the layer's output is the last step of; None if of none. found: of the layers before;
    shapes: of its sources.

    Raises ConfigError if the layer combines a last step with all steps of a sequence.
    """
    if isinstance(layer, LastStep):
        if layer.proto.user_conf:  # a function takes it, and says so
            return None
        return layer.proto.srclayers[0]
    if layer.steps > 1 or layer.proto.num_instances > 1:
        return None
    read = {i: last for i, name in enumerate(layer.proto.srclayers) if (last := _read(name, found, layers))}
    if not read:
        return None
    whole = [j for j, shape in enumerate(shapes) if j not in read and len(shape) > min(len(shapes[i]) for i in read)]
    if isinstance(layer, _COMBINE) and whole:
        all_of, last = layer.proto.srclayers[whole[0]], next(iter(read.values()))
        message = f"reads only the last time step of {last!r}, and combines it with all steps of {all_of!r}"
        raise layer.problem(message, hint="Do this before the last layer over time, or take the step: x[:, -1].")
    return read.get(0) if layer.rowwise else None


def _read(name: str, found: Mapping[str, str], layers: Mapping[str, Layer]) -> str | None:
    proto = layers[name].proto  # of an unrolled net, the last instance
    return origin(proto) if proto.num_instances > 1 else found.get(name)
