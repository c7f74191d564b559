"""What a run keeps of its work while its processes are killed and stopped at random moments.

make storm                               # or: python benchmarks/storm.py --seconds 1800 --json storm.json

Each framework trains the same net twice on a local cluster: in calm, and in a storm. In the storm a fault hits one
process of the run, any of them, every 15 seconds on average, as a seed draws them: kill -9 or SIGSTOP.

    goodput     steps of all worker groups that the run kept, per second, to those in calm
    repeated    steps that were made and then thrown away
    back_s      seconds from a fault until every worker group is beyond the step that it had: median, and the longest.
                Faults that the next one follows before that are left out.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import psutil
from rich.console import Console
from tools.report import begun, end, show

from singa_dask import Job, train
from singa_dask.cluster import local_cluster
from singa_dask.errors import SingaError
from singa_dask.monitor.progress import Display
from singa_dask.supervision.control import ask_run

EXAMPLES = Path(__file__).parent.parent / "examples"
FRAMEWORKS = ("allreduce", "sandblaster", "downpour", "hogwild")
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_CALM_S = 30.0
_STARTING_S = 120.0


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


@dataclass
class Storm(threading.Thread):
    """Hits processes of a cluster from the first step on, then stops the run. kinds: of faults; none for calm."""

    client: Any
    watcher: Watcher
    seconds: float
    every: float
    draw: random.Random
    kinds: tuple[str, ...]
    hit: list[tuple[float, str]] = field(default_factory=list)
    began: float = 0.0

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        self.watcher.started.wait(_STARTING_S)
        self.began = time.monotonic()
        ends = self.began + self.seconds
        while self.kinds:
            due = time.monotonic() + self.draw.expovariate(1 / self.every)
            time.sleep(max(0.0, min(due, ends) - time.monotonic()))
            if due >= ends:
                break
            self._hit(self.draw.choice(self.kinds))
        time.sleep(max(0.0, ends - time.monotonic()))
        try:
            ask_run(self.client, "stop")
        except SingaError:
            return  # it has failed

    def _hit(self, kind: str) -> None:
        pids = sorted(nanny.pid for nanny in self.client.cluster.workers.values() if nanny.pid)
        if pids:
            self.hit.append((time.monotonic(), kind))
            os.kill(self.draw.choice(pids), FAULTS[kind])


def measure(
    framework: str, seconds: float, every: float, seed: int, kinds: tuple[str, ...], job: Path
) -> dict[str, Any]:
    """A run of so many seconds from its first step on."""
    watcher, failed = Watcher(), ""
    told = Job.from_file(
        job,
        overrides=["train_steps=10000000", "test_freq=0", "checkpoint_freq=1000", "disp_freq=20"],
        cluster=EXAMPLES / "clusters" / f"{framework}.conf",
    )
    result = None
    with TemporaryDirectory() as folder, local_cluster(told.topology.nprocesses) as client:
        storm = Storm(client, watcher, seconds, every, random.Random(f"{seed} {framework}"), kinds)
        storm.start()
        try:
            result = train(
                told, client, workspace=Path(folder) / "run", display=watcher, max_restarts=1_000_000, curves=False
            )
        except SingaError as error:
            failed = str(error).splitlines()[0]
        storm.join(_STARTING_S)
    made = sum(watcher.steps().values()) - sum(watcher.steps(storm.began).values())
    nexts = [*(when for when, _ in storm.hit[1:]), storm.began + seconds]
    backs = [(watcher.back(when), when, after) for (when, _), after in zip(storm.hit, nexts, strict=False)]
    return {
        "framework": framework,
        "seconds": seconds,
        "steps_per_s": round(made / seconds, 2),
        "faults": len(storm.hit),
        "killed": sum(kind == "kill" for _, kind in storm.hit),
        "restarts": result.summary["restarts"] if result else None,
        "repeated": watcher.repeated,
        "back_s": [round(back - when, 1) for back, when, after in backs if back is not None and back <= after],
        "failed": failed,
    }


def left(before: set[str]) -> list[str]:
    """What a run has left behind: segments of shared memory, and processes of this one."""
    children = [
        child.name() for child in psutil.Process().children() if "resource_tracker" not in str(child.cmdline())
    ]
    return sorted(set(os.listdir("/dev/shm")) - before) + children


@click.command()
@click.option("--framework", "frameworks", multiple=True, type=click.Choice(FRAMEWORKS), default=FRAMEWORKS)
@click.option("--fault", "kinds", multiple=True, type=click.Choice(list(FAULTS)), default=tuple(FAULTS))
@click.option("--seconds", default=180.0, show_default=True, help="Of each storm.")
@click.option("--every", default=15.0, show_default=True, help="Seconds between faults, on average.")
@click.option("--seed", default=24, show_default=True, help="Of the faults.")
@click.option("--job", type=click.Path(path_type=Path, exists=True), default=EXAMPLES / "digits" / "job.conf")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here.")
def main(
    frameworks: tuple[str, ...],
    kinds: tuple[str, ...],
    seconds: float,
    every: float,
    seed: int,
    job: Path,
    out: Path | None,
) -> None:
    """Train in calm and in a storm."""
    console = Console(width=180)
    figures: dict[str, Any] = begun() | {"seed": seed, "every": every, "faults": list(kinds), "rows": []}
    before = set(os.listdir("/dev/shm"))
    for framework in frameworks:
        calm = measure(framework, min(_CALM_S, seconds), every, seed, (), job)
        row = measure(framework, seconds, every, seed, kinds, job)
        row["goodput"] = round(row["steps_per_s"] / calm["steps_per_s"], 3)
        row["back_median_s"] = median(row["back_s"]) if row["back_s"] else None
        row["back_longest_s"] = max(row["back_s"], default=None)
        row["left"] = ", ".join(left(before))
        figures["rows"].append(row)
        show(console, f"{framework}: a fault every {every:g} s", [row])
    end(console, figures, out)


if __name__ == "__main__":
    main()
