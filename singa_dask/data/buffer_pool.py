"""Memory that is used again: pages fresh from the system are cleared first, which costs as much as filling them."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np


class BufferPool:
    """Arrays whose memory comes back here once the last view of them is gone.

    It keeps at most `max_nbytes` bytes that nobody uses. Thread-safe.
    """

    def __init__(self, max_nbytes: int):
        self.max_nbytes = max_nbytes
        self._free: list[np.ndarray] = []
        # Reentrant: the collector may drop an array, and so call give_back, while this thread holds the lock.
        self._lock = threading.RLock()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialised array, as np.empty gives it."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        return np.asarray(_Lease(self, self._take(nbytes), shape, dtype))

    @property
    def free_nbytes(self) -> int:
        """Bytes that are kept for the next array."""
        with self._lock:
            return sum(memory.nbytes for memory in self._free)

    def _take(self, nbytes: int) -> np.ndarray:
        with self._lock:
            for index, memory in enumerate(self._free):
                if nbytes <= memory.nbytes <= 2 * nbytes:
                    return self._free.pop(index)
        return np.empty(nbytes, np.uint8)

    def give_back(self, memory: np.ndarray) -> None:
        """Keep this memory for later; the oldest goes where there is too much."""
        with self._lock:
            self._free.append(memory)
            while sum(free.nbytes for free in self._free) > self.max_nbytes:
                del self._free[0]


class _Lease:
    """The owner of an array's memory. Every view of the array refers to it, so its end is the end of them all."""

    def __init__(self, pool: BufferPool, memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype):
        self._pool = pool
        self._memory = memory
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory.ctypes.data, False),
        }

    def __del__(self) -> None:
        self._pool.give_back(self._memory)
