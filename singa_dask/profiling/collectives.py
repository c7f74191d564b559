"""What collectives take between the workers of a group: elapsed seconds, and seconds of a core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.buckets import even_counts
from singa_dask.planning.profile import Curve, Point
from singa_dask.profiling.layers import typical
from singa_dask.profiling.processors import Computing, Sum
from singa_dask.profiling.shared import measure_shared

OPERATIONS = ("reduce_scatter", "all_gather", "all_reduce", "all_to_all")
# Bytes of the whole buffer. The first two tell how time grows, in case that it does not suffice for the others.
SIZES = tuple(1 << power for power in (8, 20, 16, 24, 12, 22, 18, 14))
# A size beyond the first two is left out if one call takes longer than this, seconds.
LONGEST_S = 0.2
# Each size is measured so often, with all others in between: others may use the machine or the network for a while.
ROUNDS = 3
_SERIES_S = 0.03  # for the calls that are timed one after the other
_MOST_CALLS, _FEWEST_CALLS = 25, 3
_SHARE_BESIDE = 0.4  # of the calls: repeated beside a computing thread
_COMPUTE_S = 1e-3, 4e-3, 16e-3  # of a core between two barriers, as in small steps and in larger ones
_BARRIERS_S, _MOST_BARRIERS, _FEWEST_BARRIERS = 0.5, 60, 18  # for each of them


@dataclass(frozen=True)
class CollectivesPlan:
    """What the ranks of a group measure.

    where: "machine" if they are on one host, "network" if each has a host of its own. cores: of a host. seconds:
    after which no further size is begun. operations: whose curves are wanted besides those of barriers.
    """

    where: str
    cores: int
    seconds: float
    operations: tuple[str, ...] = OPERATIONS


def measure_collectives(comm: Communicator, plan: CollectivesPlan) -> dict[str, Curve]:
    """Curves by name, the same on every rank: "OP machine N" or "OP network N", as in Profile, and on one host those
    of shared memory. Collective.

    seconds: of the slowest rank, the median of several calls. cpu: of a rank's thread beside a computing thread, the
    mean over ranks.
    """
    curves = _Measuring(comm, plan).curves()
    shares = plan.where == "machine" and plan.operations
    return curves | measure_shared(comm) if shares else curves


class _Measuring:
    """One group's measurements. Every decision rests on numbers that all ranks have."""

    def __init__(self, comm: Communicator, plan: CollectivesPlan) -> None:
        self._comm, self._plan = comm, plan
        self._began = time.monotonic()
        self._points: dict[str, list[Point]] = {operation: [] for operation in plan.operations}

    def curves(self) -> dict[str, Curve]:
        curves = {"barrier": Curve((self._point(0, self._comm.barrier),))}
        if self._plan.where == "machine":
            curves["barrier shared"] = Curve.of(map(self._barrier_after, _COMPUTE_S))
        for size in SIZES * ROUNDS:
            for operation in self._plan.operations:
                self._measure(operation, size)
        curves |= {operation: Curve.medians(points) for operation, points in self._points.items() if points}
        where, ranks = self._plan.where, self._comm.size
        return {f"{name if ' ' in name else f'{name} {where}'} {ranks}": curve for name, curve in curves.items()}

    def _measure(self, operation: str, size: int) -> None:
        """Measure one size, unless it would take too long: a single point may have been slow by chance."""
        points = self._points[operation]
        expected = Curve.medians(points).seconds(size) if points else 0.0
        left = self._plan.seconds - self._elapsed()
        if len(points) > 1 and (expected > LONGEST_S or (2 * _FEWEST_CALLS + 2) * expected > left):
            return
        points.append(self._point(size, _call(self._comm, operation, size)))

    def _point(self, size: int, call: Callable[[], None]) -> Point:
        comm = self._comm
        once = float(self._series(call, 2).max(axis=0)[-1])
        calls = int(np.clip(_SERIES_S / max(once, 1e-9), _FEWEST_CALLS, _MOST_CALLS))
        seconds = np.median(self._series(call, calls).max(axis=0))
        comm.hurried = False
        try:
            with Computing():
                cpu = self._series(call, max(2, int(calls * _SHARE_BESIDE)), time.thread_time).mean()
        finally:
            comm.hurried = True
        return Point(size, float(seconds), float(cpu))

    def _series(
        self, call: Callable[[], None], calls: int, clock: Callable[[], float] = time.perf_counter
    ) -> np.ndarray:
        """Time of calls one after the other, which all ranks begin together.   -> (ranks, calls)"""
        self._comm.barrier()
        stamps = [clock()]
        for _ in range(calls):
            call()
            stamps.append(clock())
        return self._of_all(np.diff(stamps))

    def _barrier_after(self, seconds: float) -> Point:
        """What meeting takes after so many seconds of a core that computing does not: from one barrier to the next,
        less the computing, as if cores were shared evenly.

        This is what workers lose that share cores: they take turns, and are ready at different times.
        """
        comm, work = self._comm, Sum()
        turns = max(1.0, comm.size / self._plan.cores)
        times = self._of_all(np.array([work.seconds()]))
        repeats = max(1, round(seconds / float(np.median(times))))
        barriers = int(np.clip(_BARRIERS_S / seconds / turns, _FEWEST_BARRIERS, _MOST_BARRIERS))
        computing, period, waiting = [], [], []
        comm.barrier()
        began = time.perf_counter()
        for _ in range(barriers):
            busy = time.thread_time()
            work.run(repeats)
            met = time.thread_time()
            comm.barrier()
            computing.append(met - busy)
            waiting.append(time.thread_time() - met)
            period.append(time.perf_counter() - began)
            began += period[-1]
        warm = slice(barriers // 6, None)
        computed = np.median(self._of_all(np.array(computing[warm])))
        periods = self._of_all(np.array(period[warm])).max(axis=0)
        cpu = np.median(self._of_all(np.array(waiting[warm])))
        return Point(float(seconds), max(0.0, typical(periods) - turns * float(computed)), float(cpu))

    def _elapsed(self) -> float:
        """Seconds since the beginning, on the first rank."""
        elapsed = np.array([time.monotonic() - self._began])
        self._comm.broadcast(elapsed)
        return float(elapsed[0])

    def _of_all(self, numbers: np.ndarray) -> np.ndarray:
        """The numbers of every rank.   (n,) -> (ranks, n)"""
        comm = self._comm
        gathered = np.zeros((comm.size, numbers.size))
        gathered[comm.rank] = numbers
        comm.all_gather(gathered.reshape(-1), [numbers.size] * comm.size)
        return gathered


def _call(comm: Communicator, operation: str, nbytes: int) -> Callable[[], None]:
    """A call of the operation, on a whole buffer of float32 with so many bytes."""
    size = nbytes // 4
    counts = even_counts(size, comm.size)
    own = counts[comm.rank]
    if operation == "reduce_scatter":
        send, recv = _zeros(size), _zeros(own)
        return lambda: comm.start_reduce_scatter(send, recv, counts).wait()
    if operation == "all_gather":
        buffer = _zeros(size)
        return lambda: comm.start_all_gather(buffer, counts).wait()
    if operation == "all_reduce":
        summed = _zeros(size)
        return lambda: comm.all_reduce(summed)
    assert operation == "all_to_all"
    # What rank a has for rank b is as much as what b has for a.
    share = even_counts(size // comm.size, comm.size)
    met = [share[min(comm.rank, rank)] for rank in range(comm.size)]
    sent, received = _zeros(sum(met)), _zeros(sum(met))
    return lambda: comm.start_all_to_all(sent, met, received, met).wait()


def _zeros(size: int) -> np.ndarray:
    """Zeros in memory of their own: the pages of numpy.zeros are one page of the system until they are written."""
    array = np.empty(size, np.float32)
    array.fill(0)
    return array
