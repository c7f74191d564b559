"""What a run keeps of its work while its processes are killed and stopped at random moments.

make storm                               # or: python benchmarks/storm.py --seconds 1800 --json storm.json

Each framework trains the same net twice on Dask workers of this machine: in calm, and in a storm. In the storm a fault
hits the run every 15 seconds on average, as a seed draws them. Nobody but the driver and the scheduler is immune.

    kill, stop                kill -9 or SIGSTOP of a process with a worker or a server
    kill_nanny, stop_nanny    the same of a nanny. A killed one is started again after 2 s, as by a service manager; a
                              stopped one goes on after 10 s
    disk                      the disk with the checkpoints is full for 10 s (needs root: the disk is a tmpfs)

    goodput     steps of all worker groups that the run kept, per second, to those in calm
    repeated    steps that were made and then thrown away
    back_s      seconds from a fault until every worker group is beyond the step that it had: median, and the longest.
                Faults that the next one follows before that are left out.
    ledger      the verdict of `singa-dask audit`
    left        processes and segments of shared memory that are there afterwards
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import psutil
from distributed import Client
from rich.console import Console
from tools.report import begun, end, show

from singa_dask import Job, audit, train
from singa_dask.cluster.cores import THREAD_VARIABLES, equal_share
from singa_dask.errors import SingaError
from singa_dask.monitor.progress import Display
from singa_dask.supervision.control import ask_run

EXAMPLES = Path(__file__).parent.parent / "examples"
FRAMEWORKS = ("allreduce", "sandblaster", "downpour", "hogwild")
FAULTS = ("kill", "stop", "kill_nanny", "stop_nanny", "disk")
SETTINGS = {
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
}
DISK_MB = 256
_CALM_S = 60.0
_STARTING_S = 120.0
_STARTED_AGAIN_S = 2.0
_LASTS_S = 10.0


class Watcher(Display):
    """Remembers when each worker group had made how many steps."""

    def __init__(self) -> None:
        self.seen: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)  # by group
        self.started = threading.Event()

    def handle(self, event: Any) -> None:
        if event["kind"] in ("start", "progress", "metrics"):
            self.seen[event["group"]].append((time.monotonic(), event["step"]))
        if event["kind"] == "progress":
            self.started.set()

    def steps(self, at: float = float("inf")) -> dict[int, int]:
        """The steps of each group at a moment."""
        last = {group: [step for when, step in seen if when <= at][-1:] for group, seen in self.seen.items()}
        return {group: steps[0] for group, steps in last.items() if steps}

    @property
    def repeated(self) -> int:
        """Steps that were thrown away."""
        pairs = ((before, after) for seen in self.seen.values() for (_, before), (_, after) in pairwise(seen))
        return sum(max(0, before - after) for before, after in pairs)

    def back(self, at: float) -> float | None:
        """When every group was beyond the step that it had at this moment; None if one never was."""
        reached = []
        for group, had in self.steps(at).items():
            later = [when for when, step in self.seen[group] if when > at and step > had]
            reached.append(later[0] if later else None)
        return None if None in reached else max(reached)


class Workers:
    """The scheduler and the `dask worker` commands of a cluster on this machine, each a nanny with its worker."""

    def __init__(self, count: int, folder: Path) -> None:
        self.file = folder / "scheduler.json"
        environment = SETTINGS | dict.fromkeys(THREAD_VARIABLES, str(equal_share(count)))
        self._environment, self._folder = os.environ | environment, folder
        self._dask("scheduler", "--host", "127.0.0.1", "--scheduler-file", str(self.file), "--no-dashboard")
        self.nannies = [self.start() for _ in range(count)]

    def start(self) -> subprocess.Popen:
        """One more worker."""
        local = str(self._folder)
        return self._dask(
            *("worker", "--scheduler-file", str(self.file), "--nthreads", "1", "--no-dashboard"),
            *("--local-directory", local, "--preload", "singa_dask.cluster.worker_setup"),
        )

    def _dask(self, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=self._environment, **quiet)
        self._all = [*getattr(self, "_all", []), process]
        return process

    def revive(self) -> None:
        """Start again what was killed."""
        self.nannies = [each if each.poll() is None else self.start() for each in self.nannies]

    def workers(self) -> list[psutil.Process]:
        """The processes of the workers: of each nanny the child that has computed most."""
        found = []
        for nanny in self.nannies:
            with suppress(psutil.Error, ValueError):
                children = psutil.Process(nanny.pid).children()
                found.append(max(children, key=lambda child: sum(child.cpu_times()[:2])))
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


@dataclass
class Storm(threading.Thread):
    """Hits a run from its first step on, then stops it. kinds: of faults; none for calm."""

    client: Any
    workers: Workers
    disk: Path
    watcher: Watcher
    seconds: float
    every: float
    draw: random.Random
    kinds: Sequence[str]
    hit: list[tuple[float, str]] = field(default_factory=list)
    began: float = 0.0

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._due: list[tuple[float, Any]] = []  # what undoes a fault, and when

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        self.watcher.started.wait(_STARTING_S)
        self.began = time.monotonic()
        ends = self.began + self.seconds
        following = self._next()
        while time.monotonic() < ends:
            time.sleep(0.1)
            for when, undo in [each for each in self._due if each[0] <= time.monotonic()]:
                self._due.remove((when, undo))
                undo()
            if self.kinds and time.monotonic() >= following:
                self._hit(self.draw.choice(self.kinds))
                following = self._next()
        for _, undo in self._due:
            undo()
        with suppress(SingaError):  # it has failed
            ask_run(self.client, "stop")

    def _next(self) -> float:
        return time.monotonic() + self.draw.expovariate(1 / self.every)

    def _hit(self, kind: str) -> None:
        self.hit.append((time.monotonic(), kind))
        if kind == "disk":
            self._fill()
        elif kind.endswith("nanny"):
            nanny = self.draw.choice(self.workers.nannies)
            nanny.send_signal(signal.SIGKILL if kind == "kill_nanny" else signal.SIGSTOP)
            if kind == "kill_nanny":
                self._after(_STARTED_AGAIN_S, self.workers.revive)
            else:
                self._after(_LASTS_S, lambda: nanny.send_signal(signal.SIGCONT))
        elif there := self.workers.workers():
            self.draw.choice(there).send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)

    def _fill(self) -> None:
        filler = self.disk / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
        self._after(_LASTS_S, lambda: filler.unlink(missing_ok=True))

    def _after(self, seconds: float, undo: Any) -> None:
        self._due.append((time.monotonic() + seconds, undo))


def measure(
    framework: str, seconds: float, every: float, seed: int, kinds: Sequence[str], job: Path
) -> dict[str, Any]:
    """A run of so many seconds from its first step on."""
    watcher, failed, result = Watcher(), "", None
    told = Job.from_file(
        job,
        overrides=["train_steps=10000000", "test_freq=0", 'checkpoint_every="20s"', "keep=3", "disp_freq=20"],
        cluster=EXAMPLES / "clusters" / f"{framework}.conf",
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        disk = stack.enter_context(small_disk(folder)) if "disk" in kinds else folder
        workers = Workers(told.topology.nprocesses, folder)
        stack.callback(workers.end)
        client = stack.enter_context(_connected(workers, told.topology.nprocesses))
        storm = Storm(client, workers, disk, watcher, seconds, every, random.Random(f"{seed} {framework}"), kinds)
        storm.start()
        try:
            result = train(told, client, workspace=disk / "run", display=watcher, max_restarts=10, curves=False)
        except SingaError as error:
            failed = str(error).splitlines()[0]
        storm.join(_STARTING_S)
        ledger = audit(result).verdict if result else ""
    made = sum(watcher.steps(storm.began + seconds).values()) - sum(watcher.steps(storm.began).values())
    nexts = [*(when for when, _ in storm.hit[1:]), storm.began + seconds]
    backs = [(watcher.back(when), when, after) for (when, _), after in zip(storm.hit, nexts, strict=False)]
    return {
        "framework": framework,
        "seconds": seconds,
        "steps_per_s": round(made / seconds, 2),
        "faults": len(storm.hit),
        "restarts": result.summary["restarts"] if result else None,
        "repeated": watcher.repeated,
        "back_s": [round(back - when, 1) for back, when, after in backs if back is not None and back <= after],
        "loss": round(result.train["loss"], 4) if result and result.train else None,
        "ledger": ledger,
        "failed": failed,
        "hit": [(round(when - storm.began, 1), kind) for when, kind in storm.hit],
    }


@contextmanager
def _connected(workers: Workers, count: int) -> Iterator[Client]:
    deadline = time.monotonic() + _STARTING_S
    while not workers.file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    with Client(scheduler_file=str(workers.file), timeout=_STARTING_S) as client:
        client.wait_for_workers(count, timeout=_STARTING_S)
        yield client


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def left(before: set[str]) -> list[str]:
    """What a run has left behind: segments of shared memory, and processes of this one."""
    children = [
        child.name() for child in psutil.Process().children() if "resource_tracker" not in str(child.cmdline())
    ]
    segments = {name for name in os.listdir("/dev/shm") if not name.startswith("sem.mp-")}  # Python's, of any process
    return sorted(segments - before) + children


@click.command()
@click.option("--framework", "frameworks", multiple=True, type=click.Choice(FRAMEWORKS), default=FRAMEWORKS)
@click.option("--fault", "kinds", multiple=True, type=click.Choice(FAULTS), help="[default: all; disk only as root]")
@click.option("--seconds", default=180.0, show_default=True, help="Of each storm.")
@click.option("--every", default=15.0, show_default=True, help="Seconds between faults, on average.")
@click.option("--seed", default=24, show_default=True, help="Of the faults.")
@click.option("--job", type=click.Path(path_type=Path, exists=True), default=EXAMPLES / "digits" / "job.conf")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here.")
def main(
    frameworks: Sequence[str],
    kinds: Sequence[str],
    seconds: float,
    every: float,
    seed: int,
    job: Path,
    out: Path | None,
) -> None:
    """Train in calm and in a storm."""
    console = Console(width=180)
    kinds = list(kinds or (FAULTS if os.geteuid() == 0 else FAULTS[:-1]))
    figures: dict[str, Any] = begun() | {"seed": seed, "every": every, "faults": kinds, "rows": []}
    before = set(os.listdir("/dev/shm"))
    for framework in frameworks:
        calm = measure(framework, min(_CALM_S, seconds), every, seed, (), job)
        row = measure(framework, seconds, every, seed, kinds, job)
        row["goodput"] = round(row["steps_per_s"] / calm["steps_per_s"], 3) if calm["steps_per_s"] else None
        row["calm_loss"] = calm["loss"]
        row["back_median_s"] = median(row["back_s"]) if row["back_s"] else None
        row["back_longest_s"] = max(row["back_s"], default=None)
        row["left"] = ", ".join(left(before))
        figures["rows"].append(row)
        show(console, f"{framework}: a fault every {every:g} s", [row])
    end(console, figures, out)
    if any(row["failed"] or row["left"] for row in figures["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
