"""What one rank of a worker group runs: the training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.comm.nccl import form_nccl
from singa_dask.comm.solo import SoloCommunicator
from singa_dask.errors import ClusterError, TrainingError
from singa_dask.job import active_phases
from singa_dask.job.code_bundle import unpacked
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Metric
from singa_dask.memory.region import Pace
from singa_dask.net import Net
from singa_dask.ops import get_ops
from singa_dask.ops.blas import blas_threads
from singa_dask.ops.cpu.toolkit.compile_lock import told_of_compiling
from singa_dask.ops.gpu.turns import own_gpu
from singa_dask.tracing import Recorder, span
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.decisions import Decisions, Verdict
from singa_dask.training.feed import Feed, data_key
from singa_dask.training.frequencies import batches_of, due, evaluations_due
from singa_dask.training.group_checkpoints import GroupCheckpoints
from singa_dask.training.group_evaluation import evaluate_group
from singa_dask.training.memory import check_memory, has_room, ran_out
from singa_dask.training.placement import compute_of
from singa_dask.training.rank_plan import GroupPlan, RankServices, WorkerPlan
from singa_dask.training.replica import Replica
from singa_dask.training.reporter import Reporter
from singa_dask.training.resume import MEETING_TIMEOUT_S, begin
from singa_dask.training.step_metrics import most_reductions, sum_over_ranks

# Copies of the state take at most this share of the time: else they are made after every second, third ... step. That
# is decided by so many steps, after as many others.
COPIES_SHARE = 0.02
PACED_AFTER = 10


def train_rank(comm: Communicator, plan: WorkerPlan, services: RankServices) -> dict[str, Any]:
    """Train until the job's last step, or until a stop is requested; returns the first rank's record. Collective.

    Raises TrainingError on all ranks in the same step when the loss of any of them is not finite.
    """
    job = JobProto.FromString(plan.job)
    with ExitStack() as stack:
        recorder = stack.enter_context(_recording(comm.rank, plan, services)) if plan.trace else None
        stack.enter_context(unpacked(plan.code))
        threads = job.num_openblas_threads if job.HasField("num_openblas_threads") else services.cores
        # On the CPU, kernels and products use the threads of the Ops; threads of BLAS would compete with them.
        stack.enter_context(blas_threads(threads if plan.group.gpus else 1))
        # A loss that is not finite is reported once, by _check_finite.
        stack.enter_context(np.errstate(over="ignore", invalid="ignore", divide="ignore"))
        data = {key: value for key, value in plan.data.items() if key.startswith(data_key(Phase.kTrain, ""))}
        try:
            replica = _form_replica(comm, job, plan.group, data, threads, services, stack)
            return _TrainingLoop(replica, plan, services, stack, recorder).run()
        except MemoryError as error:
            said = ran_out(error, job, comm.size, in_process_servers=services.links is None)
            raise TrainingError(f"rank {comm.rank}: {said}") from error


@contextmanager
def _recording(rank: int, plan: WorkerPlan, services: RankServices) -> Iterator[Recorder]:
    """Inside, `span` records what this rank does in the steps that are traced; it is sent at the end."""
    assert plan.trace is not None
    who = "worker", plan.group.number, rank, plan.group.generation
    recorder = Recorder(plan.trace, services.emit, who, services.address)
    with recorder.here("computing"):
        try:
            yield recorder
        finally:
            recorder.send()


def _form_replica(
    comm: Communicator,
    job: JobProto,
    group: GroupPlan,
    data: Mapping[str, str],
    threads: int,
    services: RankServices,
    stack: ExitStack,
) -> Replica:
    """This rank's replica. Collective. data: see Replica.form. stack: closes what is made here."""
    ops = _ops(comm.rank, group.gpus, threads, compute_of(job))
    device_comm: Communicator | None = None
    if ops.device == "gpu":
        if comm.size == 1:
            device_comm = SoloCommunicator(interrupted=lambda: comm.aborted)
        else:
            device_comm = form_nccl(comm, ops.device_id, comm.timeout_s, MEETING_TIMEOUT_S)
    if device_comm is not None:
        stack.callback(device_comm.close)
    check_memory(
        job,
        comm,
        ops,
        in_process_servers=services.links is None,
        resumes=bool(group.puts and group.resume),
        on_device=device_comm is not None,
        dask_limit=services.memory_limit,
    )
    replica = Replica.form(
        job,
        comm,
        ops,
        None if services.links is None else services.links(),
        device_comm,
        group=group.number,
        generation=group.generation,
        holder=services.holder,
        room=lambda nbytes: has_room(comm, nbytes, services.memory_limit),
        data=data,
        patience_s=MEETING_TIMEOUT_S,
        aborted=lambda: comm.aborted,
    )
    stack.push(lambda kind, error, trace: replica.close(failed=kind is not None))
    for net in replica.nets.values():
        stack.callback(net.close)
    return replica


def _ops(rank: int, gpus: Sequence[int | None], threads: int, compute: str) -> Any:
    """What this rank computes with. Raises ClusterError where it has no GPU and others of the group have."""
    if not gpus:
        return get_ops("cpu", threads=threads, compute=compute)
    gpu = gpus[rank]
    if gpu is None:
        raise ClusterError(f"no GPU is left for rank {rank}. Start more Dask workers with GPUs.")
    ops = get_ops("gpu", device_id=gpu, compute=compute)
    own_gpu((gpu,))  # what this process predicts later, it predicts there
    return ops


class _TrainingLoop:
    """One rank's training loop. Everything in it is collective."""

    def __init__(
        self,
        replica: Replica,
        plan: WorkerPlan,
        services: RankServices,
        stack: ExitStack,
        recorder: Recorder | None = None,
    ) -> None:
        self._replica, self._plan, self._services, self._stack = replica, plan, services, stack
        self._recorder = recorder
        self._job, self._comm, self._group = replica.job, replica.comm, plan.group
        self._step = 0
        self._decisions = Decisions(replica.job)  # made by the first rank of the group that leads
        self._saves_now = self._keeps_now = False
        self._paced_since = 0.0

    def run(self) -> dict[str, Any]:
        job, group, group_state = self._job, self._group, self._replica.group_state
        deposits = self._services.deposits
        decided, unread = begin(self._replica, self._plan, deposits) if group.puts else ({}, False)
        # Servers that are new know where each group of the job goes on, by the ledger of the checkpoint.
        founds = group.fresh and group.number < job.cluster.nworker_groups
        start = self._step = group_state.fetch(0 if founds else group.first)
        self._feed = self._stack.enter_context(self._open(self._replica.net, start))
        services, batch = self._services, self._feed.batchsize
        elsewhere = services.servers_elsewhere()
        self._reporter = Reporter(self._replica, services.emit, group.number, batch, servers_elsewhere=elsewhere)
        self._checkpoints = GroupCheckpoints(self._replica, self._plan, self._services, self._reporter)
        self._stack.push(lambda kind, error, trace: self._checkpoints.close(failed=kind is not None))
        self._warm_up()
        if job.cluster.nworker_groups > 1 and not self._replica.in_process_servers:
            group_state.fetch(start)  # other groups have gone on meanwhile
        self._reporter.start(start)
        if unread:
            self._reporter.unread(start)
        if group.leads:
            self._recall(decided)
        self._shadow_state()
        if self._replica.shadow is not None:
            self._replica.shadow.hold()
        elif self._services.holder and self._replica.in_process_servers and not (group.gpus and group_state.moves):
            self._reporter.unshadowed(start)
        stopping, why = False, ""
        while True:
            ended = stopping or self._step >= job.train_steps
            if self._step > start and (ended or due(self._step, job.disp_freq, job.disp_after)):
                self._reporter.display(self._step)
            if ended:
                self._leave()
            interrupted = stopping and self._step < job.train_steps
            if group.leads and not interrupted:
                interrupted, early = self._evaluate(evaluations_due(job, self._step))
                if interrupted and not ended:
                    self._leave()
                if early and not (ended or interrupted):
                    ended, why = True, self._decisions.reason
                    interrupted = self._end_early(why)
            ended = ended or interrupted
            saves = ended or self._saves_now or due(self._step, job.checkpoint_freq, job.checkpoint_after)
            if group.leads and saves:
                with self._reporter.spending("saving"):
                    self._checkpoints.save_step(self._step, self._decisions.state)
            elif self._keeps_now:
                self._checkpoints.keep(self._step, self._decisions.state)
            if ended:
                with self._reporter.spending("saving"):
                    self._checkpoints.wait()
                return self._reporter.end(self._step, interrupted=interrupted, ended_early=why)
            if self._recorder is not None:
                self._recorder.reach(self._step)
            with span("step"):
                stopping = self._train()
            self._pace_copies(self._step - start)
            if self._step == start + 1 and self._replica.shadow is not None:
                self._replica.shadow.settle()

    @property
    def _pace(self) -> Pace:
        return self._replica.shadow.slices.pace if self._replica.shadow else Pace()

    def _pace_copies(self, steps: int) -> None:
        """After some steps, have copies be made less often if they take too much of a step. Collective."""
        pace = self._pace
        if steps == PACED_AFTER:
            self._paced_since, pace.seconds = time.perf_counter(), 0.0
        elif steps == 2 * PACED_AFTER:
            share = pace.seconds / max(time.perf_counter() - self._paced_since, 1e-9)
            most = self._comm.all_gather_number(round(1e6 * share)).max() / 1e6
            pace.every = max(1, math.ceil(most / COPIES_SHARE))

    def _shadow_state(self, *, decided: bool = True) -> None:
        """Leave the moving state in memory, if it has changed. decided: whether decisions may have."""
        state, shadow = self._replica.group_state, self._replica.shadow
        if shadow is not None and (state.moves or decided):
            shadow.save_moving(self._step, {**state.moving(), "decisions": self._decisions.state})

    def _warm_up(self) -> None:
        """Compile what a step needs, check what the decisions of a run rest on, and wait until all ranks have."""
        told = told_of_compiling(partial(self._reporter.compiles, self._step))
        with told, self._open(self._replica.net, self._step, stop=self._step + 1) as feed:
            self._replica.warm_up(*feed.next(self._step), MEETING_TIMEOUT_S)
        self._replica.net.close()  # what output layers have written
        for phase in self._decisions.phases if self._group.leads else ():
            with self._open(self._replica.nets[phase], 0, stop=1) as feed:
                measured = evaluate_group(self._replica, phase, feed, lambda: False)
            self._decisions.check(phase, measured.numbers if measured else ())
        with self._comm.patiently(MEETING_TIMEOUT_S):
            self._comm.barrier()

    def _train(self) -> bool:
        """One training step; returns whether any rank was asked to stop."""
        began = time.perf_counter()
        waited, loading = self._replica.wait_s, self._feed.wait_s
        with span("data"):
            fed = self._feed.next(self._step)
        metrics = self._replica.train_step(*fed)
        self._step += 1
        self._shadow_state(decided=False)
        wishes = self._services.stop_requested(), self._services.regroup_requested(), *self._checkpoints.due
        with span("metrics"):
            (stopping, regroups, self._saves_now, self._keeps_now), summed, ranks = sum_over_ranks(
                self._comm,
                wishes,
                metrics,
                self._replica.wait_s - waited,
                self._feed.wait_s - loading,
                self._replica.stub.take_traffic(),
                self._replica.stub.known_reductions,
                self._replica.net.ops.held_memory(),
            )
        _check_finite(summed, self._step - 1)
        self._replica.stub.reductions = max(self._replica.stub.reductions, most_reductions(ranks))
        self._reporter.add_step(self._step, time.perf_counter() - began, summed, ranks)
        self._checkpoints.look()
        if regroups and self._step % self._pace.every == 0:  # after a step that is in memory
            self._replica.drain()
            raise ClusterError("the group is formed again, with more workers")
        return stopping

    def _leave(self) -> None:
        """Make no more updates. The group that leads then waits until the driver says that the others have ended,
        however long: it tells the user what the result lacks. Then the group fetches the result of all."""
        self._replica.drain()
        self._replica.stub.leave()
        if not self._group.leads or self._job.cluster.nworker_groups == 1:
            return
        ended = np.zeros(1)
        while not ended[0]:
            time.sleep(0.05)
            ended[0] = self._comm.rank == 0 and self._services.others_ended()
            self._comm.all_reduce(ended)
        self._replica.group_state.fetch(self._step)

    def _evaluate(self, phases: Iterable[int]) -> tuple[bool, bool]:
        """Evaluate phases, and act on what follows. Returns whether a stop request interrupted it, and whether the run
        shall end early."""
        ends = False
        for phase in phases:
            self._replica.drain()
            feed = self._open(self._replica.nets[phase], 0, stop=batches_of(self._job, phase) or None)
            with self._reporter.spending("evaluating"), feed, self._replica.group_state.averaged():
                measured = evaluate_group(self._replica, phase, feed, self._services.stop_requested)
            if measured is None:
                return True, False
            self._reporter.evaluated(phase, self._step, measured.numbers, measured.details)
            ends = self._decide(phase, measured.numbers) or ends
            self._shadow_state()
        return False, ends

    def _decide(self, phase: int, means: Mapping[str, float]) -> bool:
        """Save the best checkpoint and reduce the learning rate where an evaluation calls for it; returns whether the
        run shall end early. The first rank decides."""
        decisions, stub = self._decisions, self._replica.stub
        decisions.check(phase, means)
        told = np.array(decisions.see(phase, self._step, means) if self._comm.rank == 0 else Verdict(), np.float64)
        self._comm.broadcast(told)
        improved, reductions, ends = told.tolist()
        for metric in decisions.undefined:
            self._reporter.undefined(self._step, metric)
        if reductions > stub.reductions:
            stub.reductions = int(reductions)
            self._reporter.reduced(self._step, decisions.rate(self._step))
        if improved:
            path = self._plan.checkpoints / checkpoints.BEST
            saved = partial(self._reporter.best, self._step, decisions.best, path)
            self._checkpoints.save(self._step, decisions.state, path, saved, own_values=True)
        if decisions.phases:
            self._reporter.decided(self._step, decisions.state)
        return bool(ends)

    def _end_early(self, why: str) -> bool:
        """End all groups, and measure what all have reached; returns whether a stop request interrupted it."""
        self._reporter.display(self._step)
        self._reporter.ends_early(self._step, why)
        self._leave()
        measured = evaluations_due(self._job, self._step) if self._job.cluster.nworker_groups == 1 else []
        rest = [phase for phase in active_phases(self._job)[1:] if phase not in measured]
        return self._evaluate(rest)[0]

    def _recall(self, decided: Mapping[str, Any]) -> None:
        """Go on from what was decided: by the checkpoint that was restored or, if servers went on, by the last
        evaluation that the driver knows of, or else by the newest checkpoint."""
        decisions, folder, stub = self._decisions, self._plan.checkpoints, self._replica.stub
        if self._comm.rank == 0:
            if not self._group.fresh:
                found = None if self._plan.decided else checkpoints.newest(folder)[0]
                decided = found.decisions if found else self._plan.decided
            decisions.resume(decided)
        reductions = np.array([max(decisions.reductions, stub.reductions)])
        with self._comm.patiently(MEETING_TIMEOUT_S):
            self._comm.broadcast(reductions)
        decisions.reductions = stub.reductions = int(reductions[0])
        if decisions.best:
            self._reporter.best(self._step, decisions.best, folder / checkpoints.BEST)

    def _open(self, net: Net, start: int, stop: int | None = None) -> Feed:
        comm, number = self._comm, self._group.number
        return Feed.open(
            self._job,
            net,
            self._services.submit,
            comm.rank,
            comm.size,
            group=number,
            start=start,
            stop=stop,
            fingerprints=self._plan.data,
        )


def _check_finite(metrics: Mapping[str, Metric], step: int) -> None:
    for name, metric in metrics.items():
        if not math.isfinite(metric.total):
            raise TrainingError(
                f"{name} is {metric.total} at step {step}: training diverged. Lower updater.learning_rate.base_lr, "
                "clip the gradients (clip_low, clip_high), or scale the data (mean_value, std_value)."
            )
