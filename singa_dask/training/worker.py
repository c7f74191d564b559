"""What one rank of a worker group runs: the training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.nccl import nccl_beside
from singa_dask.comm.solo import SoloCommunicator
from singa_dask.data import Loader, Manifest
from singa_dask.errors import CheckpointError, DataError, TrainingError
from singa_dask.job import job_to_text
from singa_dask.job.code_bundle import CodeBundle, unpacked
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Metric, Step
from singa_dask.net import Batch, Net
from singa_dask.ops import get_ops
from singa_dask.server import Link
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.feed import group_stream, next_feed
from singa_dask.training.frequencies import (
    PHASE_NAMES,
    batches_of,
    checkpoint_due,
    display_due,
    evaluations_due,
)
from singa_dask.training.placement import gpu_of, suits_wire
from singa_dask.training.prepare import data_key
from singa_dask.training.replica import Replica
from singa_dask.training.step_metrics import Window, of_all_ranks

PROGRESS_EVERY_S = 0.25
# Whether to break an evaluation off.
ASK_AGAIN_S = 0.2
# Compiling kernels takes seconds, and more where several workers share a core; so does writing a large checkpoint.
MEETING_TIMEOUT_S = 300.0
# For the other worker groups to end, once everybody was asked to stop.
STOP_S = 15.0


@dataclass(frozen=True)
class GroupPlan:
    """What a worker group must know of itself.

    number: from 0; generation: grows whenever it is formed anew. puts: whether it gives its servers their first
    parameters, from the checkpoint `resume` where there is one. first: step to begin with, where the servers know no
    later one. fresh: whether the servers are made with the group, and know nothing.
    """

    number: int = 0
    generation: int = 0
    puts: bool = True
    resume: Path | None = None
    first: int = 0
    fresh: bool = True

    @property
    def leads(self) -> bool:
        """Whether it tests, validates and saves for the whole job."""
        return self.number == 0


@dataclass(frozen=True)
class WorkerPlan:
    """What the driver tells every rank of a group.

    job: serialised JobProto, its data paths absolute. threads: of the kernels of each rank. data: fingerprints of
    the data, as `Prepared` has them. code: of the user's own.
    """

    job: bytes
    checkpoints: Path
    threads: int = 1
    data: Mapping[str, str] = field(default_factory=dict)
    group: GroupPlan = GroupPlan()
    code: CodeBundle | None = None


@dataclass
class RankServices:
    """What a rank needs from outside; the tests bring their own.

    submit: runs a loading task ahead of time. emit: sends an event to the driver. stop_requested: whether the driver
    asked for an early, clean end. links: to the servers of the group, None where they are private. others_ended:
    whether all other worker groups have.
    """

    submit: Callable[..., Any]
    emit: Callable[[dict[str, Any]], None] = lambda event: None
    stop_requested: Callable[[], bool] = lambda: False
    links: Callable[[], Mapping[int, Link]] | None = None
    others_ended: Callable[[], bool] = lambda: True


def train_rank(comm: Communicator, plan: WorkerPlan, surroundings: RankServices) -> dict[str, Any]:
    """Train until the job's last step, or until a stop is requested; returns what the first rank reports.

    Every rank of the group calls it. Raises TrainingError on all ranks within one step when the loss of any of them
    is not finite.
    """
    job = JobProto.FromString(plan.job)
    with ExitStack() as stack:
        stack.enter_context(unpacked(plan.code))
        threads = job.num_openblas_threads if job.HasField("num_openblas_threads") else plan.threads
        # On the CPU kernels and products share the threads of the Ops: those of BLAS would be in their way.
        stack.enter_context(threadpool_limits(threads if job.gpu else 1))
        plan = replace(plan, threads=threads)
        # A loss that is not finite is reported once, by _check_finite.
        stack.enter_context(np.errstate(over="ignore", invalid="ignore", divide="ignore"))
        run = _Run(comm, plan, job, surroundings, stack)
        return run.loop()


class _Run:
    """The state of one rank's training loop."""

    def __init__(
        self, comm: Communicator, plan: WorkerPlan, job: JobProto, surroundings: RankServices, stack: ExitStack
    ):
        self.comm, self.plan, self.job, self.surroundings = comm, plan, job, surroundings
        self.group = plan.group
        gpu = gpu_of(job, self.group.number, comm.rank)
        self.ops = get_ops("cpu", threads=plan.threads) if gpu is None else get_ops("gpu", device_id=gpu)
        wire: Communicator | None = None
        if gpu is not None and suits_wire(job, private=surroundings.links is None):
            alone = comm.size == 1
            wire = (
                SoloCommunicator(interrupted=lambda: comm.aborted) if alone else nccl_beside(comm, gpu, comm.timeout_s)
            )
        if wire is not None:
            stack.callback(wire.close)
        self.replica = Replica(
            job,
            comm,
            self.ops,
            None if surroundings.links is None else surroundings.links(),
            wire,
            group=plan.group.number,
            generation=plan.group.generation,
            patience_s=MEETING_TIMEOUT_S,
            aborted=lambda: comm.aborted,
        )
        stack.callback(self.replica.close)
        for net in self.replica.nets.values():
            stack.callback(net.close)
        self.step = self._start_state()
        self.loaders = {
            name: stack.enter_context(self._loader(self.replica.net, name, self.step))
            for name in self.replica.net.input_layers
        }
        self.batch = max((loader.stream.batchsize for loader in self.loaders.values()), default=1)
        self.window, self.whole = Window(), Window()
        self.measured: dict[str, tuple[int, dict[str, float]]] = {}  # by phase: at which step, and what
        self.saved: Path | None = None
        self._last_progress = 0.0

    # The loop

    def loop(self) -> dict[str, Any]:
        start = self.step
        self._warm_up()
        if self.job.cluster.nworker_groups > 1 and not self.replica.private:  # others have gone on in the meantime
            self.replica.fetch(self.step)
        self._emit(
            "start",
            step=start,
            steps=self.job.train_steps,
            batch=self.batch,
            ranks=self.comm.size,
            groups=self.job.cluster.nworker_groups,
            exchange=self.replica.way,
        )
        stopping = False
        while True:
            ended = stopping or self.step >= self.job.train_steps
            if self.step > start and (ended or display_due(self.job, self.step)):
                self._display()
            if ended:
                self._leave()
            cut_short = stopping and self.step < self.job.train_steps
            for phase in evaluations_due(self.job, self.step) if self.group.leads else ():
                cut_short = cut_short or self._evaluate(phase)
            ended = ended or cut_short
            if self.group.leads and (ended or checkpoint_due(self.job, self.step)):
                self._save()
            if ended:
                return self._report(interrupted=cut_short)
            stopping = self._train()

    def _train(self) -> bool:
        """One training step; returns whether any rank was asked to stop."""
        began = time.perf_counter()
        waited, loading = self.replica.wait_s, sum(loader.wait_s for loader in self.loaders.values())
        feed, step = self._next(self.loaders, Phase.kTrain, self.step)
        metrics = self.replica.train_step(feed, step)
        loading = sum(loader.wait_s for loader in self.loaders.values()) - loading
        stopping = self._agree(metrics, self.replica.wait_s - waited, loading)
        self.step += 1
        self.window.steps += 1
        self.window.seconds += time.perf_counter() - began
        self._progress()
        return stopping

    def _agree(self, metrics: Mapping[str, Metric], waited: float, loading: float) -> bool:
        """Let all ranks know the loss, who waits, and whether to stop, right after the all-gather has brought them
        together; returns whether to."""
        stopping, summed, ranks = of_all_ranks(
            self.comm, self.surroundings.stop_requested(), metrics, waited, loading, self.replica.stub.take_traffic()
        )
        _check_finite(summed, self.step)
        self.window.add_step(summed, ranks)
        return stopping

    def _leave(self) -> None:
        """Make no more updates; the group that leads then waits for the others, and takes what all have made."""
        self.replica.settle()
        self.replica.stub.leave()
        if not self.group.leads or self.job.cluster.nworker_groups == 1:
            return
        ended, last = np.zeros(1), math.inf
        while not ended[0]:
            time.sleep(0.05)
            if self.surroundings.stop_requested():  # of the others too
                last = min(last, time.monotonic() + STOP_S)
            ended[0] = self.comm.rank == 0 and (self.surroundings.others_ended() or time.monotonic() > last)
            self.comm.all_reduce(ended)
        self.replica.fetch(self.step)

    def _evaluate(self, phase: int) -> bool:
        """The mean metrics of `test_steps` (or `validate_steps`) mini-batches, shared by all ranks; returns whether it
        was broken off because any rank was asked to stop."""
        self.replica.settle()
        net = self.replica.nets[phase]
        net.forget()
        summed: dict[str, Metric] = {}
        began, ask_at = time.perf_counter(), 0
        with ExitStack() as stack:
            loaders = {
                name: stack.enter_context(self._loader(net, name, 0, stop=batches_of(self.job, phase)))
                for name in net.input_layers
            }
            for number in range(batches_of(self.job, phase)):
                if number == ask_at:
                    ahead = self._batches_ahead(number, time.perf_counter() - began)
                    if not ahead:
                        return True
                    ask_at += ahead
                feed, step = self._next(loaders, phase, number)
                for name, metric in self.replica.algorithm.test_one_batch(net, feed, step).items():
                    summed[name] = summed.get(name, Metric()) + metric
        net.close()
        names = list(summed)
        message = np.array([[summed[name].total, summed[name].count] for name in names])
        self.comm.all_reduce(message.reshape(-1))
        means = {name: Metric(*row).mean for name, row in zip(names, message.tolist(), strict=True)}
        self.measured[PHASE_NAMES[phase]] = self.step, means
        self._emit("metrics", phase=PHASE_NAMES[phase], step=self.step, metrics=means)
        return False

    def _batches_ahead(self, done: int, seconds: float) -> int:
        """How many mini-batches the ranks evaluate before they ask each other again, 0 where any was asked to stop.
        `done` took `seconds` here. At every one they would wait for whichever is late at that one."""
        mine = ASK_AGAIN_S * done / max(seconds, 1e-6)
        message = np.array([float(self.surroundings.stop_requested()), float(int(mine))])  # whole: the sum is exact
        self.comm.all_reduce(message)
        return 0 if message[0] else max(1, int(message[1]) // self.comm.size)

    def _save(self) -> None:
        """Save what is not there: a group that is formed anew begins where an earlier one may have been saving, and
        one that goes on from before a damaged checkpoint comes to its step again."""
        path = checkpoints.path_of(self.plan.checkpoints, self.step)
        there = np.array([float(self.step == 0 or (self.comm.rank == 0 and checkpoints.intact(path)))])
        with self.comm.patiently(MEETING_TIMEOUT_S):
            self.comm.broadcast(there)
        if there[0]:
            return
        self.replica.settle()
        snapshot = self.replica.snapshot(self.step, job_to_text(self.job), self.plan.data)
        if snapshot is not None:
            self.saved = checkpoints.save(snapshot, path)
            self._emit("checkpoint", step=self.step, path=str(self.saved))
        self._meet()

    # Its parts

    def _start_state(self) -> int:
        """Have the parameters on the servers, and here; returns the step to begin with."""
        group, replica = self.group, self.replica
        if group.puts and group.resume is not None:
            found, there = self._resumed(group.resume)
            if there:
                replica.restore(found, carry=group.leads)
        elif group.puts:
            replica.initialise(checkpoints.load_parameters(self.job.checkpoint_path) if self.comm.rank == 0 else {})
        return replica.fetch(group.first)

    def _resumed(self, path: Path) -> tuple[checkpoints.Checkpoint | None, bool]:
        """The checkpoint, on the first rank, and whether it is there: to a group that is formed anew the servers give
        their parameters, and what they began with may have been removed since."""
        found, there = None, np.ones(1)
        if self.comm.rank == 0:
            try:
                found = checkpoints.load(path)
            except CheckpointError:
                if self.replica.private or self.group.fresh:
                    raise
                there[0] = 0
        self.comm.broadcast(there)
        return found, bool(there[0])

    def _loader(self, net: Net, name: str, start: int, stop: int | None = None) -> Loader:
        store = net.layers[name].proto.store_conf
        manifest = Manifest.load(Path(store.path))
        expected = self.plan.data.get(data_key(net.phase, name))
        if expected not in (None, group_stream(self.job, store, manifest, net.phase).fingerprint):
            raise DataError(f"{store.path}: holds other shards here than where the job was started. Copy them anew.")
        return Loader(
            group_stream(self.job, store, manifest, net.phase, self.group.number),
            store,
            self.surroundings.submit,
            self.comm.rank,
            self.comm.size,
            start_step=start,
            stop_step=stop,
        )

    def _next(self, loaders: Mapping[str, Loader], phase: int, number: int) -> tuple[dict[str, Batch], Step]:
        return next_feed(loaders, self.ops, phase, number, self.job.seed)

    def _warm_up(self) -> None:
        with ExitStack() as stack:
            loaders = {
                name: stack.enter_context(self._loader(self.replica.net, name, self.step, stop=self.step + 1))
                for name in self.replica.net.input_layers
            }
            self.replica.warm_up(*self._next(loaders, Phase.kTrain, self.step))
        self.replica.net.close()  # what output layers have written of it
        self._meet()

    def _meet(self) -> None:
        with self.comm.patiently(MEETING_TIMEOUT_S):
            self.comm.barrier()

    # What it tells

    def _emit(self, kind: str, **fields: Any) -> None:
        if self.comm.rank == 0:
            self.surroundings.emit({"kind": kind, "group": self.group.number, "time": time.time(), **fields})

    def _figures(self) -> dict[str, Any]:
        window = self.window
        seconds = max(window.seconds, 1e-9)
        figures = {
            "step": self.step,
            "metrics": window.means(),
            "samples_per_s": window.steps * self.batch / seconds,
            **window.waits(),
        }
        return figures if self.replica.private else {**figures, "server": window.servers()}

    def _progress(self) -> None:
        now = time.perf_counter()
        if now - self._last_progress > PROGRESS_EVERY_S:
            self._last_progress = now
            self._emit("progress", **self._figures())

    def _display(self) -> None:
        if self.window.steps:
            figures = self._figures()
            self.measured["train"] = self.step, figures["metrics"]
            self._emit("metrics", phase="train", **figures)
        self.whole.add(self.window)
        self.window = Window()

    def _report(self, interrupted: bool) -> dict[str, Any]:
        overflows = np.array([float(self.replica.overflows)])
        self.comm.all_reduce(overflows)
        operations = self.replica.operations
        report = {
            "step": self.step,
            "interrupted": interrupted,
            "metrics": {phase: means for phase, (step, means) in self.measured.items() if step == self.step},
            "checkpoint": str(self.saved) if self.saved else None,
            "steps": self.whole.steps,
            "samples": self.whole.steps * self.batch,
            "seconds": self.whole.seconds,
            "samples_per_s": self.whole.steps * self.batch / self.whole.seconds if self.whole.steps else 0.0,
            **self.whole.waits(),
            "exchanged_bytes": sum(int(done["bytes"]) for done in operations.values()),
            "operations": operations,
            "overflows": int(overflows[0]),
            "server": None if self.replica.private or not self.whole.steps else self.whole.servers(),
        }
        self._emit("end", step=self.step)
        return report


def _check_finite(metrics: Mapping[str, Metric], step: int) -> None:
    for name, metric in metrics.items():
        if not math.isfinite(metric.total):
            raise TrainingError(
                f"{name} is {metric.total} at step {step}: training diverged. Lower updater.learning_rate.base_lr, "
                "clip the gradients (clip_low, clip_high), or scale the data (mean_value, std_value)."
            )
