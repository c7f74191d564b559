"""Training a job: the call that users make, in the process that has the Dask client."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.cluster.bootstrap import launched_sizes
from singa_dask.cluster.local_dask import refuse_import
from singa_dask.data.dask_client import check_client
from singa_dask.errors import CheckpointError, ConfigError, Problem
from singa_dask.job import ClusterTopology, Job
from singa_dask.job.job_pb2 import ClusterProto, JobProto
from singa_dask.job.text_paths import text_of
from singa_dask.job.topology import cluster_message
from singa_dask.monitor.lines import duration, format_metrics
from singa_dask.monitor.plan_table import expectation
from singa_dask.monitor.progress import Display, display_for
from singa_dask.output.streams import Escaped, Output
from singa_dask.planning.candidates import with_cluster
from singa_dask.planning.partition import is_open
from singa_dask.planning.prediction import Candidate
from singa_dask.supervision.callbacks import Callback, Callbacks, RunEvent
from singa_dask.supervision.given import check_goes_on, with_data, with_transform
from singa_dask.supervision.in_process import check_single
from singa_dask.supervision.partitioning import as_before, resolve_partition
from singa_dask.supervision.plan import as_job, job_of, plan, with_message
from singa_dask.supervision.queue import Queue, wait_all
from singa_dask.supervision.run import Run
from singa_dask.supervision.trace import steps_of
from singa_dask.training.prepare import prepare
from singa_dask.training.workspace import Workspace

if TYPE_CHECKING:
    from distributed import Client


ENOUGH = 50  # steps, whose rate is worth a comparison with a prediction


@dataclass(frozen=True, repr=False)
class Result:
    """What a run reached: the contents of summary.json, and where everything lies.

    folder: where the run was recorded. A later run may have moved it; `workspace` finds it.
    expected: the samples/s that the plan predicted for the cluster that it chose; None where the job chose it.
    """

    summary: dict[str, Any]
    folder: Path
    expected: float | None = None

    @property
    def workspace(self) -> Path:
        """The folder of the run, wherever a later run has moved it. Raises CheckpointError if it was removed."""
        return Workspace(self.folder).find(self.summary["run"])

    @property
    def test(self) -> dict[str, float]:
        """The final test metrics."""
        return self.summary["test"]

    @property
    def train(self) -> dict[str, float]:
        """The training metrics of the last display interval."""
        return self.summary["train"]

    @property
    def checkpoint(self) -> Path | None:
        """The last checkpoint."""
        path = self.summary["checkpoint"]
        return path and Workspace(self.workspace).checkpoints / Path(path).name

    @property
    def history(self) -> Any:
        """All measured metrics, a row per measurement: a pandas DataFrame, or without pandas a list of dictionaries.

        Columns: group, phase ("train", "validate" or "test"), step, time (s since 1970), samples_per_s, one per
        metric, wait_rank<i> and loading_rank<i> (shares of the time in which a rank waited for others and for data),
        and with servers server_*.
        """
        rows = list(Workspace(self.workspace).rows())
        try:
            from pandas import DataFrame
        except ImportError:
            return rows
        return DataFrame(rows)

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation with the best value of keep_best: metric, value, step, and the path of its checkpoint."""
        best = self.summary["best"]
        return best and {**best, "checkpoint": Workspace(self.workspace).checkpoints / Path(best["checkpoint"]).name}

    @property
    def curves(self) -> Path:
        """The picture of the training curves."""
        return Workspace(self.workspace).curves

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped before its last step; summary["stopped_by"] says by whom."""
        return self.summary["status"] == "interrupted"

    def __str__(self) -> str:
        how, by = ("stopped", f" ({self.summary['stopped_by']})") if self.interrupted else ("done", "")
        parts = [f"{how} at step {self.summary['step']}{by}"]
        for phase in ("test", "validate", "train"):
            if self.summary[phase]:
                parts.append(f"{phase} {format_metrics(self.summary[phase])}")
                break
        if self.summary["ended_early"]:
            parts.insert(1, self.summary["ended_early"])
        if best := self.summary["best"]:
            parts.append(f"best {best['metric']} {best['value']:.4f} at step {best['step']}")
        if self.summary["samples_per_s"]:
            parts.append(f"{self.summary['samples_per_s']:,.0f} samples/s{self._against_prediction()}")
        if self.interrupted and self.checkpoint:
            parts.append("go on with --resume")
        return f"{'; '.join(parts)}; {duration(self.summary['wall_s'])}; {self._see()}"

    def __repr__(self) -> str:
        return f"<Result of {self.summary['job']}: {self}>"

    def _against_prediction(self) -> str:
        if self.expected is None or self.summary["step"] < ENOUGH:
            return ""
        share = self.summary["samples_per_s"] / self.expected - 1
        return f", {100 * abs(share):.0f} % {'above' if share > 0 else 'below'} the prediction"

    def _see(self) -> str:
        try:
            return f"see {self.workspace}"
        except CheckpointError:  # a text about a run must not raise
            return f"its folder {self.folder} is gone"


def train(
    job: Job | JobProto | str | Path,
    client: Client | None = None,
    *,
    cluster: ClusterTopology | ClusterProto | str | None = None,
    data: Any = None,
    validation: Any = None,
    transform: Any = None,
    processes: bool = True,
    workspace: str | Path | None = None,
    resume: bool = False,
    max_restarts: int = 3,
    patience_s: float = 30.0,
    display: Display | None = None,
    curves: bool = True,
    callbacks: Sequence[Callback | Callable[[RunEvent], Any]] = (),
    max_queue_s: float | None = None,
    trace: str | int | None = None,
) -> Result:
    """Train a job on the workers of `client`, or on a local Dask cluster of its own.

    job: a Job, its message, or the path of a job file.
    client: a client of the Dask cluster that trains; it is never closed. None starts a local cluster.
    cluster: replaces the job's. "auto" takes the topology and the partition that `plan` recommends for this cluster,
    once nobody uses its workers; a run that resumes keeps its own.
    data: what the input layers without a path read: a folder of shards, (X, y), or (X, y, sample_weight) as `shard`
    takes them, which become shards in the workspace. Losses count each sample as its weight says.
    validation: the share of the data that is held out, or a set like data. It is measured after each epoch unless the
    job says how often.
    transform: a function that changes the mini-batches of training, see `singa_dask.transforms`.
    processes: False trains in this process and without Dask, where one worker is enough for the job.
    workspace: the folder for the results, by default `runs/<job name>-<strategy>`. What an earlier run left there is
    moved aside.
    resume: continue from the newest valid checkpoint in the workspace.
    max_restarts: how often a group that lost a worker is restarted, from its servers' parameters or the newest
    checkpoint.
    patience_s: how long to wait for Dask workers, and for a rank that has gone silent.
    display: shows the events of the run.
    curves: whether to draw curves.png.
    callbacks: objects of classes derived from Callback, or functions; each is called with every RunEvent, in this
    thread.
    max_queue_s: how long to wait for Dask workers that other runs use; None for as long as these runs live.
    trace: steps of which a trace for Perfetto is written to trace.pftrace in the workspace: "100:110" for the steps
    100 to 109, or 20 for 20 steps after the first 10.

    Ctrl-C, `singa-dask stop` and cancelling one of the run's tasks end the run after the step in progress, with a
    checkpoint; a second Ctrl-C aborts it. So does an exception in a callback, which is raised as TrainingError.

    In a script a call without a client stands below `if __name__ == "__main__":`, as the local workers import it.
    Raises ConfigError before anything starts where the job cannot run, CheckpointError where there is nothing to
    resume from or a checkpoint went to another disk, ClusterError where workers are missing, were lost too often, or
    do not see the workspace and the files of the job, TrainingError where training diverges.
    """
    _check_caller(client, processes)
    job, steps = as_job(job), None if trace is None else steps_of(trace)
    auto = isinstance(cluster, str)
    if auto and (cluster != "auto" or not processes):
        hint = 'Give cluster="auto" and processes=True, or a ClusterTopology.'
        raise ConfigError(Problem("cluster", "cannot be chosen", f"{cluster!r}, processes={processes}", hint))
    if cluster is not None and not auto:
        job = with_message(job, with_cluster(job.proto, cluster_message(cluster)))
    resume = resume or job.proto.resume
    name = f"{job.name}-{'auto' if auto else job.topology.strategy.name.lower()}"
    folder = Workspace(Path(workspace or job.proto.cluster.workspace or Path("runs") / name))
    if processes:
        text_of(folder.folder, "workspace")
    called = Callbacks(callbacks, job.name, folder.folder, job.proto.train_steps)
    with folder.restored_if_refused():
        if data is not None:
            job = with_data(job, data, validation, cache(partial(folder.new_data, resume=resume)), client)
            called.steps = job.proto.train_steps
        elif validation is not None:
            hint = "Give data too, or set store_conf.validation_share in the job."
            raise ConfigError(Problem("validation", "is for data that are given", hint=hint))
        elif resume and folder.job.exists():
            check_goes_on(job, folder.folder)
        if transform is not None:
            job = with_transform(job, transform)
        show = display or display_for()
        expected = None
        if auto or is_open(job.proto):
            if not (auto or processes):
                check_single(job.topology)
            ran = Job.from_file(folder.job).proto if resume and folder.job.exists() else None
            key, waits = (job.name, str(folder.folder)), (_progress, patience_s, max_queue_s)
            job, expected = (_planned if auto else _partitioned)(job, client, ran, show, key, waits)
        prepared = prepare(job)
        if not processes:
            check_single(prepared.topology)
        run = Run(prepared, folder, show, called, max_restarts, patience_s, max_queue_s, processes, curves, steps)
        return Result(run.to_end(client, resume), folder.folder, expected)


def _planned(
    job: Job, client: Client | None, ran: JobProto | None, show: Display, key: tuple[str, str], waits: Any
) -> tuple[Job, float | None]:
    """The job with the topology and the partition of a plan, and the samples/s that it predicts; or with those of the
    run that goes on. ran: its job. key, waits: what the queue for workers is told."""
    if ran is not None:
        job = job_of(job, Candidate(ran))
        show.say(f"auto: {job.topology.describe()}, as in the run that goes on")
        return job, None
    if client is not None:
        wait_all(client, *key, *waits)
    planned = plan(job, client, note=_progress)
    show.say(f"auto: {expectation(planned.recommended)}")
    return planned.job, planned.recommended.samples_per_s


def _partitioned(
    job: Job, client: Client | None, ran: JobProto | None, show: Display, key: tuple[str, str], waits: Any
) -> tuple[Job, None]:
    """The job with the fastest partition, or with that of the run that goes on; see `_planned`."""
    before = None if ran is None else as_before(job, ran)
    if before is None and client is not None:
        Queue(job.topology.nprocesses, *waits).wait(client, *key)
    return before or resolve_partition(job, client, show.say, _progress), None


def _progress(text: str) -> None:
    """Say what is done before the run begins."""
    Escaped(Output.of(sys.stderr)).say(text)


def _check_caller(client: Client | None, processes: bool) -> None:
    """Raise where the client does not fit, or where this process is one of several that would each start workers: one
    of these workers, which imports its driver's script, or a rank of mpiexec's."""
    if client is not None:
        if not processes:
            hint = "Leave out one of them."
            raise ConfigError(Problem("processes", "is False, and a client is given", hint=hint))
        check_client(client)
    if client is not None or not processes:
        return
    refuse_import()
    for name, count in launched_sizes(os.environ).items():
        if count > 1:
            message = "says that mpiexec has started this several times, and each would train on its own"
            hint = "Give --mpi (in Python: singa_dask.cluster.mpi_world), or unset it where this is the only one."
            raise ConfigError(Problem(name, message, str(count), hint))
