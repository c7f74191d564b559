"""Where the state of a process is kept, for those that resume from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from singa_dask.memory.owner import Owner, Saved, Version


class PutResult(Enum):
    """What came of a message to a store."""

    KEPT = "kept"
    SUPERSEDED = "a successor of its owner has read it"
    GONE = "it is not there"


class Store(Protocol):
    """Keeps the state of a process: its own memory, or what messages bring to a nanny on another machine.

    owner, version: whose state it is. place: the machine of the process, and its nanny ("" without one). leaves:
    whether the process has no time any more.
    """

    owner: Owner
    version: Version
    place: tuple[str, str]
    leaves: Callable[[], bool]

    def hold(self, saved: Saved, *, only: bool = False, also: str = "") -> bool:
        """Have shared memory of this process held; returns whether it is.

        only: let go what former generations of the group have left. also: another nanny of the machine that holds it,
        as a nanny may be lost with its worker.
        """

    async def open(self, nanny: str, saved: Saved) -> bool:
        """Have a nanny make memory, which has nothing yet, in the shape of this; whether there is memory for it.
        Raises OSError where the connection breaks, as `put`."""

    async def put(self, nanny: str, saved: Saved, pieces: Sequence[Any], *, whole: bool) -> PutResult:
        """Have the nanny take pieces of it. whole: from now on it has everything that its owner has acknowledged."""

    def keep(self, nanny: str, saved: Saved, path: Path) -> bool:
        """Have a nanny keep the bytes of a file, which `saved` describes, in the place of those with a lower number,
        above 0; returns whether it does. Until it has all of them, it keeps the former ones too.

        Raises OSError if nobody listens at its address, TimeoutError if it does not answer, or takes too long.
        """

    def read(self, saved: Saved, out: Callable[[bytes], Any]) -> None:
        """Read the bytes of a file that a nanny keeps, block by block. Raises ClusterError if they are gone."""
