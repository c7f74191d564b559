"""Removing what a broken history does not need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulation.faults import Fault, Scenario
from simulation.history import History, Outcome


def play(scenario: Scenario, *, traced: bool = True) -> Outcome:
    """The history of a scenario."""
    return History(scenario, traced=traced).play()


def broken(scenario: Scenario) -> bool:
    """Whether the history of a scenario breaks a rule."""
    return bool(play(scenario, traced=False).broken)


def shrunk(scenario: Scenario, breaks: Callable[[Scenario], bool] = broken) -> Scenario:
    """The scenario with the fewest faults that still breaks a rule, and then with the simplest surroundings.

    Delta debugging (Zeller and Hildebrandt 2002): it leaves out ever smaller parts of the list. No single fault of the
    result can be left out.
    """
    smallest = replace(scenario, faults=_shortest(scenario, breaks))
    for simpler in ({"slow": {}}, {"spare": 0}, {"nannies": True}, {"max_restarts": 3}):
        candidate = replace(smallest, **simpler)  # type: ignore[arg-type]
        if candidate != smallest and breaks(candidate):
            smallest = candidate
    return replace(smallest, faults=_shortest(smallest, breaks))  # simpler surroundings may need fewer


def _shortest(scenario: Scenario, breaks: Callable[[Scenario], bool]) -> tuple[Fault, ...]:
    faults, size = scenario.faults, max(1, len(scenario.faults) // 2)
    while faults:
        for first in range(0, len(faults), size):
            rest = faults[:first] + faults[first + size :]
            if breaks(replace(scenario, faults=rest)):
                faults = rest
                break
        else:
            if size == 1:
                break
            size //= 2
        size = min(size, max(1, len(faults)))
    return faults
