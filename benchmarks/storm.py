"""What a run keeps of its work while its processes are killed and stopped at random moments.

make storm                               # or: python benchmarks/storm.py --seconds 1800 --json storm.json

Each strategy trains the same net on Dask workers of this machine in calm, in a storm, and in calm again. In the storm
a fault hits the run every 15 seconds on average, as a seed draws them. Nobody but the driver and the scheduler is
immune.

    kill, stop                kill -9 or SIGSTOP of a process with a worker or a server
    kill_nanny, stop_nanny    the same of a nanny. A killed one is started again after 2 s, as by a service manager; a
                              stopped one goes on after 10 s
    disk                      the disk with the checkpoints is full for 10 s (needs root: the disk is a tmpfs)
    cut                       a host is off the network for 5 s (with --hosts 2, which needs root: the workers are
                              dealt to so many namespaces of Linux)
    host                      kill -9 of all processes of a host, which are started again after 2 s (with --hosts 2)

    goodput     steps of all worker groups that the run kept, per second, to those in calm (mean of before and after)
    repeated    steps that were made and then thrown away
    back_s      seconds from a fault until every worker group is beyond the step that it had: median, and the longest.
                Faults that the next one follows before that are left out.
    cost_s      for each kind of fault: the mean of the seconds in which calm makes the steps that are missing between
                the fault and the next one
    ledger      the verdict of `singa-dask audit`
    missing     why mini-batches are missing, and how many of each worker group; in the file of --json and below
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
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from tools.network import joined_hosts
from tools.report import begun, end, show
from tools.victims import STARTING_S, Watcher, Workers, connected, left

from singa_dask import Job, audit, train
from singa_dask.errors import SingaError
from singa_dask.supervision.control import ask_run

EXAMPLES = Path(__file__).parent.parent / "examples"
STRATEGIES = ("allreduce", "sandblaster", "downpour", "hogwild")
FAULTS = ("kill", "stop", "kill_nanny", "stop_nanny", "disk", "cut", "host")
DISK_MB = 256
_STARTED_AGAIN_S = 2.0
_LASTS_S = 10.0
_CUT_S = 5.0


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
    failed: str = ""

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._due: list[tuple[float, Any]] = []  # what undoes a fault, and when

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        self.watcher.started.wait(STARTING_S)
        self.began = time.monotonic()
        try:
            self._rage(self.began + self.seconds)
        except Exception as error:
            self.failed = f"the storm: {error}"
        finally:
            with suppress(Exception):  # it has failed
                ask_run(self.client, "stop")

    def _rage(self, ends: float) -> None:
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

    def _next(self) -> float:
        return time.monotonic() + self.draw.expovariate(1 / self.every)

    def _hit(self, kind: str) -> None:
        self.hit.append((time.monotonic(), kind))
        if kind == "disk":
            self._fill()
        elif kind == "cut":
            host = self.draw.choice(self.workers.hosts)
            host.cut(off=True)
            self._after(_CUT_S, lambda: host.cut(off=False))
        elif kind == "host":
            self.workers.crash(self.draw.choice(self.workers.hosts))
            self._after(_STARTED_AGAIN_S, self.workers.revive)
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
    strategy: str, seconds: float, every: float, seed: int, kinds: Sequence[str], job: Path, hosts: int
) -> dict[str, Any]:
    """A run of so many seconds from its first step on."""
    watcher, failed, result = Watcher(), "", None
    told = Job.from_file(
        job,
        overrides=["train_steps=10000000", "test_freq=0", 'checkpoint_every="20s"', "keep=3", "disp_freq=20"],
        cluster=EXAMPLES / "clusters" / f"{strategy}.conf",
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        disk = stack.enter_context(small_disk(folder)) if "disk" in kinds else folder
        joined = stack.enter_context(joined_hosts(hosts, home=True)) if hosts > 1 else ()
        workers = Workers(told.topology.nprocesses, folder, joined)
        stack.callback(workers.end)
        client = stack.enter_context(connected(workers, told.topology.nprocesses))
        storm = Storm(client, workers, disk, watcher, seconds, every, random.Random(f"{seed} {strategy}"), kinds)
        storm.start()
        try:
            result = train(told, client, workspace=disk / "run", display=watcher, max_restarts=10, curves=False)
        except SingaError as error:
            failed = str(error).splitlines()[0]
            print("".join(traceback.format_exception(error)), file=sys.stderr)  # with what happened before
        storm.join(STARTING_S)
        failed = failed or storm.failed
        audited = audit(result) if result else None
    made = _made(watcher, storm.began, storm.began + seconds)
    nexts = [*(when for when, _ in storm.hit[1:]), storm.began + seconds]
    backs = [(watcher.back(when), when, after) for (when, _), after in zip(storm.hit, nexts, strict=False)]
    return {
        "strategy": strategy,
        "seconds": seconds,
        "steps_per_s": round(made / seconds, 2),
        "faults": len(storm.hit),
        "restarts": result.summary["restarts"] if result else None,
        "repeated": watcher.repeated,
        "back_s": [round(back - when, 1) for back, when, after in backs if back is not None and back <= after],
        "loss": round(result.train["loss"], 4) if result and result.train else None,
        "ledger": audited.verdict if audited else "",
        "missing": [
            f"worker group {of.group}, {gap.stop - gap.first} from step {gap.first}: {gap.why}"
            for of in (audited.groups if audited else ())
            for gap in of.missing
        ],
        "failed": failed,
        "hit": [
            {"at": round(when - storm.began, 1), "kind": kind, "for": round(after - when, 1), "steps": steps}
            for (when, kind), after in zip(storm.hit, nexts, strict=False)
            for steps in [_made(watcher, when, after)]
        ],
    }


def _made(watcher: Watcher, begin: float, end: float) -> int:
    """Steps of all worker groups between two moments."""
    return sum(watcher.steps(end).values()) - sum(watcher.steps(begin).values())


def costs(hit: Sequence[dict[str, Any]], rate: float) -> dict[str, float]:
    """Seconds that a fault of each kind costs. rate: of the steps in calm."""
    lost: dict[str, list[float]] = {}
    for fault in hit:
        lost.setdefault(fault["kind"], []).append(fault["for"] - fault["steps"] / rate)
    return {kind: round(mean(seconds), 1) for kind, seconds in sorted(lost.items())}


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


@click.command()
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES), default=STRATEGIES)
@click.option("--fault", "kinds", multiple=True, type=click.Choice(FAULTS), help="[default: all that can be]")
@click.option("--seconds", default=180.0, show_default=True, help="Of each storm.")
@click.option(
    "--calm", "calm_s", default=60.0, show_default=True, help="Seconds in calm, before and after; 0 leaves both out."
)
@click.option("--every", default=15.0, show_default=True, help="Seconds between faults, on average.")
@click.option("--seed", default=24, show_default=True, help="Of the faults.")
@click.option("--job", type=click.Path(path_type=Path, exists=True), default=EXAMPLES / "digits" / "job.conf")
@click.option("--hosts", type=int, help="Namespaces that the workers are dealt to.  [default: 2 as root, else 1]")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here.")
def main(
    strategies: Sequence[str],
    kinds: Sequence[str],
    seconds: float,
    calm_s: float,
    every: float,
    seed: int,
    job: Path,
    hosts: int | None,
    out: Path | None,
) -> None:
    """Train in calm and in a storm."""
    console = Console(width=180)
    hosts = hosts or (1 if os.geteuid() else 2)
    impossible = {"disk"} if os.geteuid() else set()
    impossible |= {"cut", "host"} if hosts == 1 else set()
    if asked := impossible & set(kinds):
        raise click.UsageError(
            f"{', '.join(sorted(asked))}: disk needs root, and cut and host need root and --hosts 2"
        )
    kinds = list(kinds or (kind for kind in FAULTS if kind not in impossible))
    figures: dict[str, Any] = begun() | {"seed": seed, "every": every, "faults": kinds, "hosts": hosts, "rows": []}
    before = set(os.listdir("/dev/shm"))
    for strategy in strategies:
        phases = [(calm_s, ()), (seconds, kinds), (calm_s, ())] if calm_s else [(seconds, kinds)]
        runs = [measure(strategy, length, every, seed, hits, job, hosts) for length, hits in phases]
        row, calm = runs[len(runs) // 2], runs[::2] if calm_s else []
        rates = row["calm_steps_per_s"] = [each["steps_per_s"] for each in calm]
        row["goodput"] = round(row["steps_per_s"] / mean(rates), 3) if all(rates) and rates else None
        row["cost_s"] = costs(row["hit"], mean(rates)) if all(rates) and rates else None
        row["calm_loss"] = calm[0]["loss"] if calm else None
        row["back_median_s"] = median(row["back_s"]) if row["back_s"] else None
        row["back_longest_s"] = max(row["back_s"], default=None)
        row["left"] = ", ".join(left(before))
        figures["rows"].append(row)
        show(console, f"{strategy}: a fault every {every:g} s", [row])
        console.print(*row["missing"], sep="\n")
        if row["cost_s"]:
            console.print("seconds per fault: " + ", ".join(f"{kind} {s:g}" for kind, s in row["cost_s"].items()))
    end(console, figures, out)
    if any(row["failed"] or row["left"] or not row["ledger"].startswith("clean") for row in figures["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
