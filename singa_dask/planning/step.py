"""A step of a worker group on a clock: the pipeline and the stages of training, with a clock in place of arrays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from singa_dask.exchange import BucketExchange
from singa_dask.exchange.buckets import Bucket
from singa_dask.exchange.clipping import NormClip
from singa_dask.exchange.executor import CollectiveExecutor
from singa_dask.exchange.pipeline import GradientPipeline
from singa_dask.exchange.staging import InPlace
from singa_dask.job import ClusterTopology
from singa_dask.layers.param import Param
from singa_dask.planning.clock import Clock, Key
from singa_dask.planning.costs import Costs, ServerReply
from singa_dask.planning.work import NBYTES, ScheduledCall, WorkerStep
from singa_dask.server import Stub
from singa_dask.training.stages import ServerStages

# Of the message by which all ranks learn the metrics of a step (training/step_metrics.py), before what each reports.
_METRICS_NBYTES, _RANK_NBYTES = 48, 72
_NORM_NBYTES = 8
OnGradient = Callable[[Param], None] | None


@dataclass(frozen=True)
class GroupStep:
    """How a group makes its step.

    shares: whether its workers share the memory of the parameters. threaded: whether a thread for collectives can run
    beside the computing. in_process: whether each worker's server is in its process, for this group alone, so that new
    values leave with their bucket. local: whether each worker's server is in its process; else in another one. behind:
    whether replies are taken one step later. processes: of the job.
    """

    work: WorkerStep
    costs: Costs
    size: int
    shares: bool
    threaded: bool
    in_process: bool
    local: bool
    behind: bool
    processes: int

    @classmethod
    def of(cls, work: WorkerStep, costs: Costs, *, own_algorithm: bool = False) -> GroupStep:
        """As Replica.form and ServerStages decide."""
        topology = costs.topology
        size = topology.nworkers_per_group
        one_machine = costs.collectives.where(size) == "machine"
        shares = size > 1 and one_machine and costs.codec is None and not own_algorithm
        buckets = work.partition.buckets
        partitioned = any(call.moves for call in work.calls)
        threaded = size > 1 and not one_machine and (len(buckets) > 1 or partitioned)
        return cls(
            work,
            costs,
            size,
            shares,
            threaded,
            in_process=topology.in_process_servers or topology.stays_in_process,
            local=topology.in_process_servers or _beside(topology),
            behind=topology.one_behind,
            processes=topology.nprocesses,
        )

    def run(self) -> tuple[Clock, bool]:
        """A step in the faster way, and whether that is the one with overlap."""
        found = [(self._run(overlaps), overlaps) for overlaps in ([False, True] if self.threaded else [False])]
        return min(found, key=lambda each: each[0].now)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """What is exchanged at once."""
        return self.work.whole.buckets if self.shares and self.in_process else self.work.partition.buckets

    def _run(self, overlaps: bool) -> Clock:
        """One step, as Replica.train_step makes it."""
        job, net, clock = self.costs.job, self.work.net, Clock(self.costs.contention)
        executor, exchange = _Executor(clock, overlaps), _Exchange(self, clock)
        clip = cast(NormClip, _Clip(self, clock)) if self.costs.clips else None
        stub, arrays = cast(Stub, _StepServers(self, clock)), InPlace(net.flat.grads, net.flat.values)
        stages = ServerStages(
            job,
            exchange.comm,
            net,
            exchange,
            stub,
            executor,
            arrays,
            arrays,
            clip,
            in_process_servers=self.in_process,
        )
        pipeline = GradientPipeline(executor, self.buckets, net.flat.entries, ahead=not self.shares)
        stages.begin(0)
        pipeline.run(stages, partial(self._compute, clock))
        if self.size > 1:
            message = _METRICS_NBYTES + _RANK_NBYTES * self.size
            clock.compute(self.costs.collectives.cost("all_reduce", message, self.size).seconds, "loop")
        return clock

    def _compute(self, clock: Clock, on_gradient: OnGradient) -> None:
        """All but the exchange. on_gradient: as TrainOneBatch calls it."""
        work, costs = self.work, self.costs
        clock.compute(costs.loading(work.rows * work.values), "loading")
        clock.compute(costs.loop(self.passes), "loop")
        clock.compute(costs.passes(work), "layers")
        for call in work.forward:
            self._call(clock, call, self.seconds(call)[0])
        started = False
        for call, following in zip(work.backward, (*work.backward[1:], None), strict=True):
            seconds = self.seconds(call)[1]
            if started:
                clock.wait("transitions")
                clock.compute(seconds, "transitions")
                started = False
            elif on_gradient is not None and following is not None and following.early:
                # The gradient for its source, then those of its parameters while the former travels.
                clock.compute(seconds / 2, "layers")
                self._start_transition(clock, following)
                clock.compute(seconds / 2, "layers")
                started = True
            else:
                self._call(clock, call, seconds)
            if on_gradient is not None:
                for param in call.completes:
                    on_gradient(param)
        if self.size > 1:
            clock.pause(self.apart, "exchange")

    @property
    def passes(self) -> float:
        """Seconds of computing of the passes."""
        calls = sum(self.seconds(call)[0] for call in self.work.forward)
        return self.costs.passes(self.work) + calls + sum(self.seconds(call)[1] for call in self.work.backward)

    @property
    def apart(self) -> float:
        """How far apart the workers' passes end."""
        return max(self.costs.unevenness(self.size), self.costs.apart(self.size, self.passes))

    def seconds(self, call: ScheduledCall) -> tuple[float, float]:
        """Forward and backward seconds of a layer's calls."""
        rate = self.costs.layer(call.work)
        return rate.forward, rate.backward

    def _call(self, clock: Clock, call: ScheduledCall, seconds: float) -> None:
        clock.compute(seconds, "transitions" if call.moves else "layers")
        if call.collectives:
            self._start_transition(clock, call)
            clock.wait("transitions")

    def _start_transition(self, clock: Clock, call: ScheduledCall) -> None:
        with clock.beside("transitions"):
            for collective in call.collectives:
                key: Key = "network", call.layer, 0
                self.send(clock, key, collective.operation, collective.nbytes)
                clock.arrive(key)

    def send(self, clock: Clock, key: Key, operation: str, nbytes: float) -> None:
        """Begin a collective."""
        cost = self.costs.collectives.cost(operation, nbytes, self.size)
        cpu = min(cost.cpu, cost.seconds)
        clock.compute(cpu, "exchange")
        clock.send(key, busy=cost.seconds - cpu)

    @property
    def together(self) -> float | None:
        """Of the exchange in shared memory with the update, where that was measured; see Costs.shared."""
        if not (self.shares and self.in_process) or self.costs.clips:
            return None
        return self.costs.shared(self.work.replicated, self.size)

    def part(self, bucket: int) -> int:
        """Elements of a bucket that a worker owns, at most."""
        return max(self.buckets[bucket].counts)

    def others(self, bucket: int) -> int:
        """The other elements of a bucket."""
        return self.buckets[bucket].size - self.part(bucket)

    def slices(self, bucket: int) -> list[int]:
        """Elements of the messages of the worker with the largest part of a bucket."""
        found = self.buckets[bucket]
        by_worker: dict[int, list[int]] = {}
        for s in self.work.partition.slices:
            if found.start <= s.start < found.stop:
                by_worker.setdefault(s.worker, []).append(s.size)
        return max(by_worker.values(), key=sum, default=[])

    def reply(self, slices: list[int]) -> ServerReply:
        servers = self.costs.topology.nservers_per_group
        clients = max(1, round(self.size * len(slices) / servers))
        reply = self.costs.reply(slices, clients, self.processes)
        if self.costs.collectives.where(self.processes) != "machine":
            return reply
        # All processes share the cores of one host.
        computing = (self.size * reply.cpu + servers * reply.served) / self.costs.machines.cores
        return replace(reply, seconds=max(reply.seconds, computing))

    @property
    def replies(self) -> list[ServerReply]:
        """To all messages of a step, one for those of a bucket. All go out by one network: replies come one by one."""
        if self.local:
            return []
        messages = [*(self.slices(bucket) for bucket in range(len(self.buckets))), [self.work.own]]
        return [self.reply(slices) for slices in messages if sum(slices)]

    @property
    def busy_seconds(self) -> float:
        """Seconds in which a server, or its network card, is busy with a step of the group."""
        return max(sum(reply.busy for reply in self.replies), sum(reply.card for reply in self.replies))

    @property
    def served_seconds(self) -> float:
        """Seconds of a core that the servers need for a step of the group, together."""
        return self.costs.topology.nservers_per_group * sum(reply.served for reply in self.replies)

    @property
    def reply_seconds(self) -> float:
        """Until all replies of a step are there."""
        return sum(reply.seconds for reply in self.replies)

    @property
    def activations(self) -> float:
        """Bytes of activations and their gradients that a worker sends in a step."""
        return sum(collective.sent(self.size) for call in self.work.calls for collective in call.collectives)

    @property
    def sent(self) -> float:
        """Bytes that a worker sends in a step, or would if it did not share memory."""
        total = self.activations
        for bucket in range(len(self.buckets) if self.size > 1 else 0):
            total += self.costs.nbytes(self.others(bucket)) + (self.size - 1) * self.costs.nbytes(self.part(bucket))
        if not self.local:
            total += sum(self.costs.nbytes(n) for b in range(len(self.buckets)) for n in self.slices(b))
            total += self.costs.nbytes(self.work.own)
        return total


class _StepComm:
    """Stands for the communicator of a group: whoever waits for it has a clock."""

    patiently = staticmethod(nullcontext)


class _Executor(CollectiveExecutor):
    """Runs calls beside the computing, or at once; what comes after the computing always at once."""

    overlaps = False

    def __init__(self, clock: Clock, overlaps: bool) -> None:
        super().__init__(cast(Any, _StepComm()), threaded=False)
        self._clock, self.overlaps = clock, overlaps

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        with self._clock.beside("exchange") if self.overlaps else nullcontext():
            call(*args)
        return Future()

    def wait(self, future: Future[Any]) -> Any:
        self._clock.wait("exchange")

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)


class _Exchange(BucketExchange):
    """What the exchange of the buckets takes. A worker's part of a bucket is told by the number of the bucket."""

    exact = in_place = True

    def __init__(self, step: GroupStep, clock: Clock) -> None:
        self.comm, self.buckets = cast(Any, _StepComm()), step.buckets
        self.parts = tuple(slice(bucket, bucket + 1) for bucket in range(len(step.buckets)))
        self._step, self._clock, self._costs = step, clock, step.costs
        self._sends, self._gathering = step.size > 1 and not step.shares, set[int]()

    def prepare(self, index: int, gradients: np.ndarray) -> None:
        if self._sends:
            encode = self._costs.coding("encode", self._step.others(index))
            self._clock.compute(encode, "codec")
            self._clock.pause(self._costs.apart(self._step.size, encode), "exchange")

    def start_reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        if not self._sends:
            return
        size, operation, nbytes = self._step.size, "reduce_scatter", float(NBYTES * self.buckets[index].size)
        if self._costs.codec is not None:
            operation, nbytes = "all_to_all", self._costs.nbytes(self._step.others(index)) * size**2 / (size - 1)
        self._step.send(self._clock, ("network", "sum", index), operation, nbytes)

    def reduce_scatter(self, index: int, gradients: np.ndarray, sums: np.ndarray) -> None:
        step, clock, part = self._step, self._clock, self._step.part(index)
        if step.together is not None:
            clock.compute(step.together - min(self._costs.update(part), step.together), "exchange")
        elif step.shares:
            clock.compute(self._costs.meeting(step.size), "exchange")
            clock.compute((step.size - 1) * self._costs.add(NBYTES * part), "exchange")
        elif self._sends:
            clock.arrive(("network", "sum", index))
            clock.compute((step.size - 1) * self._costs.coding("decode", part), "codec")

    def start_all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        if self._sends:
            self._gathering.add(index)
            part = self._step.part(index)
            self._clock.compute(self._costs.coding("encode", part), "codec")
            nbytes = self._step.size * self._costs.nbytes(part)
            self._step.send(self._clock, ("network", "values", index), "all_gather", nbytes)

    def all_gather(self, index: int, values: np.ndarray, new: np.ndarray) -> None:
        if self._sends:
            if index not in self._gathering:
                self.start_all_gather(index, values, new)
            self._clock.arrive(("network", "values", index))
            self._clock.compute(self._costs.coding("decode", self._step.others(index)), "codec")
        elif self._step.shares and self._step.together is None:
            self._clock.compute(self._costs.meeting(self._step.size), "exchange")


class _StepServers:
    """Stands for the stub: what updates by the servers take."""

    patience_s = 0.0

    def __init__(self, step: GroupStep, clock: Clock) -> None:
        self.behind, self._step, self._clock, self._sent = step.behind, step, clock, list[Key]()

    def push(self, number: int, gradient: Any, out: Any, within: range) -> None:
        step, clock, bucket = self._step, self._clock, within.start
        own = bucket >= len(step.buckets)
        if step.local:
            update = step.costs.update(step.work.own if own else step.part(bucket))
            clock.compute(update if step.together is None or own else min(update, step.together), "update")
        elif slices := [step.work.own] if own else step.slices(bucket):
            reply = step.reply(slices)
            clock.compute(step.costs.coding("encode", sum(slices)), "codec")
            clock.compute(reply.cpu, "servers")
            self._sent.append(("servers", "update", bucket))
            clock.send(self._sent[-1], seconds=max(0.0, reply.seconds - reply.cpu), busy=reply.busy)

    def pull(self, out: Any) -> None:
        for key in () if self.behind else self._sent:
            self._clock.arrive(key)


class _Clip:
    """Stands for NormClip: a pass over the sums of the gradients, and one number of every rank."""

    def __init__(self, step: GroupStep, clock: Clock) -> None:
        self._step, self._clock = step, clock

    def squares(self, gradients: Any, part: slice) -> float:
        if part.start < len(self._step.buckets):
            self._clock.compute(self._step.costs.add(NBYTES * self._step.part(part.start)), "update")
        return 0.0

    def scale(self, comm: Any, own: float) -> float:
        if self._step.size > 1:
            cost = self._step.costs.collectives.cost("all_reduce", _NORM_NBYTES, self._step.size)
            self._clock.compute(cost.seconds, "exchange")
        return 1.0

    def apply(self, scale: float, gradients: Any, part: slice) -> None:
        """Hidden by what moves the gradients."""


def _beside(topology: ClusterTopology) -> bool:
    """Whether each worker's server is in its process: every worker group has servers of its own, one for each."""
    alike = topology.nserver_groups == topology.nworker_groups and topology.nservers_per_procs == 1
    return alike and not topology.server_worker_separate and topology.nservers_per_group == topology.nworkers_per_group
