"""Simulated memory that processes of one host share, as comm/shared_memory.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.comm.shared_memory import MemoryAddress

if TYPE_CHECKING:
    from simulation.cluster import Cluster


class SimulatedMemory:
    """A Memory of the process whose code runs now. cluster: of the history that runs now.

    Others find it while this object and its process live.
    """

    cluster: Cluster

    def __init__(self, data: np.ndarray, token: int) -> None:
        self._owner, self._data, self._token = self.cluster.here, data, token
        self._descriptor = self.cluster.next_number()
        self._owner.memories[self._descriptor] = self

    @classmethod
    def create(cls, nbytes: int) -> SimulatedMemory:
        return cls(np.zeros(nbytes, np.uint8), cls.cluster.next_number())

    @classmethod
    def open(cls, address: MemoryAddress, *, mapped: bool = True) -> SimulatedMemory | None:
        owner = cls.cluster.by_pid[address.pid]
        memory = owner.memories.get(address.descriptor)
        if memory is None or not owner.alive or owner.host != cls.cluster.here.host or memory._token != address.token:
            return None
        return cls(memory._data, address.token)

    @property
    def address(self) -> MemoryAddress:
        return MemoryAddress(self._owner.pid, self._descriptor, self._token, self._data.size)

    def array(self, dtype: Any, count: int, offset: int = 0) -> np.ndarray:
        return self._data[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)
