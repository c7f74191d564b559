"""Seconds of a core that work takes from a thread that computes beside it."""

from __future__ import annotations

import threading
import time
from typing import Self

import numpy as np

_ELEMENTS = 1 << 16  # of the arrays that are added
_ALONE_S = 0.01


class Sum:
    """A sum of arrays that lie in the cache. Not a product: idle threads of BLAS spin, and take a core."""

    def __init__(self) -> None:
        self._a, self._b, self._out = (np.ones(_ELEMENTS, np.float32) for _ in range(3))
        self.run(5)

    def run(self, repeats: int) -> None:
        for _ in range(repeats):
            np.add(self._a, self._b, out=self._out)

    def seconds(self, repeats: int = 100) -> float:
        """Of a core, for one."""
        began = time.thread_time()
        self.run(repeats)
        return (time.thread_time() - began) / repeats


class Computing:
    """Inside, another thread of this process computes.

    taken: seconds of a core that all else took meanwhile, once it has ended. where: "machine": what the other threads
    of this process took; "network": also what the computing lost. The system sends and receives at the expense of
    whatever it interrupts, and what waits for messages takes less where another thread computes.
    """

    def __init__(self, where: str = "machine") -> None:
        self._where, self._ended, self._work = where, threading.Event(), Sum()
        self._repeats, self._computed = 0, 0.0
        self._thread = threading.Thread(target=self._compute, name="computing", daemon=True)
        self.taken = 0.0

    def __enter__(self) -> Self:
        self._each = self._work.seconds(max(1, round(_ALONE_S / self._work.seconds())))
        self._began, self._process = time.perf_counter(), time.process_time()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        elapsed, process = time.perf_counter() - self._began, time.process_time() - self._process
        self.taken = max(0.0, process - self._computed)
        if self._where == "network":
            self.taken = max(self.taken, elapsed - self._repeats * self._each)

    def _compute(self) -> None:
        began = time.thread_time()
        while not self._ended.is_set():
            self._work.run(10)
            self._repeats += 10
        self._computed = time.thread_time() - began
