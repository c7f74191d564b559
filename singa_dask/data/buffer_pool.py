"""Reused memory: the system clears new pages first, which costs as much as filling them."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np


class BufferPool:
    """Arrays whose memory returns to the pool when their last view is gone.

    The pool keeps at most `max_nbytes` of unused memory. Thread-safe.
    """

    def __init__(self, max_nbytes: int):
        self.max_nbytes = max_nbytes
        self._free: list[np.ndarray] = []
        # Reentrant: garbage collection may drop an array and call give_back while this thread holds the lock.
        self._lock = threading.RLock()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialised array, like np.empty."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        return np.asarray(_Lease(self, self._take(nbytes), shape, dtype))

    def _take(self, nbytes: int) -> np.ndarray:
        with self._lock:
            for index, memory in enumerate(self._free):
                if nbytes <= memory.nbytes <= 2 * nbytes:
                    return self._free.pop(index)
        return np.empty(nbytes, np.uint8)

    def give_back(self, memory: np.ndarray) -> None:
        """Keep this memory for reuse, and drop the oldest if there is too much."""
        with self._lock:
            self._free.append(memory)
            while sum(free.nbytes for free in self._free) > self.max_nbytes:
                del self._free[0]


class _Lease:
    """The owner of an array's memory. Every view of the array refers to it, so it outlives all of them."""

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
