"""Normalisation: from the units of the data to those of the net, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import StoreProto
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


@dataclass(frozen=True)
class Normalisation:
    """y = (x - mean) / std, and back.   x, y: (..., S) of samples of shape S.

    mean, std: of a shape that can be broadcast to S, or None for no change.
    """

    mean: np.ndarray | None = None
    std: np.ndarray | None = None

    @classmethod
    def of(cls, store: StoreProto, shape: Shape, *, target: bool = False) -> Normalisation:
        """That of the job for samples (or targets) of `shape`, from mean and std (target_mean and target_std), or
        mean_value and std_value.

        Raises ConfigError if there are not 1, one per channel, or one per value of them, if they are not finite, or if
        the job only says where they come from.
        """
        names = ("target_mean", "target_std") if target else ("mean", "std")
        for field in ("normalise_target",) if target else ("mean_file", "std_file", "normalise"):
            if getattr(store, field):
                message = "takes its numbers from data, which are read only when a job starts"
                hint = f"Write the numbers into store_conf.{names[0]} and store_conf.{names[1]}."
                raise ConfigError(Problem(f"store_conf.{field}", message, hint=hint))
        return cls(*(_broadcast(name, given_numbers(store, name), shape) for name in names))

    def apply(self, xp: Any, x: Array) -> Array:
        """(x - mean) / std, in the type of x. xp: NumPy or CuPy."""
        if self.mean is not None:
            x = x - xp.asarray(self.mean, x.dtype)
        return x if self.std is None else x / xp.asarray(self.std, x.dtype)

    def undo(self, xp: Any, y: Array) -> Array:
        """y std + mean, in the type of y."""
        if self.std is not None:
            y = y * xp.asarray(self.std, y.dtype)
        return y if self.mean is None else y + xp.asarray(self.mean, y.dtype)


def given_numbers(store: StoreProto, name: str) -> list[float]:
    """The job's numbers for "mean", "std", "target_mean" or "target_std"; empty if it gives none.

    Raises ConfigError if one is not finite, or a std is 0.
    """
    field, values = name, list(getattr(store, name))
    if not values and not name.startswith("target_") and store.HasField(f"{name}_value"):
        field = f"{name}_value"
        values = [getattr(store, field)]
    for value in values:
        if not math.isfinite(value) or (name.endswith("std") and value == 0):
            message = "must be finite, and not 0 for std"
            raise ConfigError(Problem(f"store_conf.{field}", message, str(value), "Use 1 for no change."))
    return values


def _broadcast(name: str, values: list[float], shape: Shape) -> np.ndarray | None:
    if not values:
        return None
    if len(values) in (1, shape[-1]):
        return np.array(values)
    if len(values) == math.prod(shape):
        return np.array(values).reshape(shape)
    message = f"must have one value, one per channel ({shape[-1]}) or one per value of a sample ({math.prod(shape)})"
    raise ConfigError(Problem(f"store_conf.{name}", message, f"{len(values)} values"))
