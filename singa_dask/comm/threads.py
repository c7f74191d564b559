"""A group of threads in one process: for tests and notebooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import numpy as np

from singa_dask.comm.checks import check_counts, check_flat, check_met, check_parts, check_root, check_target
from singa_dask.comm.communicator import Communicator, part_of
from singa_dask.comm.rendezvous import Rendezvous
from singa_dask.errors import ClusterError, root_cause


class ThreadCommunicator(Communicator):
    """Collectives between `size` threads of one process. Sums run in rank order, so they are reproducible."""

    kind = "threads"

    def __init__(self, rank: int, exchange: Rendezvous, timeout_s: float) -> None:
        super().__init__()
        self.rank, self.size, self.timeout_s = rank, exchange.size, timeout_s
        self._exchange = exchange

    @classmethod
    def create(cls, size: int, timeout_s: float = 30.0) -> list[ThreadCommunicator]:
        """The communicators of a new group, in rank order, one for each thread."""
        exchange = Rendezvous(size)
        return [cls(rank, exchange, timeout_s) for rank in range(size)]

    @property
    def aborted(self) -> str:
        return self._exchange.aborted

    def abort(self, reason: str) -> None:
        """Make the current and every later operation of every rank raise ClusterError(reason)."""
        self._exchange.abort(ClusterError(reason))

    def reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("send", send, sum(counts))
        check_flat("recv", recv, counts[self.rank])
        own = part_of(self.rank, counts)
        with self._operation("reduce_scatter", send, tuple(counts), own=counts[self.rank]) as arrays:
            _add_up([array[own] for array in arrays], recv)

    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("buffer", buffer, sum(counts))
        with self._operation("all_gather", buffer, tuple(counts), own=counts[self.rank]) as arrays:
            for rank, array in enumerate(arrays):
                if rank != self.rank:
                    buffer[part_of(rank, counts)] = array[part_of(rank, counts)]

    def gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Sequence[int], root: int = 0) -> None:
        check_counts(counts, self.size)
        check_root(root, self.size)
        check_flat("send", send, counts[self.rank])
        target = check_target(recv, root, counts) if self.rank == root else None
        with self._operation("gather", send, tuple(counts), root) as arrays:
            if target is not None:
                np.concatenate(arrays, out=target)

    def all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> None:
        check_parts(send, send_counts, recv, recv_counts, self.size)
        check_met(self.rank, send_counts[self.rank], self.rank, recv_counts[self.rank])
        with self._operation("all_to_all", send, own=send_counts[self.rank], aside=send_counts) as shown:
            for rank, (array, sent) in enumerate(shown):
                check_met(rank, sent[self.rank], self.rank, recv_counts[rank])
                recv[part_of(rank, recv_counts)] = array[part_of(self.rank, sent)]

    def all_reduce(self, buffer: np.ndarray) -> None:
        check_flat("buffer", buffer)
        total = np.empty_like(buffer)
        with self._operation("all_reduce", buffer, buffer.size) as arrays:
            _add_up(arrays, total)
        buffer[:] = total

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        check_flat("buffer", buffer)
        check_root(root, self.size)
        with self._operation("broadcast", buffer, buffer.size, root) as arrays:
            if self.rank != root:
                buffer[:] = arrays[root]

    def barrier(self) -> None:
        with self._operation("barrier", np.empty(0)):
            pass

    def _of_color(self, colors: list[int]) -> ThreadCommunicator:
        members = self._alike(colors)
        first = self.rank == members[0]
        made = Rendezvous(len(members), lambda: self.aborted) if first else None
        with self._operation("split", np.empty(0), aside=made) as shown:
            exchange = shown[members[0]][1]
        return ThreadCommunicator(members.index(self.rank), exchange, self.timeout_s)

    def close(self) -> None:
        self._exchange.forget(self.rank)

    @contextmanager
    def _operation(
        self, name: str, array: np.ndarray, *agreed: Hashable, own: int = 0, aside: Any = None
    ) -> Iterator[list]:
        """Show `array` (with `aside`, a pair) and see the others', until every rank has left the block."""
        start = time.perf_counter()
        signature = (name, array.dtype, *agreed)
        shown = array if aside is None else (array, aside)
        with self._exchange.operation(self.rank, self.timeout_s, signature, shown) as every:
            yield every
        self.seconds[name] += time.perf_counter() - start if self.size > 1 else 0.0  # alone, it waits for nobody
        self.nbytes[name] += array.nbytes - own * array.itemsize


def _add_up(arrays: Sequence[np.ndarray], out: np.ndarray) -> None:
    """out = the sum of `arrays`, added in their order."""
    np.copyto(out, arrays[0])
    for array in arrays[1:]:
        out += array


def run_threads(size: int, fn: Callable[..., Any], *args: Any, timeout_s: float = 30.0) -> list[Any]:
    """[fn(comm, *args) of every rank], run in `size` threads. A rank that raises breaks the others.

    Raises the root cause.
    """
    return run_members(ThreadCommunicator.create(size, timeout_s), fn, *args)


def run_members(comms: Sequence[Communicator], fn: Callable[..., Any], *args: Any) -> list[Any]:
    """[fn(comm, *args) of every communicator], each in a thread of its own, which sees the caller's context variables.

    A call that raises breaks all communicators; raises the root cause.
    """
    raised: dict[int, BaseException] = {}  # in the order of time

    def member(comm: Communicator) -> Any:
        try:
            return fn(comm, *args)
        except BaseException as error:
            raised[comm.rank] = error
            for other in comms:
                other.abort(f"rank {comm.rank} failed: {error}")
            raise

    with ThreadPoolExecutor(len(comms), thread_name_prefix="rank") as pool:
        futures = [pool.submit(copy_context().run, member, comm) for comm in comms]
        wait(futures)
    if raised:
        raise raised[root_cause(raised)]
    return [future.result() for future in futures]
