"""The numbers of the positions of samples that count, the others behind them being there to fill up."""

from __future__ import annotations

from typing import Any

from singa_dask.errors import DataError
from singa_dask.ops.arrays import Array


def lengths_from(name: str, given: Array, most: int) -> Array:
    """The lengths that layer `name` gives, (B,) integers from 1 to `most`. Raises DataError for other numbers."""
    given = given.reshape(-1)
    lengths = given.astype("int64")
    if given.size and not ((lengths == given) & (lengths >= 1) & (lengths <= most)).all():
        raise DataError(
            f"layer {name!r}: lengths must be integers from 1 to {most}, the time steps or positions that there are, "
            f"and not normalised. {_range(given)}"
        )
    return lengths


def marks_from(name: str, given: Array) -> Array:
    """The marks that layer `name` gives, as booleans. Raises DataError for other numbers than 0 and 1."""
    if not ((given == 0) | (given == 1)).all():
        raise DataError(f"layer {name!r}: marks of positions must be 0 or 1, and not normalised. {_range(given)}")
    return given != 0


def _range(given: Any) -> str:
    return f"Received: {float(given.min()):g} to {float(given.max()):g}."
