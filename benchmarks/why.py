"""Whether `singa-dask why` names what limits a run: ten causes, each in two runs, and three runs without one.

python benchmarks/why.py                 # or: --case network --json why.json

A run is right if the cause is the largest finding. Staleness costs no time, so there it is right if it is among the
findings. A run without a cause is right if nothing is found. Four cases need root: for hosts that are namespaces of
Linux, joined by 100 Mbit/s, and for control groups that slow a worker down. Stop other programs: they limit the runs,
too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from tools.network import NotHere, joined_hosts
from tools.report import begun, end, show
from tools.victims import Workers, connected

from singa_dask import Job, train
from singa_dask.monitor.progress import Display
from singa_dask.supervision.runs import RunRecord
from singa_dask.supervision.why import Cause, findings
from singa_dask.training.workspace import Workspace

JOB = Path(__file__).parent.parent / "examples" / "digits" / "job.conf"
LARGE = ("neuralnet.layer[ip1].innerproduct_conf.num_output=4096",)  # a step sends 4.3 MB


def read_slowly(batch: Any, rng: Any) -> Any:
    """A transform that takes as long as a slow disk."""
    time.sleep(0.03)
    return batch


@dataclass(frozen=True)
class Case:
    """A run. cause: what limits it, if anything. cluster: its block; slow: the share of a core that its first
    worker has; hosts: joined by 100 Mbit/s; cores: of all workers, if fewer than the machine has."""

    name: str
    cause: Cause | None
    cluster: str
    settings: tuple[str, ...]
    rows: int = 96
    steps: int = 600
    slow: float = 0.0
    hosts: int = 0
    cores: int = 0
    reading_slowly: bool = False


TWO, GROUPS = "nworkers_per_group=2", "nworker_groups=2"
APART = "server_worker_separate=true"
QUIET = ("test_freq=0", "checkpoint_freq=0")
# On all samples of the training data.
EVALUATIONS = (
    "test_freq=10",
    "test_steps=15",
    "checkpoint_freq=0",
    "neuralnet.layer[1].store_conf.path=dataset:digits/train",
    "neuralnet.layer[1].store_conf.batchsize=96",
)
CASES = (
    Case("slow worker", Cause.SLOW_RANK, TWO, QUIET, 512, slow=0.5),
    Case("slow worker, wide", Cause.SLOW_RANK, TWO, (*QUIET, *LARGE), 256, 150, slow=0.5),
    Case("network", Cause.NETWORK, TWO, (*QUIET, *LARGE), 96, 30, hosts=2),
    Case("network to servers", Cause.NETWORK, f"{TWO} {APART}", (*QUIET, *LARGE), 96, 30, hosts=2),
    Case("slow disk", Cause.LOADING, TWO, QUIET, 96, 200, reading_slowly=True),
    Case("slow disk, alone", Cause.LOADING, "", (*QUIET, *LARGE), 96, 200, reading_slowly=True),
    Case("one core", Cause.CORES, "nworkers_per_group=4", QUIET, 384, 200, cores=1),
    Case("one core, groups", Cause.CORES, "nworker_groups=4", QUIET, 96, 200, cores=1),
    Case("tiny batches", Cause.SMALL_STEPS, TWO, QUIET, 4, 2000),
    Case("tiny batches, alone", Cause.SMALL_STEPS, "", QUIET, 2, 3000),
    Case("checkpoints", Cause.SAVING, TWO, ("test_freq=0", "checkpoint_freq=1"), 96, 300),
    Case("large checkpoints", Cause.SAVING, "", ("test_freq=0", "checkpoint_freq=1", *LARGE), 96, 150),
    Case("server", Cause.SERVERS, f"{GROUPS} {APART}", (*QUIET, *LARGE), 8, 200),
    Case("server, small", Cause.SERVERS, f"{GROUPS} {APART}", QUIET, 4, 1000),
    Case("evaluations", Cause.EVALUATING, TWO, EVALUATIONS, 32, 600),
    Case("evaluations, alone", Cause.EVALUATING, "", EVALUATIONS, 32, 600),
    Case("start", Cause.START, TWO, QUIET, 96, 10),
    Case("start, alone", Cause.START, "", QUIET, 96, 10),
    Case("staleness", Cause.STALENESS, "nworker_groups=6", QUIET, 96, 300),
    Case("staleness, apart", Cause.STALENESS, f"nworker_groups=6 {APART}", QUIET, 96, 300),
    Case("healthy", None, TWO, (*QUIET, *LARGE), 1024, 200),
    Case("healthy, alone", None, "", QUIET, 256, 3000),
    Case("healthy, groups", None, GROUPS, QUIET, 512, 400),
)


# Of the control groups of Linux, version 2 and 1: where they are, and the limits of a share of a core in the
# shortest turns.
_TURN_US = 1000
_GROUPS = {
    "/sys/fs/cgroup": {"cpu.max": f"{_TURN_US} {{period}}"},
    "/sys/fs/cgroup/cpu": {"cpu.cfs_quota_us": f"{_TURN_US}", "cpu.cfs_period_us": "{period}"},
}


class Slowed(Display):
    """Gives the first worker a share of a core from the start of its group on: only then is its process the one that
    trains. Raises NotHere without control groups."""

    def __init__(self, workers: Workers, share: float) -> None:
        self._workers = workers
        where = [path for path in _GROUPS if os.access(path, os.W_OK) and not Path(path, "cpu").is_dir()]
        if not where:
            raise NotHere("a slow worker needs root, and control groups with the controller cpu")
        self._folder = Path(where[0], f"slow-{os.getpid()}")
        self._folder.mkdir()
        for name, text in _GROUPS[where[0]].items():
            (self._folder / name).write_text(text.format(period=round(_TURN_US / share)))

    def handle(self, event: Any) -> None:
        if event["kind"] == "start" and event["group"] == 0:
            (self._folder / "cgroup.procs").write_text(str(self._workers.workers()[0].pid))

    def close(self) -> None:
        processes = self._folder / "cgroup.procs"
        for pid in processes.read_text().split():
            with suppress(OSError):
                (self._folder.parent / "cgroup.procs").write_text(pid)
        self._folder.rmdir()


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """What is started meanwhile is on so many of the machine's cores; on all for 0."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:count]) or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def found(case: Case) -> list[Any]:
    """What `why` finds in a run."""
    settings = [*case.settings, f"train_steps={case.steps}", f"neuralnet.layer[0].store_conf.batchsize=[{case.rows}]"]
    settings += [f"cluster.{each}" for each in case.cluster.split()]
    told = Job.from_file(JOB, overrides=settings)
    count = told.topology.nprocesses
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        hosts = stack.enter_context(joined_hosts(case.hosts, home=True)) if case.hosts else ()
        for host in hosts:
            host.limit("100mbit")
        with on_cores(case.cores):
            workers = Workers(count, folder, hosts)
        stack.callback(workers.end)
        client = stack.enter_context(connected(workers, count))
        if case.cause is not Cause.START:  # compiles, and starts what is started once
            train(Job.from_file(JOB, overrides=[*settings, "train_steps=5"]), client, display=Display())
        more: dict[str, Any] = {"transform": read_slowly} if case.reading_slowly else {}
        display = stack.enter_context(closing(Slowed(workers, case.slow))) if case.slow else Display()
        train(told, client, workspace=folder / "run", display=display, curves=False, **more)
        record = RunRecord(Workspace(folder / "run"))
        return findings(record.summary, record.job.proto)


def right(case: Case, causes: Sequence[Cause]) -> bool:
    """Whether the cause is told."""
    if case.cause is None:
        return not causes
    return case.cause in (causes if case.cause is Cause.STALENESS else causes[:1])


@click.command()
@click.option("--case", "names", multiple=True, type=click.Choice([of.name for of in CASES]), help="[default: all]")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here.")
def main(names: Sequence[str], out: Path | None) -> None:
    """Compare the causes that `why` names with those that were made."""
    console, rows = Console(width=180), []
    figures: dict[str, Any] = begun() | {"rows": rows}
    for case in CASES:
        if names and case.name not in names:
            continue
        told: list[Any] = []
        with suppress(NotHere):
            told = found(case)
            causes = [each.cause for each in told]
            rows.append(
                {
                    "case": case.name,
                    "cause": case.cause.value if case.cause else "",
                    "found": ", ".join(f"{each.cause.value} ({each.share:.0%})" for each in told),
                    "right": "yes" if right(case, causes) else "no",
                }
            )
            show(console, "", rows[-1:])
    show(console, "what limits a run", rows)
    for name, of in (
        ("limited", [row for row in rows if row["cause"]]),
        ("healthy", [row for row in rows if not row["cause"]]),
    ):
        figures[name] = {"runs": len(of), "right": sum(row["right"] == "yes" for row in of)}
    end(console, figures, out)
    if any(row["right"] == "no" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
