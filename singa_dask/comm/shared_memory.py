"""Memory that the processes of one machine share, without names that a lost process could leave behind."""

from __future__ import annotations

import mmap
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np

if TYPE_CHECKING:
    from singa_dask.comm.communicator import Communicator


@dataclass(frozen=True)
class MemoryAddress:
    """Where other processes of the machine find a Memory. token: identifies it, as process numbers are reused."""

    pid: int
    descriptor: int
    token: int
    nbytes: int


class Memory:
    """Zeroed memory that lives until the last process that holds it has ended, or let it go.

    It is made by memfd_create (Linux), and others open it through /proc. There is no file in /dev/shm, whose size
    containers limit. mapped: False to keep it alive without looking at it.
    """

    def __init__(self, descriptor: int, token: int, nbytes: int, *, mapped: bool = True) -> None:
        self._descriptor, self._token, self.nbytes = descriptor, token, nbytes
        self._map: mmap.mmap | None = None
        finalize(self, os.close, descriptor)
        if mapped:
            self._map = mmap.mmap(descriptor, nbytes)
            with suppress(OSError):  # a kernel without huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)

    @classmethod
    def create(cls, nbytes: int) -> Memory | None:
        """New memory; None where the system has none that can be shared."""
        if not hasattr(os, "memfd_create"):
            return None
        token, descriptor = 1 + secrets.randbits(60), -1
        try:
            descriptor = os.memfd_create(_name(token))
            os.ftruncate(descriptor, max(1, nbytes))
        except OSError:
            if descriptor >= 0:
                os.close(descriptor)
            return None
        return cls(descriptor, token, max(1, nbytes))

    @classmethod
    def open(cls, address: MemoryAddress, *, mapped: bool = True) -> Memory | None:
        """The memory that a process holds; None if it is on another machine, gone or inaccessible."""
        path = f"/proc/{address.pid}/fd/{address.descriptor}"
        try:
            if _name(address.token) not in os.readlink(path):  # a process with the same number on another machine
                return None
            return cls(os.open(path, os.O_RDWR), address.token, address.nbytes, mapped=mapped)
        except OSError:
            return None

    @property
    def address(self) -> MemoryAddress:
        """Where others find it, as long as this object is there."""
        return MemoryAddress(os.getpid(), self._descriptor, self._token, self.nbytes)

    def array(self, dtype: Any, count: int, offset: int = 0) -> np.ndarray:
        """`count` elements from byte `offset` on. The array keeps the memory, but not its address."""
        assert self._map is not None
        return np.frombuffer(self._map, dtype, count, offset)


def share_memory(comm: Communicator, own: Memory | None) -> list[Memory] | None:
    """The memory of each rank, by rank; None if a rank has none, or another one cannot see it. Collective."""
    told = np.zeros((comm.size, 4), np.int64)
    if own is not None:
        address = own.address
        told[comm.rank] = address.pid, address.descriptor, address.token, address.nbytes
    comm.all_gather(told.reshape(-1), [4] * comm.size)
    opened = [Memory.open(MemoryAddress(*map(int, row))) for row in told] if told[:, 2].all() else []
    found = [memory for memory in opened if memory is not None]
    seen = np.array([float(len(found) == comm.size)])
    comm.all_reduce(seen)  # all have opened what they can: the descriptors may go
    return found if seen[0] == comm.size else None


def form_shared_memory(comm: Communicator, size: int, dtype: Any) -> list[np.ndarray] | None:
    """Zeroed arrays (size,), one of each rank, by rank, which all ranks see; None if a rank cannot see them.
    Collective."""
    found = share_memory(comm, Memory.create(size * np.dtype(dtype).itemsize))
    return None if found is None else [memory.array(dtype, size) for memory in found]


def form_shared_flat(comm: Communicator, size: int, dtype: Any) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Zeroed arrays (size,): one for all ranks together, and one of each rank, by rank; see `form_shared_memory`."""
    arrays = form_shared_memory(comm, 2 * size, dtype)
    return None if arrays is None else (arrays[0][:size], [array[size:] for array in arrays])


def _name(token: int) -> str:
    return f"singa_dask-{token:x}"
