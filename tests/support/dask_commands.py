"""A Dask cluster by the commands that users type."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


class DaskCommands:
    """`dask scheduler`, and `dask worker` as often as it is started. file: of the scheduler. processes: of all."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        folder.mkdir()
        self.file = folder / "scheduler.json"
        self._options = {"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.processes: list[subprocess.Popen] = []
        self.scheduler = self._start("scheduler", "--port", "0")

    def workers(self, count: int = 1, *more: str) -> subprocess.Popen:
        """Start a command with so many workers."""
        return self._start("worker", "--nthreads", "1", "--nworkers", str(count), *more)

    def end(self) -> None:
        """End all commands."""
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            process.wait(timeout=30)

    def _start(self, name: str, *more: str) -> subprocess.Popen:
        here = ["--scheduler-file", str(self.file), "--host", "127.0.0.1", "--no-dashboard"]
        command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *here, *more]
        self.processes.append(subprocess.Popen(command, **self._options))
        return self.processes[-1]
