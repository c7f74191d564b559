"""Where the threads of one process show each other their arrays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from singa_dask.comm.stragglers import named
from singa_dask.errors import ClusterError, CommTimeout

# How often a waiting thread checks whether the group was ended from outside the process.
_CHECK_EVERY_S = 0.1


class Rendezvous:
    """Operations of `size` ranks, each a thread. All start the same operations in the same order.

    interrupted: returns why the group was ended from outside, or "".
    """

    def __init__(self, size: int, interrupted: Callable[[], str] = str) -> None:
        self.size = size
        self._interrupted = interrupted
        self._shown: list[tuple[tuple[Hashable, ...], Any]] = [((), None)] * size
        self._changed = threading.Condition()
        self._arrived: set[int] = set()
        self._round = 0
        self._failure: ClusterError | None = None

    @property
    def aborted(self) -> str:
        """Why every operation fails from now on; "" unless one has failed."""
        return str(self._failure or self._interrupted())

    def abort(self, failure: ClusterError) -> None:
        """Make the current operation and all later ones fail. The first failure counts."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    @contextmanager
    def operation(
        self, rank: int, timeout_s: float, signature: tuple[Hashable, ...], shown: Any
    ) -> Iterator[list[Any]]:
        """Show `shown` to the other ranks; inside the block, what every rank shows, in their order.

        signature: the operation's name and all that the ranks must agree on. No rank leaves the block before all have
        reached its end. An error of one rank in the block reaches the others as ClusterError, or as CommTimeout if it
        was one.
        """
        operation = _Operation(rank, str(signature[0]), timeout_s, time.perf_counter() + timeout_s)
        try:
            self._shown[rank] = (signature, shown)
            self._meet(operation)
            signatures = [signature for signature, _ in self._shown]
            if len(set(signatures)) > 1:
                with self._changed:
                    self._check(operation)  # after a failure, a rank may show its next operation
                raise ClusterError(f"the ranks called different operations: {_told_apart(signatures)}")
            yield [shown for _, shown in self._shown]
            self._meet(operation)
        except ClusterError as error:
            self.abort(error)
            raise
        except BaseException as error:
            cause = f"{type(error).__name__}: {error}"
            self.abort(ClusterError(f"rank {rank} failed in {operation.name}: {cause}"))
            raise

    def forget(self, rank: int) -> None:
        """Release what this rank has shown."""
        self._shown[rank] = ((), None)

    def _meet(self, operation: _Operation) -> None:
        """Return when every rank is here. Raises CommTimeout, or ClusterError when an operation has failed."""
        with self._changed:
            self._check(operation)
            self._arrived.add(operation.rank)
            if len(self._arrived) == self.size:
                self._arrived.clear()
                self._round += 1
                self._changed.notify_all()
                return
            this = self._round
            while self._round == this:
                self._check(operation)
                left = operation.deadline - time.perf_counter()
                if left <= 0:
                    raise self._late(operation)
                self._changed.wait(min(left, _CHECK_EVERY_S))

    def _check(self, operation: _Operation) -> None:
        if self._failure is None and (reason := self._interrupted()):
            self._failure = ClusterError(reason)
        if self._failure is not None:
            kind = CommTimeout if isinstance(self._failure, CommTimeout) else ClusterError
            raise kind(f"rank {operation.rank}, {operation.name}: {self._failure}")

    def _late(self, operation: _Operation) -> CommTimeout:
        late = named([rank for rank in range(self.size) if rank not in self._arrived])
        self._failure = CommTimeout(
            f"rank {operation.rank}: {operation.name} did not finish within {operation.timeout_s:.1f} s; "
            f"{late} lost or late"
        )
        return self._failure


class _Operation(NamedTuple):
    """An operation of one rank. deadline: by time.perf_counter."""

    rank: int
    name: str
    timeout_s: float
    deadline: float


def _told_apart(signatures: Sequence[tuple[Hashable, ...]]) -> str:
    return "; ".join(" ".join(map(str, signature)) for signature in signatures)
