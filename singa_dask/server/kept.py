"""What a server leaves in memory that outlives its process, for the server that takes its place."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from singa_dask.comm.shared_memory import MemoryAddress
from singa_dask.errors import ClusterError
from singa_dask.server.protocol import ServerProtocol
from singa_dask.server.shadow import Shadow, ShadowAddress


class MemoryLost(ClusterError):
    """What a server has left cannot be reached from where its successor is."""


@dataclass(frozen=True)
class ServerAddress:
    """Where the shadow of server `rank` of `size` is, of a server group that was made for the `generation`th time.

    run: its key.
    """

    run: str
    generation: int
    rank: int
    size: int
    slices: ShadowAddress

    @property
    def memories(self) -> tuple[MemoryAddress, ...]:
        """All memory that it takes."""
        return (self.slices.memory,)

    def moved(self, memories: Sequence[MemoryAddress]) -> ServerAddress:
        """The same, held by another process."""
        return replace(self, slices=replace(self.slices, memory=memories[0]))


@dataclass(frozen=True)
class Keeping:
    """Whose shadow a server keeps: the fields of its ServerAddress.

    also: another nanny of the machine that holds it. left: by its predecessor, from which it goes on.
    """

    run: str
    generation: int
    rank: int
    size: int
    also: str = ""
    left: ServerAddress | None = None


class Holder(Protocol):
    """Has memory outlive this process (see cluster.held)."""

    def hold(self, described: Any, *, only: bool = False, also: str = "") -> bool:
        """Have the memory of a ServerAddress held; returns whether it is. Blocks."""

    def holding(self, described: Any, *, only: bool = False, also: str = "") -> Coroutine[Any, Any, bool]:
        """The same, for the event loop of the Dask worker."""


class KeptServer:
    """A server's shadow, which nannies hold. `keep` makes one."""

    def __init__(self, shadow: Shadow, keeping: Keeping, holder: Holder) -> None:
        self._shadow, self._keeping, self._holder = shadow, keeping, holder

    @classmethod
    def keep(
        cls, protocol: ServerProtocol, keeping: Keeping, holder: Holder | None, room: Callable[[int], bool]
    ) -> KeptServer | None:
        """Have the server go on from what its predecessor has left, if it has one, and leave its own state too.

        None where nothing can hold it. room: whether there is memory for so many bytes. Raises MemoryLost. Blocks.
        """
        slices = protocol.slices.values()
        left = None
        if keeping.left is not None:
            left = Shadow.open(keeping.left.slices)
            if left is None:
                raise MemoryLost(f"what server {keeping.rank} has left in memory is gone, or on another machine")
            left.take_over()
        kept = None
        if holder is not None and slices:
            first, *_ = slices
            names = tuple(first.updater.state)
            shadow = Shadow.create(protocol.places, names, first.ops.dtype, room)
            if shadow is not None:
                protocol.keep(shadow.slices)
                kept = cls(shadow, keeping, holder)
        if left is not None:
            protocol.recover(left.slices)
        if kept is not None:
            kept._holder.hold(kept.address, also=keeping.also)
        return kept

    @property
    def address(self) -> ServerAddress:
        """Where other processes find it."""
        own = self._keeping
        return ServerAddress(own.run, own.generation, own.rank, own.size, self._shadow.address)

    @property
    def taken_over(self) -> bool:
        """Whether a successor goes on from it, so that this server must acknowledge nothing more."""
        return self._shadow.taken_over

    async def settle(self) -> None:
        """Let go what predecessors have left: all servers of the group have theirs."""
        await self._holder.holding(self.address, only=True, also=self._keeping.also)
