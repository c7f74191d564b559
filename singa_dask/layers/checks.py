"""What nets and training loops check of every call of a layer."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from singa_dask.errors import TrainingError
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


def contiguous(array: Array, xp: Any) -> Array:
    """The array, copied if a layer returned a strided view: kernels expect C order."""
    return array if array.flags.c_contiguous else xp.ascontiguousarray(array)


def checked_output(out: Array, declared: Shape, xp: Any) -> Array:
    """The output of a layer, contiguous. Raises ValueError if its rows have another shape than `setup` returned."""
    if out.shape[1:] != tuple(declared):
        raise ValueError(f"forward returned rows of shape {out.shape[1:]}, but setup returned {tuple(declared)}")
    return contiguous(out, xp)


def by_source(dx: Any, count: int, wanted: Sequence[int]) -> Sequence[Any]:
    """What a layer's backward call returned, by source. Raises ValueError if it is not one gradient for each.

    wanted: the positions that need one.
    """
    if not isinstance(dx, tuple):
        if len(wanted) > 1 and dx is not None:
            raise ValueError(f"backward must return a tuple of {count} gradients, not one array")
        return [dx if i in wanted else None for i in range(count)]
    if len(dx) != count:
        raise ValueError(f"backward returned {len(dx)} gradients for {count} sources")
    return dx


def checked_gradient(array: Array, shape: Shape, xp: Any) -> Array:
    """The gradient for a source, contiguous. Raises ValueError for another shape than that of the source."""
    if array.shape != shape:
        raise ValueError(f"backward returned shape {array.shape} for a source whose output is {shape}")
    return contiguous(array, xp)


def failure(layer: Any, phase: int, call: str, inputs: Sequence[Any], error: Exception) -> TrainingError:
    """An error that names the layer, call, phase and input shapes for which `error` was raised."""
    shapes = ", ".join(str(getattr(x, "shape", x)) for x in inputs) or "none"
    where = traceback.extract_tb(error.__traceback__)[-1]
    return TrainingError(
        f"layer {layer.name!r} ({type(layer).__name__}) failed in {call}, phase {Phase.Name(phase)}, "
        f"input shapes {shapes}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    )
