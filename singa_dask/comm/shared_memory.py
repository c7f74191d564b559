"""Arrays in memory that the processes of one machine share, without names that a lost process could leave behind."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from singa_dask.comm.communicator import Communicator


def form_shared_memory(comm: Communicator, size: int, dtype: Any) -> list[np.ndarray] | None:
    """Zeroed arrays (size,), one of each rank, by rank, which all ranks see; None if a rank cannot see them.

    Collective. A rank makes its array by memfd_create (Linux), and the others open it through /proc. There is no file
    in /dev/shm, whose size containers limit, and the memory is released with the last process that maps it.
    """
    nbytes = max(1, size * np.dtype(dtype).itemsize)
    with _own_memory(nbytes) as (descriptor, token):
        told = np.zeros((comm.size, 3), np.int64)
        told[comm.rank] = os.getpid(), descriptor, token
        comm.all_gather(told.reshape(-1), [3] * comm.size)
        found = [_mapped(int(pid), int(fd), int(mark), nbytes) for pid, fd, mark in told] if told.all() else []
        seen = np.array([float(len(found) == comm.size and all(memory is not None for memory in found))])
        comm.all_reduce(seen)  # all have opened what they can: the descriptors may go
    if seen[0] < comm.size:
        return None
    return [np.frombuffer(memory, dtype, size) for memory in found if memory is not None]


def form_shared_flat(comm: Communicator, size: int, dtype: Any) -> tuple[np.ndarray, list[np.ndarray]] | None:
    """Zeroed arrays (size,): one for all ranks together, and one of each rank, by rank; see `form_shared_memory`."""
    arrays = form_shared_memory(comm, 2 * size, dtype)
    return None if arrays is None else (arrays[0][:size], [array[size:] for array in arrays])


@contextlib.contextmanager
def _own_memory(nbytes: int) -> Iterator[tuple[int, int]]:
    """A descriptor of new memory, and a random token that identifies it; zeros where the system has no such memory."""
    if not hasattr(os, "memfd_create"):
        yield 0, 0
        return
    token = 1 + secrets.randbits(60)
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.memfd_create(_name(token))
            stack.callback(os.close, descriptor)
            os.ftruncate(descriptor, nbytes)
        except OSError:
            descriptor = token = 0
        yield descriptor, token


def _mapped(pid: int, descriptor: int, token: int, nbytes: int) -> mmap.mmap | None:
    """The memory of a process; None if it is on another machine, or inaccessible."""
    path = f"/proc/{pid}/fd/{descriptor}"
    try:
        if _name(token) not in os.readlink(path):  # a process with the same number on another machine
            return None
        opened = os.open(path, os.O_RDWR)
        try:
            memory = mmap.mmap(opened, nbytes)
        finally:
            os.close(opened)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _name(token: int) -> str:
    return f"singa_dask-{token:x}"
