"""What one fault costs: seconds until the next step, repeated steps, and what the result has lost.

make faults                              # or: python benchmarks/faults.py --case worker --job examples/mnist/job.conf

Each case trains a net on Dask workers of this machine, as their commands start them, and hits one process with SIGKILL
or SIGSTOP. As root there are four more cases, whose workers are dealt to three hosts (namespaces of Linux), half as
many again as the job needs: one host loses all its processes, or is cut off the network, and does not come back.

    next_s      seconds from the fault until every worker group has made a further step
    repeated    steps that were made and then thrown away
    differs     the largest relative difference of a parameter from the undisturbed run of the same seed, where the
                strategy is synchronous: others depend on the order of messages
    ledger      the verdict of `singa-dask audit`
    left        processes and segments of shared memory that are there afterwards

The exit status is 1 if a run failed, its ledger is not clean, or something is left.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import h5py
import numpy as np
import psutil
from rich.console import Console
from tools.network import Host, joined_hosts
from tools.report import begun, end, show
from tools.victims import Watcher, Workers, connected, left

from singa_dask import Job, Result, audit, train
from singa_dask.errors import SingaError
from singa_dask.supervision.control import ask_run

EXAMPLES = Path(__file__).parent.parent / "examples"
SYNCHRONOUS = ("allreduce", "sandblaster")
WITHIN_S = 60.0
HOSTS = 3


@dataclass(frozen=True)
class Case:
    """victim: "worker" or "server", of a strategy; stop: with SIGSTOP; alone: its nanny is killed too, so nobody
    replaces it. host: in place of one process, all of its host are killed ("lost"), or the host is "cut" off. when:
    the fault comes at half of the steps, in the midst of a "checkpoint" or an "evaluation", just after a worker group
    was told to "join", or a second one in the midst of a "restart". more: settings of the job. longer: how many times
    as many steps it takes."""

    name: str
    strategy: str
    victim: str = "worker"
    stop: bool = False
    alone: bool = False
    host: str = ""
    when: str = "step"
    more: tuple[str, ...] = ()
    longer: int = 1


CASES = (
    Case("worker", "allreduce"),
    Case("worker-alone", "allreduce", alone=True),
    Case("worker-stopped", "allreduce", stop=True),
    Case("checkpoint", "allreduce", when="checkpoint"),
    Case("evaluation", "allreduce", when="evaluation"),
    Case("restart", "allreduce", when="restart"),
    Case("split-worker", "allreduce", more=("neuralnet.partition_dim=1",)),
    Case("sandblaster-worker", "sandblaster"),
    Case("sandblaster-alone", "sandblaster", alone=True),
    Case("sandblaster-server", "sandblaster", "server"),
    Case("downpour-worker", "downpour"),
    Case("downpour-alone", "downpour", alone=True),
    Case("downpour-server", "downpour", "server"),
    Case("downpour-server-stopped", "downpour", "server", stop=True),
    Case("downpour-join", "downpour", when="join", longer=4),
    Case("hogwild-worker", "hogwild", longer=10),
    Case("hybrid-worker", "hybrid", longer=4),
    Case("host", "allreduce", host="lost", longer=5),
    Case("cut", "allreduce", host="cut", longer=5),
    Case("downpour-host", "downpour", "server", host="lost"),
    Case("downpour-cut", "downpour", "server", host="cut"),
)


class Fault(threading.Thread):
    """Kills a process of a run at the moment that a case names. at: when it did."""

    def __init__(self, case: Case, client: Any, workers: Workers, watcher: Watcher, half: int, folder: Path) -> None:
        super().__init__(daemon=True)
        self.case, self.at = case, 0.0
        self._client, self._workers, self._watcher, self._half, self._folder = client, workers, watcher, half, folder

    def run(self) -> None:
        moments = {
            "evaluation": lambda: self._step == self._half,
            "checkpoint": lambda: any(not f.name.startswith("step-") for f in self._folder.glob("checkpoint/*")),
        }
        self._until(lambda: self._step > 0 and self._victims())
        victims = self._victims()
        self._until(moments.get(self.case.when, lambda: self._step >= self._half))
        if self.case.when == "join":
            ask_run(self._client, "join")
        if self.case.host:
            self._hit_host(self._workers.host_of(victims[-1]))
        else:
            self._hit(victims[0])
        if self.case.when == "restart":
            self._until(lambda: len(self._watcher.starts[0]) > 1)
            self._hit(self._victims()[0])

    @property
    def _step(self) -> int:
        return self._watcher.steps().get(0, 0)

    def _until(self, reached: Any) -> None:
        ends = time.monotonic() + WITHIN_S
        while not reached() and time.monotonic() < ends:
            time.sleep(0.002)

    def _victims(self) -> list[int]:
        """Processes of the kind that the case names."""
        found = self._client.run(_role)
        return sorted(pid for pid, kind in found.values() if kind == self.case.victim)

    def _hit_host(self, host: Host) -> None:
        self.at = time.monotonic()
        if self.case.host == "cut":
            host.cut(off=True)
        else:
            self._workers.crash(host)

    def _hit(self, pid: int) -> None:
        process = psutil.Process(pid)
        if self.case.alone:
            above = {parent.pid for parent in process.parents()}
            next(nanny for nanny in self._workers.nannies if nanny.pid in above).kill()
        self.at = time.monotonic()
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP if self.case.stop else signal.SIGKILL)


def _role(dask_worker: Any) -> tuple[int, str]:
    """The process of a Dask worker, and what it does in a run."""
    import os

    from singa_dask.cluster.leases import servers

    if dask_worker.state.executing or dask_worker.state.long_running:
        return os.getpid(), "worker"
    return os.getpid(), "server" if servers(dask_worker.state.actors) else "idle"


def trained(case: Case, job: Path, steps: int, *, hit: bool) -> tuple[dict[str, Any], Result | None]:
    """A run, and what it showed."""
    watcher, result, failed, steps = Watcher(), None, "", steps * case.longer
    settings = [f"train_steps={steps}", f"disp_freq={case.longer}", "test_freq=0", "checkpoint_freq=0", *case.more]
    if case.when == "checkpoint":
        settings[3] = f"checkpoint_freq={steps // 2}"
    elif case.when == "evaluation":
        settings[2] = f"test_freq={steps // 2}"
    told = Job.from_file(job, overrides=settings, cluster=EXAMPLES / "clusters" / f"{case.strategy}.conf")
    spare = -(-told.topology.nprocesses // 2) if case.host else 0
    count = told.topology.nprocesses + (told.topology.nworkers_per_group if case.when == "join" else spare)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        hosts = stack.enter_context(joined_hosts(HOSTS, home=True)) if case.host else ()
        workers = Workers(count, folder, hosts)
        stack.callback(workers.end)
        client = stack.enter_context(connected(workers, count))
        fault = Fault(case, client, workers, watcher, steps // 2, folder / "run")
        if hit:
            fault.start()
        try:
            result = train(told, client, workspace=folder / "run", display=watcher, curves=False)
        except SingaError as error:
            failed = str(error).splitlines()[0]
        parameters = _parameters(result) if result else {}
        row = {
            "case": case.name,
            "next_s": round(watcher.pause(fault.at), 2) if hit else None,
            "repeated": watcher.repeated,
            "restarts": result.summary["restarts"] if result else None,
            "ledger": audit(result).verdict if result else "",
            "failed": failed,
            "parameters": parameters,
        }
    return row, result


def _parameters(result: Result) -> dict[str, np.ndarray]:
    with h5py.File(result.checkpoint) as file:
        return {name: array[()] for name, array in file["parameters"].items()}


def differs(hit: dict[str, np.ndarray], calm: dict[str, np.ndarray]) -> float:
    """The largest difference of a parameter, relative to the largest of its array."""
    return max((float(np.abs(hit[n] - calm[n]).max() / np.abs(calm[n]).max()) for n in calm if n in hit), default=1.0)


@click.command()
@click.option(
    "--case", "names", multiple=True, type=click.Choice([case.name for case in CASES]), help="[default: all]"
)
@click.option("--steps", default=600, show_default=True)
@click.option("--job", type=click.Path(path_type=Path, exists=True), default=EXAMPLES / "digits" / "job.conf")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here.")
def main(names: Sequence[str], steps: int, job: Path, out: Path | None) -> None:
    """Hit a run once, and measure what it costs."""
    console, rows = Console(width=180), []
    figures: dict[str, Any] = begun() | {"job": os.path.relpath(job, EXAMPLES.parent), "rows": rows}
    before = set(os.listdir("/dev/shm"))
    undisturbed: dict[Any, Any] = {}
    for case in CASES:
        if case.name not in names and (names or (case.host and os.geteuid() != 0)):
            continue
        key = case.strategy, case.more, case.longer
        if case.strategy in SYNCHRONOUS and key not in undisturbed:
            undisturbed[key] = trained(
                Case("calm", case.strategy, more=case.more, longer=case.longer), job, steps, hit=False
            )[0]
        row = trained(case, job, steps, hit=True)[0]
        parameters = row.pop("parameters")
        row["differs"] = f"{differs(parameters, undisturbed[key]['parameters']):.1e}" if key in undisturbed else None
        row["left"] = ", ".join(left(before))
        rows.append(row)
        show(console, "", [row])
    show(console, "one fault", rows)
    end(console, figures, out)
    if any(row["failed"] or row["left"] or not row["ledger"].startswith("clean") for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
