"""Where state is kept for a process elsewhere: what writes it, and what takes it there."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from singa_dask.comm.shared_memory import Memory


class Kept(Enum):
    """What came of a message to a store."""

    KEPT = "kept"
    SUPERSEDED = "a successor of its owner has read it"
    GONE = "it is not there"


class Store(Protocol):
    """Keeps the state of a process, of which messages bring it pieces. Raises OSError where the connection breaks."""

    async def open(self, number: int) -> bool:
        """Make room for the state of this number, which has nothing yet; whether there is memory for it."""

    async def write(self, pieces: Sequence[Any], *, whole: bool) -> Kept:
        """Have it take pieces. whole: from now on it has everything that its owner has acknowledged."""


class Receiver(Protocol):
    """Memory that a store has made room in."""

    @property
    def memories(self) -> Sequence[Memory]:
        """All memory that it takes."""

    def write(self, pieces: Sequence[Any]) -> bool:
        """Take what has come; False if a successor has read what is here."""
