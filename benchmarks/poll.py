"""How to wait for a collective when ranks may be more than cores: the figures behind comm/polled.py.

mpiexec -n 3 python benchmarks/poll.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from singa_dask.comm import polled

COMPUTE_S = 0.010
STEPS = {40_000: 20, 2_000_000: 15, 48_000_000: 4}
ROUNDS = 5


def tight(request: Any) -> None:
    while not request.Test():
        pass


def yielding(request: Any) -> None:
    while not request.Test():
        os.sched_yield()


def yielding_then_sleeping(request: Any) -> None:
    began = time.perf_counter()
    while not request.Test():
        if time.perf_counter() - began < polled.YIELD_S:
            os.sched_yield()
        else:
            time.sleep(5e-5)


def yielding_while_nobody_else_runs(request: Any) -> None:
    began = time.perf_counter()
    patience = polled.LONGEST_YIELDING_S
    while not request.Test():
        before = time.perf_counter()
        if before - began < patience:
            os.sched_yield()
            if time.perf_counter() - before > polled.WANTED_S:
                patience = polled.YIELD_S
        else:
            time.sleep(5e-5)


WAITS: dict[str, Callable[[Any], None] | None] = {
    "blocking": None,
    "Test, no pause": tight,
    "sched_yield": yielding,
    "yield, then sleep": yielding_then_sleeping,
    "yield while alone": yielding_while_nobody_else_runs,
}


class Step:
    """Matrix products for about 10 ms, then reduce-scatter and all-gather of `nbytes`."""

    def __init__(self, comm: Any, nbytes: int, products: int):
        self.comm, self.products = comm, products
        size, extra = divmod(nbytes // 4, comm.size)
        self.counts = [size + (rank < extra) for rank in range(comm.size)]
        self.whole = np.ones(sum(self.counts), np.float32)
        self.own = np.empty(self.counts[comm.rank], np.float32)

    def run(self, wait: Callable[[Any], None] | None) -> None:
        multiply(self.products)
        gathered = [self.whole, self.counts]
        if wait is None:
            self.comm.Reduce_scatter(self.whole, self.own, self.counts)
            self.comm.Allgatherv(MPI.IN_PLACE, gathered)
        else:
            wait(self.comm.Ireduce_scatter(self.whole, self.own, self.counts))
            wait(self.comm.Iallgatherv(MPI.IN_PLACE, gathered))
        self.whole[:] = 1


def multiply(times: int, factor: np.ndarray = np.ones((256, 256), np.float32)) -> None:  # noqa: B008
    for _ in range(times):
        factor @ factor


def main() -> None:
    comm = MPI.COMM_WORLD
    began = time.perf_counter()
    multiply(50)
    products = comm.bcast(max(1, round(50 * COMPUTE_S / (time.perf_counter() - began))))
    for nbytes, steps in STEPS.items():
        step = Step(comm, nbytes, products)
        times: dict[str, list[float]] = {name: [] for name in WAITS}
        for number in range(ROUNDS):
            for name, wait in list(WAITS.items())[:: 1 if number % 2 else -1]:
                comm.Barrier()
                began = time.perf_counter()
                for _ in range(steps):
                    step.run(wait)
                comm.Barrier()
                times[name].append(1e3 * (time.perf_counter() - began) / steps)
        if comm.rank == 0:
            figures = "  ".join(f"{name} {statistics.median(values):.1f}" for name, values in times.items())
            print(f"{nbytes / 1e6:g} MB, ms per step: {figures}", flush=True)


if __name__ == "__main__":
    main()
