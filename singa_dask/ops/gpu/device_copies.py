"""Copies from a GPU to memory of the host, beside what the GPU computes."""

from __future__ import annotations

import logging
from typing import Any
from weakref import finalize

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.copies import Copies

logger = logging.getLogger(__name__)


class DeviceCopies(Copies):
    """On a stream of their own, each after the work that is already in the caller's current stream.

    memory: that they go to. It is pinned; where CUDA can't pin it, the caller waits for each copy.
    """

    def __init__(self, cupy: Any, memory: np.ndarray) -> None:
        self._runtime, self._stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
        self._before, self._after = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        self._memory, self._sources = memory, list[Array]()  # neither may be given to others yet
        address = memory.ctypes.data
        try:
            self._runtime.hostRegister(address, memory.nbytes, 0)
        except self._runtime.CUDARuntimeError as error:
            logger.warning("%d bytes of memory can't be pinned, so saving takes longer: %s", memory.nbytes, error)
        else:
            finalize(self, self._runtime.hostUnregister, address).atexit = False

    def copy(self, source: Array, target: np.ndarray) -> None:
        self._before.record()
        self._stream.wait_event(self._before)
        down = self._runtime.memcpyDeviceToHost
        self._runtime.memcpyAsync(target.ctypes.data, source.data.ptr, target.nbytes, down, self._stream.ptr)
        self._sources.append(source)

    def finish(self) -> None:
        if self._sources:
            self._after.record(self._stream)
            if not self._after.done:
                self._after.synchronize()
            self._sources.clear()
