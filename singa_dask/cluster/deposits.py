"""Deposits: bytes that nannies keep for a run, such as the newest checkpoint.

They are on other machines than the processes that may be lost, and held like the replicas of servers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.held import NannyHolder, read_at
from singa_dask.cluster.remote import check_listening
from singa_dask.cluster.replicas import NannyStore
from singa_dask.comm.shared_memory import Memory, MemoryAddress
from singa_dask.memory.owner import CHECKPOINT, Owner, Saved, Version
from singa_dask.memory.region import RegionsAddress
from singa_dask.memory.store import Kept

T = TypeVar("T")
_BLOCK = 16 << 20  # bytes of a message
_BLOCK_S = 10.0  # for a message to be answered
OPEN_S = 10.0  # for a nanny to make room: it imports this package for the first one
_LOOK_S = 0.2
_KEEP_S = 100.0  # for a nanny to have all


def deposit_of(version: Version, content: Any, nbytes: int) -> Saved:
    """Bytes in the memory of a nanny, which `content` describes."""
    nowhere = RegionsAddress(MemoryAddress(0, 0, 0, nbytes), ())
    return Saved(Owner(CHECKPOINT), version, (nowhere,), note=content)


class Depositor:
    """Has nannies keep bytes, the latest, and reads what they keep.

    worker: the Dask worker of this process. holder: whose deposits they are; None to read only. room: whether there is
    memory for so many bytes, where it is called. leaves: whether the rank has no time for deposits any more.
    """

    def __init__(
        self,
        worker: Any,
        holder: NannyHolder | None,
        room: Callable[[int], bool],
        leaves: Callable[[], bool] | None = None,
    ) -> None:
        self._worker, self._holder, self._room, self._leaves = worker, holder, room, leaves

    @property
    def own(self) -> str:
        """The nanny of this process, which is asked first."""
        return str(self._worker.nanny)

    @property
    def leaves(self) -> bool:
        """Whether there is no time for deposits any more."""
        return self._leaves is not None and self._leaves()

    @property
    def keeps(self) -> bool:
        """Whether it can have bytes be kept."""
        return self._holder is not None

    def keep(self, nanny: str, number: int, content: Any, path: Path) -> bool:
        """Have a nanny keep the bytes of a file in the place of those with a lower number, above 0; returns whether it
        does. Until it has all of them, it keeps the former ones too.

        Raises OSError if nobody listens at its address, TimeoutError if it does not answer, or takes too long.
        """
        assert self._holder is not None
        deadline, nbytes = time.monotonic() + _KEEP_S, path.stat().st_size
        saved = deposit_of(self._holder.version, content, nbytes)
        store = NannyStore(self._holder, nanny, saved, _Blocks.create, self._room)

        async def opened() -> bool:
            await check_listening(nanny)
            return await store.open(number)

        def write(pieces: Sequence[tuple[int, np.ndarray]], *, whole: bool) -> bool:
            return self._in_time(store.write(pieces, whole=whole), _BLOCK_S) is Kept.KEPT

        if not self._in_time(opened(), OPEN_S):
            return False
        for first in range(0, nbytes, _BLOCK):
            if self.leaves:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"{nbytes} bytes took longer than {_KEEP_S:g} s")
            block = np.fromfile(path, np.uint8, _BLOCK, offset=first)
            if not write([(first, block)], whole=first + _BLOCK >= nbytes):
                return False
        return write((), whole=True)  # it has all, so the former ones may go

    def read(self, deposit: Saved, out: Callable[[bytes], Any]) -> None:
        """Read a deposit, block by block. Raises NoAnswer if it is gone."""
        for first in range(0, deposit.nbytes, _BLOCK):
            last = min(first + _BLOCK, deposit.nbytes)
            args = deposit.memories[0], first, last
            block = read_at(self._worker, deposit.holder, _read, *args, timeout_s=_BLOCK_S)
            if block is None:
                raise NoAnswer(f"the nanny {deposit.holder} has let its deposit go")
            out(block)

    def _in_time(self, call: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """What a coroutine returns in Dask's thread. Raises TimeoutError if it takes longer, or there is no time any
        more."""
        asked = asyncio.run_coroutine_threadsafe(call, self._worker.loop.asyncio_loop)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return asked.result(_LOOK_S)
            except TimeoutError:
                if asked.done() and asked.exception() is not None:
                    raise
                if self.leaves or time.monotonic() > deadline:
                    asked.cancel()
                    raise


class _Blocks:
    """The memory of a deposit, which is written block by block."""

    def __init__(self, memory: Memory, nbytes: int) -> None:
        self.memories, self._bytes = [memory], memory.array(np.uint8, nbytes)

    @classmethod
    def create(cls, saved: Saved, room: Callable[[int], bool]) -> _Blocks | None:
        """None if there is no memory for it."""
        memory = Memory.create(saved.nbytes) if room(saved.nbytes) else None
        return None if memory is None else cls(memory, saved.nbytes)

    def write(self, pieces: Sequence[tuple[int, np.ndarray]]) -> bool:
        """Take blocks, each with the place of its first byte."""
        for first, block in pieces:
            self._bytes[first : first + block.size] = block
        return True


def _read(memory: MemoryAddress, first: int, last: int, dask_worker: Any) -> bytes | None:
    """On the nanny that holds it."""
    opened = Memory.open(memory)
    return None if opened is None else opened.array(np.uint8, last - first, first).tobytes()
