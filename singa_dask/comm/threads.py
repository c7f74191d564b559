"""A group of threads in one process: the real protocol without processes, for tests and notebooks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np

from singa_dask.comm.buffers import check_counts, check_flat, check_target, run_of
from singa_dask.comm.communicator import Communicator
from singa_dask.errors import ClusterError, CommTimeout


class _Shared:
    """What the members of one group see together."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.calls: list[tuple[str, Any]] = [("", None)] * size
        self.reason = ""


class ThreadCommunicator(Communicator):
    """Collectives between `size` threads of one process. Sums run in rank order, so they are reproducible."""

    def __init__(self, rank: int, shared: _Shared, timeout_s: float) -> None:
        super().__init__()
        self.rank, self.size, self.timeout_s = rank, shared.barrier.parties, timeout_s
        self._shared = shared

    @classmethod
    def create(cls, size: int, timeout_s: float = 30.0) -> list[ThreadCommunicator]:
        """The communicators of a new group, in rank order; give each to a thread of its own."""
        shared = _Shared(size)
        return [cls(rank, shared, timeout_s) for rank in range(size)]

    def abort(self, reason: str) -> None:
        """Make this and every later operation of every member raise ClusterError(reason)."""
        self._shared.reason = self._shared.reason or reason
        self._shared.barrier.abort()

    def reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("send", send, sum(counts))
        check_flat("recv", recv, counts[self.rank])
        own = run_of(self.rank, counts)
        with self._exchange("reduce_scatter", send) as arrays:
            _sum([array[own] for array in arrays], recv)

    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("buffer", buffer, sum(counts))
        with self._exchange("all_gather", buffer) as arrays:
            for rank, array in enumerate(arrays):
                if rank != self.rank:
                    buffer[run_of(rank, counts)] = array[run_of(rank, counts)]

    def gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Sequence[int], root: int = 0) -> None:
        check_counts(counts, self.size)
        check_flat("send", send, counts[self.rank])
        with self._exchange("gather", send) as arrays:
            if self.rank == root:
                np.concatenate(arrays, out=check_target(recv, root, counts))

    def all_reduce(self, buffer: np.ndarray) -> None:
        check_flat("buffer", buffer)
        total = np.empty_like(buffer)
        with self._exchange("all_reduce", buffer) as arrays:
            _sum(arrays, total)
        buffer[:] = total

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        check_flat("buffer", buffer)
        with self._exchange("broadcast", buffer) as arrays:
            if self.rank != root:
                buffer[:] = arrays[root]

    def barrier(self) -> None:
        with self._exchange("barrier", np.empty(0)):
            pass

    def close(self) -> None:
        self._shared.calls[self.rank] = ("", None)

    @contextmanager
    def _exchange(self, operation: str, array: np.ndarray) -> Iterator[list[np.ndarray]]:
        """Show `array` to the others and see theirs, until every member has left the block."""
        start = time.perf_counter()
        self._shared.calls[self.rank] = (operation, array)
        self._meet(operation)
        names = [name for name, _ in self._shared.calls]
        if set(names) != {operation}:
            self.abort(f"the ranks called different operations: {names}")
            raise ClusterError(self._shared.reason)
        yield [array for _, array in self._shared.calls]
        self._meet(operation)
        self.wait_s += time.perf_counter() - start
        self.nbytes[operation] += array.nbytes

    def _meet(self, operation: str) -> None:
        start = time.perf_counter()
        try:
            self._shared.barrier.wait(self.timeout_s)
        except threading.BrokenBarrierError:
            if self._shared.reason:
                raise ClusterError(f"rank {self.rank}, {operation}: {self._shared.reason}") from None
            waited = time.perf_counter() - start
            message = f"rank {self.rank}: {operation} did not finish within {waited:.1f} s; a rank is lost or late"
            raise CommTimeout(message) from None


def run_threads(size: int, fn: Callable[..., Any], *args: Any, timeout_s: float = 30.0) -> list[Any]:
    """[fn(comm, *args) of every rank], run in `size` threads. A rank that raises breaks the others.

    Raises what the first failing rank raised.
    """
    comms = ThreadCommunicator.create(size, timeout_s)
    first: list[BaseException] = []

    def member(comm: ThreadCommunicator) -> Any:
        try:
            return fn(comm, *args)
        except BaseException as error:
            first.append(error)
            comm.abort(f"rank {comm.rank} failed: {error}")
            raise

    with ThreadPoolExecutor(size, thread_name_prefix="rank") as pool:
        futures = [pool.submit(member, comm) for comm in comms]
        wait(futures)
    if first:
        raise first[0]
    return [future.result() for future in futures]


def _sum(arrays: Sequence[np.ndarray], out: np.ndarray) -> None:
    np.copyto(out, arrays[0])
    for array in arrays[1:]:
        out += array
