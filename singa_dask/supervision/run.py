"""One run of a job, from an empty workspace or a checkpoint to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.cluster import WorkerInfo, local_cluster
from singa_dask.cluster.formation import WorkersInUse
from singa_dask.cluster.gpus import assigned, chosen, in_words, lacking, unused
from singa_dask.cluster.leases import run_key
from singa_dask.cluster.remote import unsubscribe
from singa_dask.cluster.workers import place
from singa_dask.errors import ClusterError, ConfigError, SchedulerLost, TrainingError
from singa_dask.job import job_to_text
from singa_dask.monitor.progress import Display
from singa_dask.ops.gpu.turns import own_gpu
from singa_dask.supervision.callbacks import Callbacks
from singa_dask.supervision.control import listening
from singa_dask.supervision.events import Progress, ReplicaLost, StopAsked
from singa_dask.supervision.in_process import InProcess
from singa_dask.supervision.interrupts import interrupts
from singa_dask.supervision.launch import GroupLauncher
from singa_dask.supervision.members import Members, Restart
from singa_dask.supervision.queue import Queue
from singa_dask.supervision.record import Record
from singa_dask.supervision.servers import REPLICA_LOST
from singa_dask.supervision.sight import Sight, Witness
from singa_dask.supervision.start_point import fresh, resumed
from singa_dask.supervision.state import Supervision
from singa_dask.supervision.supervisor import Supervisor
from singa_dask.supervision.trace import Trace, traced, tracing
from singa_dask.supervision.watched import Watched
from singa_dask.tracing import EVENT
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.checkpoint import Found
from singa_dask.training.forms import BEGUN, OUTDATED, REWOUND
from singa_dask.training.placement import products_on_gpus
from singa_dask.training.prepare import Prepared, files_named
from singa_dask.training.rank_plan import WorkerPlan
from singa_dask.training.workspace import Workspace

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

# In this time the workers save a last checkpoint after the scheduler was lost.
_LAST_SAVE_S = 30.0


@dataclass(eq=False)
class Run:
    """A prepared job on its way. `to_end` is its only entrance.

    processes: whether it trains on Dask workers, not in this process. curves: whether curves.png is drawn at the end.
    trace: the steps to trace, see `traced`.
    """

    prepared: Prepared
    workspace: Workspace
    display: Display
    callbacks: Callbacks
    max_restarts: int
    patience_s: float
    max_queue_s: float | None = None
    processes: bool = True
    curves: bool = True
    trace: tuple[int | None, int] | None = None
    _launcher: GroupLauncher | None = None
    _supervisor: Supervisor | None = None
    _watched: Watched | None = None
    _in_process: InProcess | None = None
    _trace: Trace | None = None
    _sight: Sight | None = None  # None if the workers are of this machine
    _told: list[dict[str, Any]] = field(default_factory=list)  # by earlier starts of the run
    _heard: bool = False  # anything from a worker group
    _over: bool = False  # training has ended: what is left is not cut off
    _gpus: tuple[int, ...] | None = None  # from which its workers get theirs; see gpus.chosen

    def __post_init__(self) -> None:
        self._record = Record(self.prepared, self.workspace, self.display, self.curves)
        self._witness = Witness(self._believe, self._record.tell)

    def to_end(self, client: Client | None, resume: bool) -> dict[str, Any]:
        """Run until done, stopped or beyond rescue; returns the summary, which is left in the workspace either way."""
        with self.workspace.locked(), interrupts(lambda by: not self._over):
            self.workspace.check_own()
            found, notes = (
                fresh(self.prepared, self.workspace)
                if not resume
                else resumed(self.prepared, self.workspace, lives=client is not None)
            )
            if self.trace is not None:
                steps = traced(self.trace, found.step if found else 0, self.prepared.job.train_steps)
                self._trace = Trace(steps, self.workspace.trace, self.display.say, self.prepared.topology)
            if found is not None:
                self._record.steps[0], self._record.checkpoint = found.step, str(found.path)
            with ExitStack() as shown:
                shown.enter_context(self.display)
                if client is not None:  # before anything is moved
                    self._sight = Sight(client, self.workspace.folder, files_named(self.prepared))
                    self._free_workers(client)
                aside = None if resume else self.workspace.set_aside() or self.workspace.aside
                self.workspace.open(job_to_text(self.prepared.job), resumes=resume)
                self._told = self.workspace.told()
                self._record.tell("start", step=found.step if found else 0)
                error: BaseException | None = None
                try:
                    with shown.pop_all() as stack:
                        for note in notes:
                            self.display.say(note)
                        if aside:
                            self.display.note(f"the earlier run in this workspace is now {aside}")
                        if self.processes:
                            self._train(client or self._local_client(stack), resume)
                        else:
                            self.workspace.rewind(found.step if found else None)
                            self._train_in_process(found)
                except BaseException as caught:
                    error = caught
                    raise
                finally:
                    summary = self._record.close(error, self._stopped)
                    if self._watched:
                        self._watched.over(summary)
                    self._call_at_end(summary, error)
                return summary

    # Training

    @property
    def _worker_plan(self) -> WorkerPlan:
        return WorkerPlan(
            job=self.prepared.job.SerializeToString(),
            checkpoints=self.workspace.checkpoints,
            data=self.prepared.data,
            code=self.prepared.code,
            described=self.prepared.described,
            run=self.workspace.id,
            trace=self._trace.steps if self._trace else None,
        )

    def _local_client(self, stack: ExitStack) -> Client:
        nworkers = self.prepared.topology.nprocesses
        self.display.note(f"starting a local Dask cluster of {nworkers} worker{'s' * (nworkers > 1)}")
        return stack.enter_context(local_cluster(nworkers))

    def _train_in_process(self, found: Found | None) -> None:
        gpu = own_gpu(self.prepared.job.gpu)
        if gpu is not None:
            self.display.note(f"training on GPU {gpu}")
        self._in_process = InProcess(self._worker_plan, found, self._handle, gpu)
        with self._calling(), tracing(self._trace, None):
            self._record.reports = {0: self._in_process.run()}
            self._witness.settle()

    def _train(self, client: Client, resume: bool) -> None:
        topic = run_key(self.prepared.job.name, str(self.workspace.folder), self.workspace.id)
        launcher = self._launcher = GroupLauncher(
            client, self.prepared, self._worker_plan, topic=topic, patience_s=self.patience_s, resumes=resume
        )
        self._watched = Watched(client, topic, self.prepared, self.workspace.folder, self.display.say)
        with self._calling(), _events(client, topic, self._handle), tracing(self._trace, client):
            while True:
                free = self._free_workers(client)
                try:
                    return self._supervise(launcher, free)
                except WorkersInUse:  # another run was faster
                    if self._heard:
                        raise
                except SchedulerLost as error:
                    raise ClusterError(f"{error} {self._saved_without_scheduler()}") from error

    def _saved_without_scheduler(self) -> str:
        """What the workers, who save before they end, have made of the run."""
        last, deadline = self._record.steps.get(0, 0), time.monotonic() + _LAST_SAVE_S
        found = checkpoints.newest(self.workspace.checkpoints)[0]
        while (found is None or found.step < last) and time.monotonic() < deadline:
            time.sleep(0.25)
            found = checkpoints.newest(self.workspace.checkpoints)[0]
        if found is None:
            return "The run has no checkpoint."
        self._record.steps[0], self._record.checkpoint = max(last, found.step), str(found.path)
        return f"The newest checkpoint is of step {found.step}: go on with --resume."

    def _free_workers(self, client: Client) -> list[WorkerInfo]:
        job, topology = self.prepared.job, self.prepared.topology
        queue = Queue(
            topology.nprocesses,
            self.display.note,
            self.patience_s,
            self.max_queue_s,
            lambda workers: lacking(topology.nworkers, job.gpu, workers),
        )
        queue.wait(client, job.name, str(self.workspace.folder))
        self._gpus = chosen(job.gpu, queue.there)
        free = [info for info in assigned(queue.there, self._gpus) if not info.group]
        if self._sight is not None:
            self._sight.check(free)
        return free

    def _supervise(self, launcher: GroupLauncher, free: Sequence[WorkerInfo]) -> None:
        topology = self.prepared.topology
        groups, size = topology.nworker_groups, topology.nworkers_per_group
        split = any(self.prepared.layout.own_sizes)  # their shards are of so many workers
        self.display.note(f"forming {groups} worker group{'s' * (groups > 1)} of {size} on Dask workers")
        placement = place(topology, free, on_gpus=self._gpus is not None)
        trained_on = {address for group in placement.workers for address in group}
        on_gpus = in_words([info for info in free if info.address in trained_on])
        if where := on_gpus or self._unused_gpus(free):
            self.display.note(where)
        if on_gpus:
            self.display.note(products_on_gpus(self.prepared.job))
        starts = [event["event"] for event in self._told].count("start")
        members = Members.placed(topology, placement, starts)
        members.recall(self._told)
        supervision = Supervision(
            members,
            steps=self._record.steps,
            max_restarts=self.max_restarts,
            patience_s=self.patience_s,
            least=None if split else topology.min_workers,
            gpus=self._gpus,
        )
        supervision.run.processes.there(free)
        supervisor = self._supervisor = Supervisor(
            supervision,
            launcher,
            note=self.display.note,
            newest=lambda: checkpoints.newest(self.workspace.checkpoints)[0],
            rewound=self._rewound,
            restarted=self._restarted,
            outdated=lambda lost: self._record.tell(OUTDATED, **asdict(lost)),
            giving_up=lambda: self._record.write(None, self._stopped),
            seeing=self._sight.seeing if self._sight else None,
        )
        with listening(launcher.client, self.prepared.job.name, str(self.workspace.folder), supervisor.post):
            self._record.reports |= supervisor.run()
        self._witness.settle()

    def _unused_gpus(self, workers: Sequence[WorkerInfo]) -> str:
        return "" if self.prepared.job.gpu else unused(workers)

    def _rewound(self, groups: Collection[int], step: int | None) -> None:
        self._record.steps |= dict.fromkeys(groups, step or 0)
        self._record.tell(REWOUND, groups=tuple(groups), step=step)
        self.workspace.rewind(step, groups if self._heard else None)  # there may have been more groups before
        if 0 in groups:
            self._tell_decided({})

    def _tell_decided(self, state: Mapping[str, Any]) -> None:
        """What worker groups that are formed from now on are told of the decisions of evaluations."""
        if self._launcher:
            self._launcher.worker_plan = replace(self._launcher.worker_plan, decided=state)

    # Callbacks, in the thread that called the run

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """At the end of the context callbacks know all that happened in it, and the error of one is raised."""
        try:
            yield
        finally:
            self._over = True
            self.callbacks.call()
        if self.callbacks.error:
            saved = f" The run ended with the checkpoint {self._record.checkpoint}." if self._record.checkpoint else ""
            raise TrainingError(f"{self.callbacks.error}.{saved}") from self.callbacks.error.__cause__

    def _call(self) -> None:
        self.callbacks.call()
        if self.callbacks.error and self._supervisor:
            self._supervisor.post(StopAsked("a callback failed"))
        elif self.callbacks.error and self._in_process:
            self._in_process.stop("a callback failed")

    def _restarted(self, restart: Restart) -> None:
        self._record.restarts.append(asdict(restart))
        self._record.tell("restart", **asdict(restart))
        if self._watched:
            self._watched.tell("restart", **asdict(restart))
        for group in restart.groups:
            self.callbacks.put("restart", group=group, step=restart.step, cause=restart.cause)
        self._call()

    def _call_at_end(self, summary: Mapping[str, Any], error: BaseException | None) -> None:
        """Tell callbacks of the end. What one raises then is raised unless the run itself has failed."""
        before = self.callbacks.error
        path = self._record.checkpoint and Path(self._record.checkpoint)
        about = {"status": summary["status"], "metrics": summary["test"], "cause": summary["error"] or ""}
        self.callbacks.put("end", step=summary["step"], path=path, **about)
        self.callbacks.call()
        fault = self.callbacks.error
        if fault is not None and fault is not before:
            if error is None:
                raise fault
            logger.error("%s", fault)

    # What worker groups tell

    def _handle(self, event: dict[str, Any]) -> None:
        try:
            self._take(event)
        except ConfigError as error:  # another run has taken the workspace
            if self._supervisor is None:  # the group is in this thread
                raise
            self._supervisor.post(partial(_raise, error))

    def _take(self, event: dict[str, Any]) -> None:
        if event["kind"] == REPLICA_LOST:
            if self._supervisor:
                self._supervisor.post(ReplicaLost(*event["lost"]))
            return
        if event["kind"] == EVENT:
            if self._trace:
                self._trace.take(event)
            return
        self._heard = True
        if event["kind"] == "start":  # what comes after this step is measured again
            self.workspace.rewind(event["step"] or None, [event["group"]])
        self._record.steps[event["group"]] = event["step"]
        if event["kind"] == "start" and self._supervisor:
            steps = sorted(self._record.steps.items())
            self._supervisor.post(partial(self._record.tell, BEGUN, group=event["group"], steps=steps))
        if self._supervisor:
            self._supervisor.post(Progress(event["group"], event["step"]))
        if event["kind"] == "decision" and event.get("ends") and self._supervisor:
            self._supervisor.post(StopAsked("early stopping", early=True))
        if event["kind"] == "decided":
            self._tell_decided(event["state"])
        if event["kind"] in ("checkpoint", "best"):
            if not self._witness.hear(event) and self._supervisor:
                self._supervisor.post(self._witness.settle)
            return
        if event["kind"] == "end":
            self._record.end(event["group"], event["record"])
        if event["kind"] == "metrics":
            self._record.measure(event)
        self._show(event)

    def _believe(self, event: dict[str, Any]) -> None:
        if event["kind"] == "best":
            self._record.best = event["best"]
        else:
            self._record.checkpoint = event["path"]
        self._show(event)

    def _show(self, event: dict[str, Any]) -> None:
        self.display.handle(event)
        if self.callbacks.put_from_worker(event):
            if self._supervisor:
                self._supervisor.post(self._call)
            else:  # the group is in this thread
                self._call()

    @property
    def _stopped(self) -> str:
        """By whom the run was asked to stop. A callback that failed is an error of its own."""
        asked = (self._supervisor and self._supervisor.state) or self._in_process
        return asked.stopped if asked and not self.callbacks.error else ""


def _raise(error: Exception) -> None:
    raise error


@contextmanager
def _events(client: Client, topic: str, handler: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Dask events of the topic go to `handler` as long as the context is open; what it raises comes out at
    the end (in Dask's event loop, where it runs, it would be lost). It runs in the context of the caller: by that a
    notebook knows in which cell it shows what is printed."""
    faults: list[Exception] = []
    context = copy_context()

    def receive(stamped: tuple[float, dict[str, Any]]) -> None:
        try:
            context.run(handler, stamped[1])
        except Exception as error:
            faults.append(error)

    client.subscribe_topic(topic, receive)
    try:
        yield
    finally:
        unsubscribe(client, topic)
    if faults:
        raise TrainingError(f"training ended, but not all of its metrics could be recorded: {faults[0]}") from faults[
            0
        ]
