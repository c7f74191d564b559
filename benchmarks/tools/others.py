"""How much of the machine others use while something is measured: what they compute makes it slower."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil


class Others:
    """Watches from its making on. Processes that this one has started, and theirs, are not others."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy_s(), _own_s()

    @property
    def cores(self) -> float:
        """Cores that others have used since, on average."""
        own = sum(seconds - self._own.get(pid, 0.0) for pid, seconds in _own_s().items())
        return max(0.0, (_busy_s() - self._busy - own) / (time.monotonic() - self._began))


def _busy_s() -> float:
    """Seconds of cores that were computing so far, in this machine and, where it is a virtual one, in place of it."""
    columns = [int(column) for column in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle, waiting = columns[3], columns[4]
    return (sum(columns) - idle - waiting) / os.sysconf("SC_CLK_TCK")


def _own_s() -> dict[int, float]:
    """Seconds of cores of this process and all below it, by process."""
    here, found = psutil.Process(), {}
    for process in (here, *here.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found
