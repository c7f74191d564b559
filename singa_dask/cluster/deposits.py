"""Deposits: bytes that nannies keep for a run, such as the newest checkpoint.

They are on other machines than the processes that may be lost, and held like the replicas of servers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.held import NannyHolder, read_at
from singa_dask.cluster.replicas import keep_at, write_at
from singa_dask.comm.shared_memory import Memory, MemoryAddress
from singa_dask.server.replicator import Kept

logger = logging.getLogger(__name__)

_BLOCK = 16 << 20  # bytes of a message
_BLOCK_S = 10.0  # for a message to be answered


@dataclass(frozen=True)
class Deposit:
    """Bytes in the memory of a nanny. content: describes them. memory, holder: where they are, once they are found."""

    content: Any
    nbytes: int
    memory: MemoryAddress | None = None
    holder: str = ""
    rank: int = 0
    size: int = 1

    @property
    def memories(self) -> tuple[MemoryAddress, ...]:
        """All memory that it takes."""
        return () if self.memory is None else (self.memory,)

    def moved(self, memories: Sequence[MemoryAddress], holder: str) -> Deposit:
        """The same, as a nanny holds it."""
        return replace(self, memory=memories[0], holder=holder)


class Depositor:
    """Has nannies keep bytes, the latest, and reads what they keep.

    holder: whose deposits they are. room: whether there is memory for so many bytes, where it is called.
    """

    def __init__(self, holder: NannyHolder, room: Callable[[int], bool]) -> None:
        self._holder, self._room = holder, room

    def keep(self, nanny: str, number: int, content: Any, data: np.ndarray) -> bool:
        """Have a nanny keep bytes (uint8) in the place of those with a lower number, above 0; returns whether it does.
        Until it has all of them, it keeps the former ones too."""
        described = Deposit(content, data.size)
        owner = self._holder.owner(described, number)
        try:
            if not keep_at(self._holder, nanny, owner, described, _Blocks.create, self._room):
                return False
            for first in range(0, data.size, _BLOCK):
                blocks, last = [(first, data[first : first + _BLOCK])], first + _BLOCK >= data.size
                if write_at(self._holder, nanny, owner, blocks, last, _BLOCK_S) is not Kept.KEPT:
                    return False
            # It is whole, so the former ones may go.
            return write_at(self._holder, nanny, owner, (), True, _BLOCK_S) is Kept.KEPT
        except (OSError, TimeoutError) as error:
            logger.info("the nanny %s keeps no deposit: %r", nanny, error)
            return False

    def read(self, deposit: Deposit, out: Callable[[bytes], Any]) -> None:
        """Read a deposit, block by block. Raises NoAnswer if it is gone."""
        for first in range(0, deposit.nbytes, _BLOCK):
            last = min(first + _BLOCK, deposit.nbytes)
            args = deposit.memory, first, last
            block = read_at(self._holder.worker, deposit.holder, _read, *args, timeout_s=_BLOCK_S)
            if block is None:
                raise NoAnswer(f"the nanny {deposit.holder} has let its deposit go")
            out(block)


class _Blocks:
    """The memory of a deposit, which is written block by block."""

    def __init__(self, memory: Memory, nbytes: int) -> None:
        self.memories, self._bytes = [memory], memory.array(np.uint8, nbytes)

    @classmethod
    def create(cls, described: Deposit, room: Callable[[int], bool]) -> _Blocks | None:
        """None if there is no memory for it."""
        memory = Memory.create(described.nbytes) if room(described.nbytes) else None
        return None if memory is None else cls(memory, described.nbytes)

    def write(self, pieces: Sequence[tuple[int, np.ndarray]]) -> bool:
        """Take blocks, each with the place of its first byte."""
        for first, block in pieces:
            self._bytes[first : first + block.size] = block
        return True


def _read(memory: MemoryAddress, first: int, last: int, dask_worker: Any) -> bytes | None:
    """On the nanny that holds it."""
    with suppress(OSError):
        opened = Memory.open(memory)
        return None if opened is None else opened.array(np.uint8, last - first, first).tobytes()
    return None
