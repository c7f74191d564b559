"""Seconds of a core that work takes."""

from __future__ import annotations

import os
import time

import psutil  # type: ignore[import-untyped]


def core_seconds(where: str) -> float:
    """Seconds of a core used so far. where: "machine": by this process; "network": by everything on the cores that it
    may use. A host's network takes time that counts for no process, or for any: that which it interrupts."""
    if where == "machine":
        return time.process_time()
    times = psutil.cpu_times(percpu=True)
    idle = [times[core].idle + getattr(times[core], "iowait", 0.0) for core in _cores(len(times))]
    return time.monotonic() * len(idle) - sum(idle)


def _cores(count: int) -> list[int]:
    """Of this process, of so many."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(count))
    return [core for core in sorted(os.sched_getaffinity(0)) if core < count]
