"""How long two programs are compared pair by pair, and what the pairs say. Without IO.

A ratio is the time before / the time after: above 1 the later program is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist, fmean, median, stdev

AT_A_TIME, MOST = 15, 60  # pairs of each row
WITHIN = 0.03  # of its mean, the ends of the interval
LEAST, LEAST_OF_ROW = 0.95, 0.90


@dataclass(frozen=True)
class Interval:
    """The geometric mean of all rows' ratios, and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def is_wide(self) -> bool:
        """Whether it says too little."""
        return self.high / self.mean - 1 >= WITHIN

    @classmethod
    def of(cls, rows: Mapping[str, Sequence[float]]) -> Interval:
        """Of the ratios of each row, one for each pair: pairs are independent, and each has a mean of all rows."""
        pairs = [fmean(map(log, ratios)) for ratios in zip(*rows.values(), strict=True)]
        normal, freedom = NormalDist().inv_cdf(0.975), len(pairs) - 1
        student = normal + (normal**3 + normal) / (4 * freedom)  # Abramowitz and Stegun 26.7.5
        mean, half = fmean(pairs), student * stdev(pairs) / sqrt(len(pairs))
        return cls(exp(mean), exp(mean - half), exp(mean + half))


def goes_on(rows: Mapping[str, Sequence[float]], left_s: float, took_s: float) -> bool:
    """Whether there are more pairs. left_s: seconds that are left; took_s: that the last AT_A_TIME pairs took."""
    pairs = min(map(len, rows.values()))
    return Interval.of(rows).is_wide and pairs < MOST and took_s <= left_s


def verdict(rows: Mapping[str, Sequence[float]]) -> str:
    """ "passed", "failed", or "undecided" if more pairs would be needed to tell."""
    interval = Interval.of(rows)
    if interval.high < LEAST:
        return "failed"
    if interval.is_wide:
        return "undecided"
    slowest = min(median(ratios) for ratios in rows.values())
    return "passed" if interval.low >= LEAST and slowest >= LEAST_OF_ROW else "failed"
