"""Which ranks make no step though no collective is late, as in an endless loop. No IO."""

from __future__ import annotations

from collections.abc import Mapping

from singa_dask.cluster.rank import Looks

# Ranks are asked after so long without news of a step, and so often.
QUIET_S, ASK_EVERY_S = 5.0, 2.0
# Long steps are legitimate: a rank stands still if it has not ended a step for so many times the longest one before.
_TIMES, _TIMES_WHEN_ASKED = 10, 3
# The first step may have to compile. A rank that was asked to stop gets less time: batch systems kill soon.
_FIRST = 10
_ASKED_S = 5.0


class Standstill:
    """The worker groups of a run, by number, and when each was last heard of.

    patience_s: how long a rank may stand still.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._heard: dict[int, float] = {}
        self._asked: dict[int, float] = {}
        self._say_at: dict[int, float] = {}

    def made_step(self, group: int, now: float) -> None:
        """A worker group has made a step, or is formed anew."""
        self._heard[group] = now
        self._say_at.pop(group, None)

    def due(self, group: int, now: float) -> bool:
        """Whether the ranks of a worker group should be asked where they are."""
        last = max(self._heard.setdefault(group, now) + QUIET_S - ASK_EVERY_S, self._asked.get(group, 0.0))
        if now - last < ASK_EVERY_S:
            return False
        self._asked[group] = now
        return True

    def still(self, looks: Mapping[int, Looks | None]) -> list[int]:
        """The ranks that stand still. Those that wait for others, or for data, do not."""
        return [rank for rank, of in looks.items() if of and not of.waits and of.ago_s > self._limit_s(of)]

    def _limit_s(self, of: Looks) -> float:
        if of.asked:
            return max(_ASKED_S, _TIMES_WHEN_ASKED * of.longest_s) if of.longest_s else self._patience_s
        return max(self._patience_s, _TIMES * of.longest_s) if of.longest_s else _FIRST * self._patience_s

    def says(self, group: int, now: float) -> bool:
        """Whether it is time to say again that ranks of a group stand still: ever more rarely."""
        if now < self._say_at.get(group, 0.0):
            return False
        self._say_at[group] = now + max(now - self._heard[group], self._patience_s)
        return True
