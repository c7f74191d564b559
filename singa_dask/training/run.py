"""One run of a job, from an empty workspace or a checkpoint to its end: attempts, restarts, and its record."""

from __future__ import annotations

import logging
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.cluster import Group, GroupFailed, form_group, local_cluster, place, wait_workers
from singa_dask.errors import CheckpointError, ClusterError, ConfigError, Problem, SingaError, TrainingError
from singa_dask.job import job_to_text
from singa_dask.monitor.curves import draw_curves
from singa_dask.monitor.progress import Display
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Found
from singa_dask.training.prepare import Prepared, training_data
from singa_dask.training.worker import WorkerPlan, on_dask_worker
from singa_dask.training.workspace import Workspace

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)


class GroupLost(ClusterError):
    """A rank's process died or went silent: forming the group anew may help."""


class Run:
    """A prepared job on its way. `to_end` is its only entrance."""

    def __init__(
        self, prepared: Prepared, workspace: Workspace, display: Display, *, max_restarts: int, patience_s: float
    ):
        self.prepared = prepared
        self.workspace = workspace
        self.display = display
        self.max_restarts = max_restarts
        self.patience_s = patience_s
        self._restarts = 0
        self._stopping = False
        self._started = time.monotonic()
        # What the ranks have told so far: the record of a run that fails.
        self._report: dict[str, Any] = {"step": 0, "checkpoint": None}

    def to_end(self, client: Client | None, resume: bool) -> dict[str, Any]:
        """Run until done, stopped or beyond rescue; returns the summary, which is left in the workspace either way."""
        with self.workspace.locked():
            found, faults = self._start_point(resume)
            aside = None if resume else self.workspace.set_aside()
            self.workspace.open(job_to_text(self.prepared.job), found.step if found else None)
            error: BaseException | None = None
            try:
                with self.display, ExitStack() as stack:
                    for fault in faults:
                        self.display.note(f"passed over: {fault}")
                    if aside:
                        self.display.note(f"the earlier run in this workspace is now {aside}")
                    if client is None:
                        nworkers = self.prepared.topology.nprocesses
                        self.display.note(f"starting a local Dask cluster of {nworkers} workers")
                        client = stack.enter_context(local_cluster(nworkers))
                    self._until_done(client, found)
            except BaseException as caught:
                error = caught
                raise
            finally:
                summary = self._record(error)
            return summary

    # Where it starts

    def _start_point(self, resume: bool) -> tuple[Found | None, list[str]]:
        if not resume:
            self._check_given()
            return None, []
        found, faults = checkpoints.newest(self.workspace.checkpoints)
        if found is None:
            raise CheckpointError(
                f"{self.workspace.checkpoints}: no valid checkpoint to resume from. "
                "Run without --resume, or give the --workspace of the earlier run"
                f"{self.workspace.earlier()}. {' '.join(faults)}".rstrip()
            )
        self._check_same(found)
        if training_data(found.data) != training_data(self.prepared.data):
            raise CheckpointError(
                f"{found.path} was made with other data: other shards, batchsize, shuffle or seed. Resume with what "
                f"{self.workspace.job} says, or start from its parameters in another workspace: "
                f"--workspace NEW --set 'checkpoint_path=[\"{found.path}\"]'."
            )
        self._report |= {"step": found.step, "checkpoint": str(found.path)}
        return found, faults

    def _check_same(self, found: Found) -> None:
        """A checkpoint of another net or updater, or from beyond the end, is no point to go on from."""
        prepared, faults = self.prepared, []
        if found.step > prepared.job.train_steps:
            faults.append(f"it is from step {found.step}, beyond train_steps, {prepared.job.train_steps}")
        for name in found.shapes.keys() | prepared.shapes.keys():
            saved, wanted = found.shapes.get(name), prepared.shapes.get(name)
            if saved != wanted:
                faults.append(f"parameter {name!r}: {saved or 'none'} in it, {wanted or 'none'} in this job")
        if set(found.updater_state) != set(prepared.updater_state):
            names = [", ".join(sorted(state)) or "none" for state in (found.updater_state, prepared.updater_state)]
            faults.append(f"updater state: {names[0]} in it, {names[1]} in this job")
        if faults:
            raise CheckpointError(
                f"{found.path} does not fit this job: {'; '.join(sorted(faults))}. Resume with what "
                f"{self.workspace.job} says."
            )

    def _check_given(self) -> None:
        """The checkpoints that a fresh run starts from must be there, and must stay there."""
        problems = []
        for path in self.prepared.job.checkpoint_path:
            try:
                checkpoints.load(Path(path))
            except CheckpointError as error:
                problems.append(Problem("checkpoint_path", str(error)))
            if self.workspace.folder in Path(path).absolute().parents:
                hint = "Pass another --workspace."
                problems.append(Problem("checkpoint_path", "lies in the workspace that this run replaces", path, hint))
        if problems:
            raise ConfigError(problems)

    # Attempts

    def _until_done(self, client: Client, found: Found | None) -> None:
        while True:
            try:
                self._attempt(client, found)
                return
            except GroupLost as error:
                found, _ = checkpoints.newest(self.workspace.checkpoints)
                if self._stopping:
                    self._report |= {"interrupted": True, "step": found.step if found else 0}
                    self.display.note(f"{error} The run was being stopped, so it ends here.")
                    return
                if self._restarts >= self.max_restarts:
                    raise
                self._restarts += 1
                step = found.step if found else 0
                self.workspace.rewind(found.step if found else None)
                self.display.note(f"{error} Restart {self._restarts} of {self.max_restarts}, from step {step}.")

    def _attempt(self, client: Client, found: Found | None) -> None:
        """Form the group once and train until it ends."""
        topology = self.prepared.topology
        self.display.note(f"forming a group of {topology.nprocesses} Dask workers")
        placement = place(topology, wait_workers(client, topology.nprocesses, self.patience_s))
        ranks = placement.workers[0]
        plan = WorkerPlan(
            job=self.prepared.job.SerializeToString(),
            checkpoints=self.workspace.checkpoints,
            cores=tuple(placement.cores[address] for address in ranks),
            data=self.prepared.data,
            resume=found.path if found else None,
        )
        name = f"train-{self.prepared.job.name}"
        with _events(client, self._handle) as topic:
            try:
                with form_group(
                    client, ranks, on_dask_worker, plan, topic, comm_timeout_s=self.patience_s, name=name
                ) as group:
                    self._report |= self._until_ended(group)
            except ClusterError as error:
                raise self._cause(client, ranks, error) from error.__cause__

    def _until_ended(self, group: Group) -> dict[str, Any]:
        """What the first rank reports. Waits as long as ranks live: each of their own waits has a deadline."""
        try:
            group.wait()
        except KeyboardInterrupt:
            self._stopping = True
            self.display.note("stopping after this step (Ctrl-C again: at once)")
            group.stop()
            group.wait()
        return group.results()[0]

    def _cause(self, client: Client, ranks: Sequence[str], error: ClusterError) -> SingaError:
        """What the driver raises for a failed group: the rank's own error where it raised one of ours on purpose."""
        if not isinstance(error, GroupFailed):
            gone = set(ranks) - set(client.scheduler_info(n_workers=-1)["workers"])
            return GroupLost(str(error)) if gone else error
        raised = error.failure.exception
        if raised is None or isinstance(raised, ClusterError):
            return GroupLost(f"{error.failure} (step {self._report['step']}).")
        return raised if isinstance(raised, SingaError) else error

    # The record

    def _handle(self, event: dict[str, Any]) -> None:
        self._report["step"] = event["step"]
        if event["kind"] == "checkpoint":
            self._report["checkpoint"] = event["path"]
        if event["kind"] == "metrics":
            self.workspace.append({key: value for key, value in event.items() if key != "kind"})
        self.display.handle(event)

    def _record(self, error: BaseException | None) -> dict[str, Any]:
        summary = self._summary(error)
        topology = self.prepared.topology
        try:
            self.workspace.write_summary(summary)
            rows = list(self.workspace.rows())
            draw_curves(rows, self.workspace.curves, f"{self.prepared.job.name}, {topology.framework.value}")
        except (OSError, ValueError) as fault:  # must not hide how the run itself ended
            logger.error("%s: the record of this run is incomplete: %s", self.workspace.folder, fault)
        return summary

    def _summary(self, error: BaseException | None) -> dict[str, Any]:
        job, topology, report = self.prepared.job, self.prepared.topology, self._report
        if isinstance(error, KeyboardInterrupt) or report.get("interrupted"):
            status = "interrupted"
        else:
            status = "completed" if error is None else "failed"
        metrics = report.get("metrics", {})
        return {
            "status": status,
            "error": None if error is None else str(error) or type(error).__name__,
            "job": job.name,
            "framework": topology.framework.name.lower(),
            "topology": asdict(topology),
            "train_steps": job.train_steps,
            "step": report["step"],
            "train": metrics.get("train", {}),
            "validate": metrics.get("validate", {}),
            "test": metrics.get("test", {}),
            "samples_per_s": round(report.get("samples_per_s", 0.0), 1),
            "exchanged_bytes": report.get("exchanged_bytes", 0),
            "wall_s": round(time.monotonic() - self._started, 3),
            "restarts": self._restarts,
            "checkpoint": report["checkpoint"],
            "seed": job.seed,
            "versions": _versions(),
        }


@contextmanager
def _events(client: Client, handler: Callable[[dict[str, Any]], None]) -> Iterator[str]:
    """Dask events of a topic of its own go to `handler` as long as the context is open; what it raises comes out at
    the end (in Dask's event loop, where it runs, it would be lost)."""
    topic = f"singa-dask-{uuid.uuid4().hex[:12]}"
    faults: list[Exception] = []

    def receive(stamped: tuple[float, dict[str, Any]]) -> None:
        try:
            handler(stamped[1])
        except Exception as error:
            faults.append(error)

    client.subscribe_topic(topic, receive)
    try:
        yield topic
    finally:
        client.unsubscribe_topic(topic)
    if faults:
        raise TrainingError(f"training ended, but not all of its metrics could be recorded: {faults[0]}") from faults[
            0
        ]


def _versions() -> dict[str, str]:
    packages = ("singa-dask", "numpy", "numba", "dask", "distributed", "mpi4py", "h5py", "protobuf")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
