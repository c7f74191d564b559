"""A sample of predictions and targets, for a parity plot.   R rows, K targets."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from singa_dask.algorithms.metrics import ComparedRows, SetMetric


class ParitySample(SetMetric):
    """Predictions and targets of at most ROWS random rows of the set and of at most TARGETS targets.

    rows: of the whole set; the draw depends on their number alone. mean: (P, K), added to what is sampled: row i has
    that of position i mod P. state: zero where other workers have the row. result: (rows, targets, 2), predictions
    first; NaN for weight 0.
    """

    ROWS, TARGETS = 5000, 9
    is_number: ClassVar[bool] = False

    def __init__(self, targets: int, rows: int, mean: np.ndarray) -> None:
        drawn = np.random.default_rng(rows).choice(rows, min(rows, self.ROWS), replace=False)
        self._drawn, self._targets = np.sort(drawn), min(targets, self.TARGETS)
        self._mean = mean[:, : self._targets, None]
        self.state = np.zeros(drawn.size * self._targets * 2)

    def update(self, rows: ComparedRows) -> None:
        place = np.minimum(np.searchsorted(self._drawn, rows.number), self._drawn.size - 1)
        found = np.flatnonzero(self._drawn[place] == rows.number)
        pairs = np.stack([rows.prediction[found], rows.target[found]], axis=2)[:, : self._targets]
        seen = rows.weight[found, : self._targets, None] > 0
        pairs += self._mean[rows.number[found] % len(self._mean)]
        self.state.reshape(-1, self._targets, 2)[place[found]] = np.where(seen, pairs, np.nan)

    def result(self) -> np.ndarray:
        return self.state.reshape(-1, self._targets, 2)
