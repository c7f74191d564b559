"""Whether overlap makes a step faster here: steps with it and without it are timed in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

WARM_UP, TURNS, LASTS = 4, 8, 1000


class OverlapTuner:
    """Chooses between two ways of a step that give the same result; all ranks choose the same one.

    After WARM_UP steps each way gets TURNS turns. The way with the smaller median of seconds is used until the next
    trial begins, LASTS steps after this one: networks and their load change. The first way is used before
    the first trial.

        tuner.begin(); a step, by the first way if tuner.first; if tuner.end(): tuner.choose(sum of all ranks' seconds)
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.first = True
        self._clock = clock
        self._step = -WARM_UP
        self._began = 0.0
        self._found: dict[bool, list[float]] = {True: [], False: []}

    def begin(self) -> None:
        if 0 <= self._step < 2 * TURNS:
            self.first = self._step % 4 in (0, 3)  # neither always follows the other
        self._began = self._clock()

    def end(self) -> bool:
        """Returns whether both ways have had their turns, so that `choose` must follow."""
        if 0 <= self._step < 2 * TURNS:
            self._found[self.first].append(self._clock() - self._began)
        self._step += 1
        return self._step == 2 * TURNS

    @property
    def seconds(self) -> np.ndarray:
        """Median seconds of a step by the first way and by the second, on this rank. Shape (2,)."""
        return np.array([statistics.median(self._found[first]) for first in (True, False)])

    def choose(self, seconds: np.ndarray) -> None:
        """Take the faster way. seconds: as `seconds`, summed over all ranks."""
        self.first = bool(seconds[0] <= seconds[1])
        self._step = 2 * TURNS - LASTS
        self._found = {True: [], False: []}
