"""The group of a worker, as its layers see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.layers.group import LayerGroup
from singa_dask.ops import Ops

Array = Any


class CommGroup(LayerGroup):
    """Exchanges through `comm`, in the order of what the executor runs.

    comm: a communicator of its own, whose counters count what layers exchange. on_device: whether it reaches arrays of
    `ops`; else they are copied to the host and back.
    """

    def __init__(self, executor: CollectiveExecutor, comm: Communicator, ops: Ops, *, on_device: bool = False) -> None:
        self.rank, self.size = comm.rank, comm.size
        self.comm = comm
        self._executor, self._ops = executor, ops
        executor.include(comm)
        self._reachable = on_device or ops.device == "cpu"

    def sum(self, array: Array) -> Array:
        if self.size == 1:
            return super().sum(array)
        own = array if self._reachable else self._ops.to_host(array)
        self._executor.run(self.comm.all_reduce, own.reshape(-1))
        return own if self._reachable else self._ops.asarray(own, array.dtype)

    def all_gather(self, buffer: Array, counts: Sequence[int]) -> None:
        self._run(self.comm.all_gather, [], buffer, counts)

    def reduce_scatter(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        self._run(self.comm.reduce_scatter, [send], recv, counts)

    def start_reduce_scatter(self, send: Array, recv: Array, counts: Sequence[int]) -> Callable[[], None]:
        if not (self._reachable and self._executor.overlaps):
            return super().start_reduce_scatter(send, recv, counts)
        future = self._executor.submit(self.comm.reduce_scatter, send, recv, counts)
        return partial(self._executor.wait, future)

    def all_to_all(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        self._run(self.comm.all_to_all, [send, send_counts], recv, recv_counts)

    def _run(self, call: Callable[..., None], given: list[Any], out: Array, counts: Sequence[int]) -> None:
        """call(*given, out, counts), on copies if the communicator does not reach the arrays."""
        if self._reachable:
            self._executor.run(call, *given, out, counts)
            return
        host = [self._ops.to_host(each) if i == 0 else each for i, each in enumerate(given)]
        received = np.ascontiguousarray(self._ops.to_host(out))
        self._executor.run(call, *host, received, counts)
        out[...] = self._ops.asarray(received, out.dtype)
