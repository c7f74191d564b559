"""A Dask cluster by the commands that users type, whose processes may be hit, and what a run in it shows."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

from singa_dask.cluster.cores import THREAD_VARIABLES, equal_share
from singa_dask.monitor.progress import Display
from tools.network import HOME_ADDRESS, Host

SETTINGS = {
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
}
STARTING_S = 120.0


class Watcher(Display):
    """Remembers when each worker group had made how many steps."""

    def __init__(self) -> None:
        self.seen: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)  # by group
        self.starts: defaultdict[int, list[float]] = defaultdict(list)  # by group: when it started
        self.started = threading.Event()

    def handle(self, event: Any) -> None:
        now = time.monotonic()
        if event["kind"] in ("start", "progress", "metrics"):
            self.seen[event["group"]].append((now, event["step"]))
        if event["kind"] == "start":
            self.starts[event["group"]].append(now)
        if event["kind"] == "progress":
            self.started.set()

    def steps(self, at: float = float("inf")) -> dict[int, int]:
        """The steps of each group at a moment."""
        last = {g: next((step for when, step in reversed(seen) if when <= at), None) for g, seen in self.seen.items()}
        return {group: step for group, step in last.items() if step is not None}

    @property
    def repeated(self) -> int:
        """Steps that were thrown away."""
        pairs = ((before, after) for seen in self.seen.values() for (_, before), (_, after) in pairwise(seen))
        return sum(max(0, before - after) for before, after in pairs)

    def pause(self, at: float) -> float:
        """Seconds from a moment until the end of the longest time without a step that any group had from then on."""
        rests = []
        for group, seen in self.seen.items():
            made = [(when, step) for when, step in seen if when not in self.starts[group]]
            new = [made[0], *(after for before, after in pairwise(made) if after[1] != before[1])] if made else []
            rests += [(end - max(begin, at), end) for (begin, _), (end, _) in pairwise(new) if end > at]
        return max(rests, default=(0.0, at))[1] - at

    def back(self, at: float) -> float | None:
        """When every group was beyond the step that it had at this moment; None if one never was."""
        reached = []
        for group, had in self.steps(at).items():
            later = [when for when, step in self.seen[group] if when > at and step > had]
            reached.append(later[0] if later else None)
        return None if None in reached else max(reached)


class Workers:
    """The scheduler and the `dask worker` commands of a cluster on this machine, each a nanny with its worker.

    hosts: that the workers are dealt to, if any.
    """

    def __init__(self, count: int, folder: Path, hosts: Sequence[Host] = ()) -> None:
        self.file, self.hosts = folder / "scheduler.json", hosts
        environment = SETTINGS | dict.fromkeys(THREAD_VARIABLES, str(equal_share(count)))
        self._environment, self._folder = os.environ | environment, folder
        home = HOME_ADDRESS if hosts else "127.0.0.1"
        self._dask("scheduler", "--host", home, "--scheduler-file", str(self.file), "--no-dashboard")
        self.nannies = [self.start(number) for number in range(count)]

    def start(self, number: int) -> subprocess.Popen:
        """The worker of this number."""
        host = self.hosts[number % len(self.hosts)] if self.hosts else None
        return self._dask(
            *("worker", "--scheduler-file", str(self.file), "--nthreads", "1", "--no-dashboard"),
            *("--local-directory", str(self._folder), "--preload", "singa_dask.cluster.worker_setup"),
            *(("--host", host.address) if host else ()),
            host=host,
        )

    def _dask(self, *arguments: str, host: Host | None = None) -> subprocess.Popen:
        command = [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]]
        command = host.command(command) if host else command
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=self._environment, **quiet)
        self._all = [*getattr(self, "_all", []), process]
        return process

    def crash(self, host: Host) -> None:
        """Kill all processes of a host at once."""
        for number, nanny in enumerate(self.nannies):
            if self.hosts[number % len(self.hosts)] is host:
                with suppress(psutil.Error):
                    for process in (psutil.Process(nanny.pid), *psutil.Process(nanny.pid).children(recursive=True)):
                        process.kill()

    def host_of(self, pid: int) -> Host:
        """Where a worker is."""
        above = {parent.pid for parent in psutil.Process(pid).parents()}
        return next(self.hosts[n % len(self.hosts)] for n, nanny in enumerate(self.nannies) if nanny.pid in above)

    def revive(self) -> None:
        """Start again what was killed."""
        self.nannies = [each if each.poll() is None else self.start(n) for n, each in enumerate(self.nannies)]

    def workers(self) -> list[psutil.Process]:
        """The processes of the workers: of each nanny the one below it that has computed most and started no other."""
        found = []
        for nanny in self.nannies:
            with suppress(psutil.Error, ValueError):
                below = psutil.Process(nanny.pid).children(recursive=True)
                parents = {process.ppid() for process in below}
                last = (process for process in below if process.pid not in parents)
                found.append(max(last, key=lambda process: sum(process.cpu_times()[:2])))
        return found

    def end(self) -> None:
        """End them all, with their children."""
        for process in reversed(self._all):
            with suppress(psutil.Error):
                tree = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
                for each in tree:
                    with suppress(psutil.Error):
                        each.kill()
            process.wait()


@contextmanager
def connected(workers: Workers, count: int) -> Iterator[Client]:
    deadline = time.monotonic() + STARTING_S
    while not workers.file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    with Client(scheduler_file=str(workers.file), timeout=STARTING_S) as client:
        client.wait_for_workers(count, timeout=STARTING_S)
        yield client


def left(before: set[str]) -> list[str]:
    """What a run has left behind: segments of shared memory, and processes of this one."""
    children = [child.name() for child in psutil.Process().children() if "resource_tracker" not in _command(child)]
    segments = {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}  # Python's, of any process
    return sorted(segments - before) + children


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # a zombie has none
        return ""
