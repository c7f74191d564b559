"""Whether `singa-dask why` names what limits a run: ten causes, each in two runs, and three runs without one.

python benchmarks/why.py                 # or: --case network --json why.json

A run is right if the cause is the largest finding. Staleness costs no time, so there it is right if it is among the
findings. A run without a cause is right if nothing is found. Two cases need root: their hosts are namespaces of Linux,
joined by 100 Mbit/s. Stop other programs: they limit the runs, too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import psutil
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
    """A run. cause: what limits it, if anything. cluster: its block; slow: the share of the time in which its first
    worker computes; hosts: joined by 100 Mbit/s; cores: of all workers, if fewer than the machine has."""

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
    Case("evaluations", Cause.EVALUATING, TWO, ("test_freq=10", "checkpoint_freq=0", *LARGE), 32, 200),
    Case("evaluations, alone", Cause.EVALUATING, "", ("test_freq=10", "checkpoint_freq=0"), 32, 600),
    Case("start", Cause.START, TWO, QUIET, 96, 10),
    Case("start, alone", Cause.START, "", QUIET, 96, 10),
    Case("staleness", Cause.STALENESS, GROUPS, QUIET, 96, 1500, slow=0.1),
    Case("staleness, apart", Cause.STALENESS, f"{GROUPS} {APART}", QUIET, 96, 1500, slow=0.1),
    Case("healthy", None, TWO, (*QUIET, *LARGE), 1024, 200),
    Case("healthy, alone", None, "", QUIET, 256, 3000),
    Case("healthy, groups", None, GROUPS, QUIET, 512, 400),
)


_TURN_S = 0.01


class Slowed(Display):
    """Lets the first worker compute for a share of the time, in turns of 10 ms, from the start of its group on: only
    then is its process the one that trains."""

    def __init__(self, workers: Workers, share: float) -> None:
        self._workers, self._share = workers, share
        self._ended, self._turns = threading.Event(), ExitStack()

    def handle(self, event: Any) -> None:
        if event["kind"] == "start" and event["group"] == 0:
            self.close()
            self._ended.clear()
            turns = threading.Thread(target=self._take_turns, args=(self._workers.workers()[0],))
            turns.start()
            self._turns.callback(turns.join)

    def _take_turns(self, process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            while not self._ended.is_set():
                process.suspend()
                time.sleep(_TURN_S * (1 - self._share))
                process.resume()
                self._ended.wait(_TURN_S * self._share)

    def close(self) -> None:
        self._ended.set()
        self._turns.close()


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
    end(console, figures, out)
    if any(row["right"] == "no" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
