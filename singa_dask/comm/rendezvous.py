"""Where the threads of one process show each other their arrays; shared by all communicators of threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from singa_dask.errors import ClusterError, CommTimeout

# How often a waiting thread checks whether the group was ended from outside the process.
_CHECK_EVERY_S = 0.1


class Rendezvous:
    """Operations of `size` threads, which all start the same ones in the same order.

    first: the rank of thread 0, for messages. interrupted: returns why the group was ended from outside, or "".
    """

    def __init__(self, size: int, first: int = 0, interrupted: Callable[[], str] = str) -> None:
        self.size, self.first = size, first
        self._interrupted = interrupted
        self._shown: list[tuple[tuple[Hashable, ...], Any]] = [((), None)] * size
        self._changed = threading.Condition()
        self._arrived: set[int] = set()
        self._round = 0
        self._failure: ClusterError | None = None

    @property
    def aborted(self) -> str:
        """Why every operation fails from now on; "" unless one has failed."""
        return str(self._failure or "")

    def abort(self, failure: ClusterError) -> None:
        """Make the current operation and all later ones fail. The first failure counts."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    @contextmanager
    def operation(
        self, thread: int, timeout_s: float, signature: tuple[Hashable, ...], shown: Any
    ) -> Iterator[RendezvousOperation]:
        """Show `shown` to the other threads and see theirs, until every thread has left the block.

        signature: the operation's name and all that the threads must agree on. An error of one thread in the block
        reaches the others as ClusterError, or as CommTimeout if it was one.
        """
        operation = RendezvousOperation(self, thread, str(signature[0]), timeout_s)
        try:
            self._shown[thread] = (signature, shown)
            operation.meet()
            signatures = [signature for signature, _ in self._shown]
            if len(set(signatures)) > 1:
                raise ClusterError(f"the ranks called different operations: {_told_apart(signatures)}")
            operation.shown = [shown for _, shown in self._shown]
            yield operation
            operation.meet()
        except ClusterError as error:
            self.abort(error)
            raise
        except BaseException as error:
            cause = f"{type(error).__name__}: {error}"
            self.abort(ClusterError(f"rank {self.first + thread} failed in {operation.name}: {cause}"))
            raise

    def forget(self, thread: int) -> None:
        """Release what this thread has shown."""
        self._shown[thread] = ((), None)

    def meet(self, operation: RendezvousOperation) -> None:
        """Return when every thread is here. Raises ClusterError if an operation has failed, or CommTimeout."""
        rank = self.first + operation.thread
        with self._changed:
            self._check(rank, operation.name)
            self._arrived.add(operation.thread)
            if len(self._arrived) == self.size:
                self._arrived.clear()
                self._round += 1
                self._changed.notify_all()
                return
            this = self._round
            while self._round == this:
                self._check(rank, operation.name)
                left = operation.left_s
                if reason := self._interrupted():
                    self._failure = ClusterError(reason)
                elif left <= 0:
                    raise self._late(rank, operation)
                else:
                    self._changed.wait(min(left, _CHECK_EVERY_S))

    def _check(self, rank: int, name: str) -> None:
        if self._failure is not None:
            kind = CommTimeout if isinstance(self._failure, CommTimeout) else ClusterError
            raise kind(f"rank {rank}, {name}: {self._failure}")

    def _late(self, rank: int, operation: RendezvousOperation) -> CommTimeout:
        missing = [str(self.first + thread) for thread in range(self.size) if thread not in self._arrived]
        late = f"rank {missing[0]} is" if len(missing) == 1 else f"ranks {', '.join(missing)} are"
        self._failure = CommTimeout(
            f"rank {rank}: {operation.name} did not finish within {operation.timeout_s:.1f} s; {late} lost or late"
        )
        return self._failure


class RendezvousOperation:
    """One operation, seen from one of its threads. shown: what each thread shows, in their order."""

    def __init__(self, exchange: Rendezvous, thread: int, name: str, timeout_s: float) -> None:
        self.thread, self.name, self.timeout_s = thread, name, timeout_s
        self.shown: list[Any] = []
        self._exchange = exchange
        self._deadline = time.perf_counter() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds until the operation must be done, at least 0."""
        return max(self._deadline - time.perf_counter(), 0.0)

    def meet(self) -> None:
        """Return when every thread is here. Raises CommTimeout, or ClusterError when another thread has failed."""
        self._exchange.meet(self)


def add_up(arrays: Sequence[np.ndarray], out: np.ndarray) -> None:
    """out = the sum of `arrays`, added in their order. out may be the first of them."""
    if out is not arrays[0]:
        np.copyto(out, arrays[0])
    for array in arrays[1:]:
        out += array


def _told_apart(signatures: Sequence[tuple[Hashable, ...]]) -> str:
    return "; ".join(" ".join(map(str, signature)) for signature in signatures)
