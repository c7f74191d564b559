"""Many histories, in processes of their own."""

from __future__ import annotations

import gc
import os
from typing import Any

from simulation.faults import scenario
from simulation.shrink import play, shrunk

CHUNK = 50  # histories that a process plays at a time


def on_one_core(started: Any) -> None:
    """Threads of a history take turns: on one core they hand over four times as fast. What was imported stays, and
    need not be looked at when garbage is collected."""
    with started.get_lock():
        number, started.value = started.value, started.value + 1
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    gc.freeze()
    gc.set_threshold(20_000)


def played(seeds: range) -> list[tuple[int, str, tuple[str, ...], tuple[str, ...]]]:
    outcomes = [(seed, play(scenario(seed))) for seed in seeds]
    return [(seed, outcome.broken, outcome.runs, outcome.trace) for seed, outcome in outcomes]


def shortest(seed: int) -> str:
    smallest = shrunk(scenario(seed))
    return f"{smallest}\n  -> {play(smallest).broken}"
