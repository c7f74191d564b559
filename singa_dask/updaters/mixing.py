"""How two neighbouring server groups mix their changes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from singa_dask.ops.arrays import Array


class Changes(NamedTuple):
    """Of a slice, in one of two server groups, since they exchanged last.

    delta: (n,), its values minus those that both have in common; read only. updates: how many updates of any worker
    group it contains that the other one has not heard of.
    """

    delta: Array
    updates: int


@dataclass(frozen=True)
class Mixing:
    """What two neighbouring server groups make of their changes d and d', of the left one and of the right one.

        common values += share (left d + right d')
        values of the left one  += share (left d + right d') - share d
        values of the right one += share (left d + right d') - share d'

    By default they add up each other's changes. With left + right = 1 they average. Raises ValueError for a number
    outside [0, 1], and for a share of 0.
    """

    left: float = 1.0
    right: float = 1.0
    share: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1 or (field.name == "share" and not value):
                least = "above 0 and at most 1" if field.name == "share" else "from 0 to 1"
                raise ValueError(f"Mixing.{field.name} must be {least}. Received: {value}.")
