"""Copies from a GPU to memory of the host, beside what the GPU computes."""

from __future__ import annotations

import logging
from typing import Any, ClassVar
from weakref import finalize

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.copies import Copies

logger = logging.getLogger(__name__)


class DeviceCopies(Copies):
    """Copies on a stream of their own. Each begins after the work that is already in the caller's current stream.

    memory: what the copies are written to. It is pinned. If CUDA cannot pin it, the caller waits for each copy.
    """

    beside: ClassVar[bool] = True

    def __init__(self, cupy: Any, memory: np.ndarray) -> None:
        self._cupy, self._stream = cupy, cupy.cuda.Stream(non_blocking=True)
        self._before = cupy.cuda.Event(disable_timing=True)
        # When the last copy is made, and when the caller's stream has come to `finish`: of this time and the last.
        self._times, self._last = [self._events(), self._events()], False
        self._memory, self._sources = memory, list[Array]()  # neither may be given to others yet
        runtime, address = cupy.cuda.runtime, memory.ctypes.data
        try:
            runtime.hostRegister(address, memory.nbytes, 0)
        except runtime.CUDARuntimeError as error:
            logger.warning("%d bytes of memory can't be pinned, so saving takes longer: %s", memory.nbytes, error)
        else:
            finalize(self, runtime.hostUnregister, address).atexit = False

    def copy(self, source: Array, target: np.ndarray) -> None:
        self._before.record()
        self._stream.wait_event(self._before)
        runtime, where = self._cupy.cuda.runtime, self._stream.ptr
        down = runtime.memcpyDeviceToHost
        runtime.memcpyAsync(target.ctypes.data, source.data.ptr, target.nbytes, down, where)
        self._times[0][0].record(self._stream)
        self._sources.append(source)

    def finish(self) -> float:
        if not self._sources:
            return 0.0
        (copied, reached), before = self._times
        reached.record()
        if not copied.done:
            copied.synchronize()
        self._sources.clear()
        waited_ms = self._cupy.cuda.get_elapsed_time(*reversed(before)) if self._last else 0.0
        self._times, self._last = [before, (copied, reached)], True
        return max(0.0, waited_ms / 1e3)

    def _events(self) -> tuple[Any, Any]:
        return self._cupy.cuda.Event(), self._cupy.cuda.Event()
