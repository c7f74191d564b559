"""A group whose ranks are threads of processes: the threads of a process combine their arrays, one communicates."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from singa_dask.comm.checks import check_counts, check_flat, check_met, check_parts, check_root, check_target
from singa_dask.comm.communicator import Communicator, part_of
from singa_dask.comm.rendezvous import Rendezvous, RendezvousOperation, add_up
from singa_dask.errors import ClusterError


class NestedCommunicator(Communicator):
    """Collectives between `nthreads` threads in each of the outer communicator's processes.

    Thread t of the process of outer rank p is rank p * nthreads + t. Thread 0 is the leader: it alone calls the outer
    communicator, once per operation, so that the sum of a process is sent and not its summands. Sums run over the
    threads in their order, then over the processes in the order of the outer communicator.

    An error or a timeout of one thread breaks the other threads of its process and the outer communicator. An abort of
    the outer communicator reaches all threads within 0.1 s. owns: whether this group closes the outer communicator.
    """

    def __init__(self, thread: int, exchange: Rendezvous, outer: Communicator, *, owns: bool = False) -> None:
        super().__init__()
        self.rank, self.size, self.timeout_s = exchange.first + thread, outer.size * exchange.size, outer.timeout_s
        self._thread, self._nthreads = thread, exchange.size
        self._exchange, self._outer, self._owns = exchange, outer, owns
        self._buffers: dict[tuple[str, np.dtype], np.ndarray] = {}

    @classmethod
    def create(cls, outer: Communicator, nthreads: int) -> list[NestedCommunicator]:
        """The communicators of this process's ranks, in rank order, one for each thread."""
        if nthreads < 1:
            raise ValueError(f"nthreads must be at least 1. Received: {nthreads}.")
        exchange = Rendezvous(nthreads, outer.rank * nthreads, lambda: outer.aborted)
        return [cls(thread, exchange, outer) for thread in range(nthreads)]

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self._outer.kind if self._outer.size > 1 else "threads"

    @property
    def aborted(self) -> str:
        return self._exchange.aborted or self._outer.aborted

    def abort(self, reason: str) -> None:
        """Make this and every later operation of the process's threads raise ClusterError(reason)."""
        self._exchange.abort(ClusterError(reason))
        self._outer.abort(reason)

    def one_machine(self) -> bool:
        with self._operation("one_machine", np.empty(0), aside=[]) as (operation, _, asides):
            if self._leads:
                asides[0].append(self._outer.one_machine())
            operation.meet()
            return asides[0][0]

    def reduce_scatter(self, send: np.ndarray, recv: np.ndarray, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("send", send, sum(counts))
        check_flat("recv", recv, counts[self.rank])
        of_processes, of_threads = self._shares(counts)
        buffers = None
        if self._leads:
            buffers = (
                self._buffer("sum", sum(counts), send.dtype),
                self._buffer("share", sum(of_threads), send.dtype),
            )
        with self._operation("reduce_scatter", send, tuple(counts), own=counts[self.rank], aside=buffers) as (
            operation,
            arrays,
            asides,
        ):
            total, share = asides[0]
            part = self._part(send.size)
            add_up([array[part] for array in arrays], total[part])
            operation.meet()
            self._lead(operation, self._outer.reduce_scatter, total, share, of_processes)
        # The leader's buffers stay as they are until all threads have reached the next operation.
        recv[:] = share[part_of(self._thread, of_threads)]

    def all_gather(self, buffer: np.ndarray, counts: Sequence[int]) -> None:
        check_counts(counts, self.size)
        check_flat("buffer", buffer, sum(counts))
        with self._operation("all_gather", buffer, tuple(counts), own=counts[self.rank]) as (operation, arrays, _):
            if self._leads:
                for thread, array in enumerate(arrays[1:], 1):
                    own = part_of(self.rank + thread, counts)
                    buffer[own] = array[own]
            self._lead(operation, self._outer.all_gather, buffer, self._shares(counts)[0])
            operation.meet()
            if not self._leads:
                own = part_of(self.rank, counts)
                buffer[: own.start] = arrays[0][: own.start]
                buffer[own.stop :] = arrays[0][own.stop :]

    def gather(self, send: np.ndarray, recv: np.ndarray | None, counts: Sequence[int], root: int = 0) -> None:
        check_counts(counts, self.size)
        check_root(root, self.size)
        check_flat("send", send, counts[self.rank])
        target = check_target(recv, root, counts) if self.rank == root else None
        process, thread = divmod(root, self._nthreads)
        of_processes, of_threads = self._shares(counts)
        with self._operation("gather", send, tuple(counts), root, aside=target) as (operation, arrays, asides):
            if self._leads:
                share = self._buffer("share", sum(of_threads), send.dtype)
                np.concatenate(arrays, out=share)
                target = asides[thread] if process == self._outer.rank else None
                self._lead(operation, self._outer.gather, share, target, of_processes, process)

    def all_to_all(
        self, send: np.ndarray, send_counts: Sequence[int], recv: np.ndarray, recv_counts: Sequence[int]
    ) -> None:
        check_parts(send, send_counts, recv, recv_counts, self.size)
        places: list[np.ndarray] = []
        with self._operation(
            "all_to_all", send, own=send_counts[self.rank], aside=(send_counts, recv_counts, places)
        ) as (operation, _, asides):
            sent, received, (places, *_) = zip(*asides, strict=True)
            for thread, counts in enumerate(sent):
                rank = self._exchange.first + thread
                check_met(rank, counts[self.rank], self.rank, recv_counts[rank])
            out, into = self._blocks(sent), np.array(received).T
            if self._leads:
                places += [self._buffer("out", out.sum(), send.dtype), self._buffer("in", into.sum(), send.dtype)]
            operation.meet()
            packed, arrived = places
            for own, shared in _parts(out, self._thread):
                packed[shared] = send[own]
            operation.meet()
            of_processes = into.reshape(self._outer.size, -1).sum(1).tolist()
            self._lead(operation, self._outer.all_to_all, packed, out.sum(1).tolist(), arrived, of_processes)
        # As in reduce_scatter.
        for own, shared in _parts(into, self._thread):
            recv[own] = arrived[shared]

    def all_reduce(self, buffer: np.ndarray) -> None:
        check_flat("buffer", buffer)
        with self._operation("all_reduce", buffer, buffer.size) as (operation, arrays, _):
            # In the leader's buffer: before they meet, only the thread that adds up a part reads it.
            parts = [array[self._part(buffer.size)] for array in arrays]
            add_up(parts, parts[0])
            operation.meet()
            self._lead(operation, self._outer.all_reduce, buffer)
            operation.meet()
            if not self._leads:
                buffer[:] = arrays[0]

    def broadcast(self, buffer: np.ndarray, root: int = 0) -> None:
        check_flat("buffer", buffer)
        check_root(root, self.size)
        process, thread = divmod(root, self._nthreads)
        source = thread if process == self._outer.rank else 0
        with self._operation("broadcast", buffer, buffer.size, root) as (operation, arrays, _):
            self._lead(operation, self._outer.broadcast, arrays[source], process)
            operation.meet()
            if self._thread != source:
                buffer[:] = arrays[source]

    def barrier(self) -> None:
        with self._operation("barrier", np.empty(0)) as (operation, _, _):
            self._lead(operation, self._outer.barrier)

    def _of_color(self, colors: list[int]) -> NestedCommunicator:
        """Raises ValueError where a color has more threads in one process than in another."""
        n, first = self._nthreads, self._exchange.first
        for color in set(colors):
            held = {count for i in range(0, self.size, n) if (count := colors[i : i + n].count(color))}
            if len(held) > 1:
                raise ValueError(f"a color must have as many threads in each of its processes. Received: {colors}.")
        here = colors[first : first + n]
        made: dict[int, tuple[Rendezvous, Communicator]] = {}

        def make() -> None:
            """One color after another, in the same order in all processes."""
            for color in sorted(set(colors)):
                outer = self._outer.split(int(color in here))
                if color not in here:
                    outer.close()
                    continue
                held = here.count(color)
                made[color] = Rendezvous(held, outer.rank * held, partial(_ended, self, outer)), outer

        with self._operation("split", np.empty(0), aside=made) as (operation, _, asides):
            self._lead(operation, make)
            operation.meet()
            exchange, outer = asides[0][colors[self.rank]]
        thread = here[: self._thread].count(colors[self.rank])
        return NestedCommunicator(thread, exchange, outer, owns=True)

    def close(self) -> None:
        self._exchange.forget(self._thread)
        self._buffers.clear()
        if self._owns and self._leads:
            self._outer.close()

    @property
    def _leads(self) -> bool:
        return self._thread == 0

    def _lead(self, operation: RendezvousOperation, call: Callable[..., None], *args: Any) -> None:
        """The outer operation, if this is the leader; the others meet it afterwards."""
        if not self._leads:
            return
        patience, self._outer.timeout_s = self._outer.timeout_s, operation.left_s
        self._outer.hurried = self.hurried
        try:
            call(*args)
        finally:
            self._outer.timeout_s = patience

    def _shares(self, counts: Sequence[int]) -> tuple[list[int], Sequence[int]]:
        """Elements of every process, and of this process's threads."""
        n = self._nthreads
        first = self._exchange.first
        return [sum(counts[i : i + n]) for i in range(0, len(counts), n)], counts[first : first + n]

    def _blocks(self, send_counts: Sequence[Sequence[int]]) -> np.ndarray:
        """Elements to every process from every thread of this one: (processes, threads), as they are sent."""
        return np.array(send_counts).reshape(self._nthreads, self._outer.size, -1).sum(2).T

    def _part(self, size: int) -> slice:
        """The part of an array of `size` elements that this thread adds up for its process."""
        return slice(size * self._thread // self._nthreads, size * (self._thread + 1) // self._nthreads)

    def _buffer(self, use: str, size: int, dtype: np.dtype) -> np.ndarray:
        """An array for the leader, which the next call may reuse."""
        held = self._buffers.get((use, dtype))
        if held is None or held.size < size:
            held = self._buffers[use, dtype] = np.empty(size, dtype)
        return held[:size]

    @contextmanager
    def _operation(
        self, name: str, array: np.ndarray, *agreed: Hashable, own: int = 0, aside: Any = None
    ) -> Iterator[tuple[RendezvousOperation, list[np.ndarray], list[Any]]]:
        """The operation, and every thread's `array` and `aside`, until all threads have left the block."""
        start = time.perf_counter()
        signature = (name, array.dtype, *agreed)
        try:
            with self._exchange.operation(self._thread, self.timeout_s, signature, (array, aside)) as operation:
                arrays, asides = zip(*operation.shown, strict=True)
                yield operation, list(arrays), list(asides)
        except BaseException:
            # The leader may be in the outer operation, and other processes may wait for this one.
            self._outer.abort(self._exchange.aborted)
            raise
        self.seconds[name] += time.perf_counter() - start
        self.nbytes[name] += array.nbytes - own * array.itemsize


def _ended(whole: Communicator, outer: Communicator) -> str:
    return whole.aborted or outer.aborted


def _parts(sizes: np.ndarray, thread: int) -> Iterator[tuple[slice, slice]]:
    """Where the parts of one thread lie: in its own array, and in the array that holds the parts of all threads.

    sizes: (parts, threads), elements; the shared array holds part 0 of every thread, then part 1 of every thread, ...
    """
    starts = np.cumsum(sizes).reshape(sizes.shape)[:, thread] - sizes[:, thread]
    begin = 0
    for start, size in zip(starts.tolist(), sizes[:, thread].tolist(), strict=True):
        yield slice(begin, begin + size), slice(start, start + size)
        begin += size
