"""Many histories, in processes of their own."""

from __future__ import annotations

import gc

from simulation.faults import scenario
from simulation.shrink import play, shrunk

CHUNK = 50  # histories that a process plays at a time


def begin() -> None:
    """What was imported stays, and need not be looked at when garbage is collected."""
    gc.freeze()
    gc.set_threshold(20_000)


def played(seeds: range) -> list[tuple[int, str, tuple[str, ...], tuple[str, ...]]]:
    outcomes = [(seed, play(scenario(seed))) for seed in seeds]
    return [(seed, outcome.broken, outcome.runs, outcome.trace) for seed, outcome in outcomes]


def shortest(seed: int) -> str:
    smallest = shrunk(scenario(seed))
    return f"{smallest}\n  -> {play(smallest).broken}"
