"""Operations that proceed once they are started, and are polled for completion."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from singa_dask.comm.communicator import Communicator, Request
from singa_dask.comm.stragglers import named
from singa_dask.errors import ClusterError, CommTimeout

# There may be more ranks than cores, so a waiting rank must yield its core. Milliseconds per step of 3 ranks on 2
# cores: 10 ms of matrix products each, then reduce-scatter and all-gather (medians of 15 rounds, MPICH 5.0.2;
# benchmarks/poll.py):
#
#   buffer    blocking   Test without pause   sched_yield   0.2 ms of sched_yield, then sleeps of 50 us
#   40 KB       20.6            36.4              20.9            17.9
#   2 MB        21.5            41.0              21.5            19.5
#   48 MB       56.9            50.3              41.0            35.4
#
# Test without a pause holds the core that a computing rank needs. A blocking call has no deadline and is slowest for
# large buffers. With a core per rank (2 ranks) the sleeps cost 0.4 ms in 10.2 ms, so a rank yields first. On 2 cores
# of an Intel Xeon they cost 1 ms in 13, so a rank keeps yielding, for up to 5 ms, while no other thread wants its
# core: a yield then returns almost at once. CPU quotas and hyperthreads are not detected this way.
# MPIR_CVAR_POLLS_BEFORE_YIELD (0, 1, default) makes no measurable difference.
#
# In a thread beside the computing one, yields and sleeps of 50 us take a fifth of the core. So it never yields, and
# its sleeps grow to a sixteenth of the time waited, up to a limit at which sockets do not fill up.
YIELD_S, LONGEST_YIELDING_S = 2e-4, 5e-3
# A yield that takes longer gave the core to another thread.
WANTED_S = 2e-5
_SLEEP_S, _LONGEST_SLEEP_S = 5e-5, 2e-4


class PolledCommunicator(Communicator):
    """Collectives with a deadline, by a library that cannot cancel an operation.

    timeout_s: seconds of waiting after which an operation raises CommTimeout. interrupted: returns why operations must
    end; "" while there is no reason. After an error the communicator is
    broken: every later call raises ClusterError. Incomplete operations stay referenced here, because the library may
    still write into their buffers.
    """

    def __init__(self, rank: int, size: int, timeout_s: float, interrupted: Callable[[], str] = str) -> None:
        super().__init__()
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._interrupted = interrupted
        self._under_way: dict[int, Callable[[], bool]] = {}  # by number
        self._broken = ""
        self._aborted = ""
        self._awaited = 0  # the number of the current operation
        self._number = 0  # of the last operation that was started, the same on all ranks

    @property
    def aborted(self) -> str:
        return self._aborted or self._interrupted()

    def abort(self, reason: str) -> None:
        self._aborted = self._aborted or reason

    @property
    def broken(self) -> bool:
        """Whether an operation failed. The library may still use its buffers."""
        return bool(self._broken)

    @property
    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of the library."""

    def _answer(self) -> None:
        """Tell the other ranks which operation this one has reached; called after half of the deadline."""

    def _missing(self) -> list[int]:
        """The ranks that have not reached the current operation; empty where that is not known."""
        return []

    def _start(self, operation: str, nbytes: int, start: Callable[[], Callable[[], bool]]) -> Request:
        """Start an operation. start: returns a test, which does not wait, of whether the operation is complete."""
        self._check_whole(operation)
        self._number += 1
        with self._timed(operation):
            self._under_way[self._number] = start()
        return _PolledRequest(self, operation, nbytes, self._number)

    def _wait(self, operation: str, nbytes: int, number: int) -> None:
        """Return when a started operation is complete."""
        self._check_whole(operation)
        done, self._awaited = self._under_way[number], number
        with self._timed(operation):
            try:
                self._poll(operation, done)
            except (KeyboardInterrupt, SystemExit):
                self._break(f"an unfinished {operation}")
                raise
        del self._under_way[number]
        self.nbytes[operation] += nbytes

    def progress(self) -> bool:
        if self._broken or self.aborted or not self._under_way:
            return False
        with self._guarded("operation"):
            return not all(done() for done in self._under_way.values())

    def _check_whole(self, operation: str) -> None:
        if self._broken:
            raise ClusterError(f"rank {self.rank}: {operation} after {self._broken}")
        if self._aborted:
            raise ClusterError(f"rank {self.rank}, {operation}: {self._aborted}")

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        """As _guarded; adds the time inside to the seconds of the operation."""
        began = time.perf_counter()
        try:
            with self._guarded(operation):
                yield
        finally:
            self.seconds[operation] += time.perf_counter() - began

    @contextmanager
    def _guarded(self, operation: str) -> Iterator[None]:
        """Inside, errors of the library break the communicator."""
        try:
            yield
        except self._errors as error:
            self._break(f"a failed {operation}")
            raise ClusterError(f"rank {self.rank}: {operation} failed: {error}") from error

    def _poll(self, operation: str, done: Callable[[], bool]) -> None:
        """Poll until the operation is complete, the deadline passes, or the communicator is aborted."""
        began, answered, patience = time.perf_counter(), False, LONGEST_YIELDING_S
        while not done():
            waited = time.perf_counter() - began
            if self.aborted:
                self._break(f"an unfinished {operation}")
                what = f"rank {self.rank}: aborted during {operation}, after {waited:.1f} s"
                raise ClusterError(f"{what}: {self.aborted}")
            if waited >= self.timeout_s / 2 and not answered:
                self._answer()
                answered = True
            if waited >= self.timeout_s:
                late = named(self._missing()) or f"at least one of the {self.size} ranks is"
                self._break(f"an unfinished {operation}")
                what = f"rank {self.rank}: {operation} did not finish within {waited:.1f} s"
                raise CommTimeout(f"{what}; {late} lost, stopped or late. Look at its output and its machine.")
            if self.hurried and waited < patience:
                os.sched_yield()
                if time.perf_counter() - began - waited > WANTED_S:
                    patience = YIELD_S
            else:
                time.sleep(min(max(_SLEEP_S, waited / 16), _LONGEST_SLEEP_S))

    def _break(self, what: str) -> None:
        self._broken = what


class _PolledRequest(Request):
    def __init__(self, comm: PolledCommunicator, operation: str, nbytes: int, number: int) -> None:
        self._comm, self._operation, self._nbytes, self._number = comm, operation, nbytes, number

    def wait(self) -> None:
        self._comm._wait(self._operation, self._nbytes, self._number)
