"""Which of two ways of taking a step is the faster one here: both are tried, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

WARM_UP, TURNS, LASTS = 4, 8, 1000


class OverlapTuner:
    """Two ways of a step that end with the same result; those who take it together go the same way.

    After WARM_UP steps the ways take TURNS turns each, and the one with the smaller median of seconds goes on until,
    LASTS steps after the trial began, the next one begins: networks and their other users change. Until the first
    trial it is the first way.

        trial.begin(); a step, by the first way if trial.first; if trial.end(): trial.settle(sum of all ranks' seconds)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.first = True
        self._clock = clock
        self._step = -WARM_UP
        self._began = 0.0
        self._found: dict[bool, list[float]] = {True: [], False: []}

    def begin(self) -> None:
        if 0 <= self._step < 2 * TURNS:
            self.first = self._step % 4 in (0, 3)  # neither of them always after the other
        self._began = self._clock()

    def end(self) -> bool:
        """Whether both ways have had their turns, so that `settle` must come next."""
        if 0 <= self._step < 2 * TURNS:
            self._found[self.first].append(self._clock() - self._began)
        self._step += 1
        return self._step == 2 * TURNS

    @property
    def seconds(self) -> np.ndarray:
        """Of a step by the first way and by the second, here. Shape (2,)."""
        return np.array([statistics.median(self._found[first]) for first in (True, False)])

    def settle(self, seconds: np.ndarray) -> None:
        """seconds: as above, the same on all ranks."""
        self.first = bool(seconds[0] <= seconds[1])
        self._step = 2 * TURNS - LASTS
        self._found = {True: [], False: []}
