"""Many histories, in processes of their own."""

from __future__ import annotations

import gc
import hashlib
import logging
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

from simulation.faults import scenario
from simulation.shrink import play, shrunk

CHUNK = 50  # histories that a process plays at a time
CHUNKS = 4  # until another process goes on, which has no garbage
ROOT = Path(__file__).parents[2]


def start(processes: int) -> Pool:
    """Processes that have imported everything."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context.Pool(processes, _begin, maxtasksperchild=CHUNKS)


def _begin() -> None:
    """Garbage is not collected: the process ends before it is much."""
    gc.disable()
    logging.disable(logging.CRITICAL)


def seed_of_tree(root: Path = ROOT) -> int:
    """A seed that follows from the code of the package and of the simulation."""
    files = sorted(file for of in ("singa_dask", "tests/simulation") for file in (root / of).rglob("*.py"))
    read = hashlib.sha256(b"".join(str(file.relative_to(root)).encode() + file.read_bytes() for file in files))
    return 10_000 * int(read.hexdigest()[:6], 16)


def failed() -> dict[int, str]:
    """Seeds of histories that have broken a rule, and for what mistake."""
    lines = Path(__file__).with_name("seeds.txt").read_text().splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if not line.startswith("#"))
    return {int(seed): mistake for seed, mistake in pairs}


def played(seeds: Sequence[int], traced: bool) -> list[tuple[int, str, tuple[str, ...], tuple[str, ...]]]:
    outcomes = [(seed, play(scenario(seed), traced=traced)) for seed in seeds]
    return [(seed, outcome.broken, outcome.runs, outcome.trace) for seed, outcome in outcomes]


def shortest(seed: int) -> str:
    smallest = shrunk(scenario(seed))
    return f"{smallest}\n  -> {play(smallest).broken}"
