"""Runs in the background, as `started` starts them: how far they are, and their processes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psutil
from support.commands import said, wait_until

_STEP = re.compile(r"^(?:group (\d+)  )?step +(\d+)/\d+  train", re.MULTILINE)


def steps(folder: Path) -> dict[int, int]:
    """The last step that each worker group has shown."""
    return {int(group or 0): int(step) for group, step in _STEP.findall(said(folder))}


def wait_for_step(step: int, process: subprocess.Popen, folder: Path, groups: int = 1, within: float = 60) -> None:
    """Wait until so many worker groups have shown this step or a later one."""
    wait_until(lambda: sum(at >= step for at in steps(folder).values()) >= groups, process, folder, within)


def workers(process: subprocess.Popen) -> list[psutil.Process]:
    """The Dask workers of a run: all are forked from one process."""
    (forks,) = (child for child in psutil.Process(process.pid).children() if "forkserver" in str(child.cmdline()))
    return forks.children()


def in_mpi(process: psutil.Process) -> bool:
    """Whether the process has a rank of a worker group of several."""
    return any("libmpi" in mapped.path for mapped in process.memory_maps())
