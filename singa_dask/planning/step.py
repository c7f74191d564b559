"""A step of a worker group, from the calls of its layers to the new parameters, as a script for a Timeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from singa_dask.exchange.buckets import Bucket
from singa_dask.exchange.pipeline import Readiness, stages_after
from singa_dask.job import ClusterTopology
from singa_dask.planning.costs import Costs, Reply
from singa_dask.planning.timeline import Act, Arrive, Ask, Compute, Outcome, Pause, Send, Submit, Task, Timeline, Wait
from singa_dask.planning.work import NBYTES, Call, Collective, WorkerStep

Script = Iterator[Compute | Pause | Submit | Wait]
# Of the message by which all ranks learn the metrics of a step (training/step_metrics.py), before what each reports.
_METRICS_NBYTES, _RANK_NBYTES = 48, 72
_NORM_NBYTES = 8


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

    def outcome(self) -> tuple[Outcome, bool]:
        """Of the faster way, and whether that is the one with overlap."""
        found = [(self._run(overlaps), overlaps) for overlaps in ([False, True] if self.threaded else [False])]
        return min(found, key=lambda each: each[0].seconds)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """What is exchanged at once."""
        return self.work.whole.buckets if self.shares and self.in_process else self.work.partition.buckets

    def _run(self, overlaps: bool) -> Outcome:
        return Timeline(self.costs.contention).run(self._script(overlaps))

    def _script(self, overlaps: bool) -> Script:
        work, costs = self.work, self.costs
        yield Compute(costs.loading(work.rows * work.values), "loading")
        yield Compute(costs.loop(self.passes), "loop")
        yield Compute(costs.passes(work), "layers")
        for call in work.forward:
            yield from self._call(call, self.seconds(call)[0])
        yield from self._backward(overlaps)
        if self.size > 1:
            message = _METRICS_NBYTES + _RANK_NBYTES * self.size
            yield Compute(costs.collectives.cost("all_reduce", message, self.size).seconds, "loop")

    @property
    def passes(self) -> float:
        """Seconds of computing of the passes."""
        calls = sum(self.seconds(call)[0] for call in self.work.forward)
        return self.costs.passes(self.work) + calls + sum(self.seconds(call)[1] for call in self.work.backward)

    @property
    def apart(self) -> float:
        """How far apart the workers' passes end."""
        return max(self.costs.unevenness(self.size), self.costs.apart(self.size, self.passes))

    def seconds(self, call: Call) -> tuple[float, float]:
        """Forward and backward seconds of a layer's calls."""
        rate = self.costs.layer(call.work)
        return rate.forward, rate.backward

    def _call(self, call: Call, seconds: float) -> Script:
        yield Compute(seconds, "transitions" if call.moves else "layers")
        if call.collectives:
            yield self._transition(call)
            yield Wait("transitions")

    def _transition(self, call: Call) -> Submit:
        return Submit(Task(tuple(act for c in call.collectives for act in self._collective(c)), "transitions"))

    def _collective(self, collective: Collective) -> Iterator[Act]:
        yield from self._sent("layers", collective.operation, collective.nbytes)
        yield Arrive("layers")

    def _backward(self, overlaps: bool) -> Script:
        readiness = Readiness(self.buckets, self.work.entries)
        readiness.begin()
        calls, started = self.work.backward, False
        for call, following in zip(calls, (*calls[1:], None), strict=True):
            seconds = self.seconds(call)[1]
            if started:
                yield Wait("transitions")
                yield Compute(seconds, "transitions")
                started = False
            elif overlaps and following is not None and following.early:
                # The gradient for its source, then those of its parameters while the former travels.
                yield Compute(seconds / 2, "layers")
                yield self._transition(following)
                yield Compute(seconds / 2, "layers")
                started = True
            else:
                yield from self._call(call, seconds)
            for name in call.completes if overlaps else ():
                yield from self._leave(readiness.complete(name), overlaps)
        if self.size > 1:
            yield Pause(self.apart, "exchange")
        yield from self._leave(readiness.rest(), overlaps)
        yield Wait("exchange")
        yield from self._finish()

    def _leave(self, buckets: list[int], overlaps: bool) -> Script:
        for bucket in buckets:
            if not self.shares and self.size > 1:
                others = self.buckets[bucket].size - self._part(bucket)
                encode = self.costs.coding("encode", others)
                yield Compute(encode, "codec")
                yield Pause(self.costs.apart(self.size, encode), "exchange")
            stages = stages_after(bucket, len(self.buckets), ahead=not self.shares, overlaps=overlaps)
            for stage, each in stages:
                acts = tuple(getattr(self, f"_{stage}")(each))
                yield from (Submit(Task(acts)),) if overlaps else self._inline(acts)

    def _inline(self, acts: tuple[Act | Pause, ...]) -> Script:
        """Of the computing thread itself: its own computing is named by part."""
        for act in acts:
            if isinstance(act, Compute | Pause):
                yield act
            else:
                yield Submit(Task((act,)))
                yield Wait("servers" if act.key.startswith("server") else "exchange")

    @property
    def _together(self) -> float | None:
        """Of the exchange in shared memory with the update, where that was measured; see Costs.shared."""
        if not (self.shares and self.in_process) or self.costs.clips:
            return None
        return self.costs.shared(self.work.replicated, self.size)

    def _part(self, bucket: int) -> int:
        """Elements of a bucket that a worker owns, at most."""
        return max(self.buckets[bucket].counts)

    def _start(self, bucket: int) -> Iterator[Act]:
        if self.shares or self.size == 1:
            return
        nbytes = float(NBYTES * self.buckets[bucket].size)
        operation = "reduce_scatter"
        if self.costs.codec is not None:
            others = self.costs.nbytes(self.buckets[bucket].size - self._part(bucket))
            operation, nbytes = "all_to_all", others * self.size**2 / (self.size - 1)
        yield from self._sent(f"sum {bucket}", operation, nbytes)

    def _update(self, bucket: int) -> Iterator[Act]:
        part = self._part(bucket)
        if self._together is not None:
            update = min(self.costs.update(part), self._together)
            yield Compute(self._together - update, "exchange")
            yield Compute(update, "update")
            return
        if self.shares:
            yield Compute(self.costs.meeting(self.size), "exchange")
            yield Compute((self.size - 1) * self.costs.add(NBYTES * part), "exchange")
        elif self.size > 1:
            yield Arrive(f"sum {bucket}")
            yield Compute((self.size - 1) * self.costs.coding("decode", part), "codec")
        if self.costs.clips:
            yield Compute(self.costs.add(NBYTES * part), "update")  # the squares of its elements
        else:
            yield from self._apply(bucket)

    def _apply(self, bucket: int) -> Iterator[Act]:
        if not self.local:
            yield from self._push(f"server {bucket}", self._slices(bucket))
            return
        yield Compute(self.costs.update(self._part(bucket)), "update")
        if self.in_process and self.size > 1 and not self.shares:
            yield from self._start_gather(bucket)

    def _gather(self, bucket: int) -> Iterator[Act]:
        if not self.costs.clips:
            yield from self._take(bucket)

    def _take(self, bucket: int) -> Iterator[Act]:
        if not self.in_process or self.size == 1 or self._together is not None:
            return
        if self.shares:
            yield Compute(self.costs.meeting(self.size), "exchange")
            return
        yield Arrive(f"values {bucket}")
        others = self.buckets[bucket].size - self._part(bucket)
        yield Compute(self.costs.coding("decode", others), "codec")

    def _start_gather(self, bucket: int) -> Iterator[Act]:
        yield Compute(self.costs.coding("encode", self._part(bucket)), "codec")
        nbytes = self.size * self.costs.nbytes(self._part(bucket))
        yield from self._sent(f"values {bucket}", "all_gather", nbytes)

    def _sent(self, key: str, operation: str, nbytes: float) -> Iterator[Act]:
        cost = self.costs.collectives.cost(operation, nbytes, self.size)
        cpu = min(cost.cpu, cost.seconds)
        yield Compute(cpu, "exchange")
        yield Send(key, cost.seconds - cpu)

    def _slices(self, bucket: int) -> list[int]:
        """Elements of the messages of the worker with the largest part of a bucket."""
        found = self.buckets[bucket]
        by_worker: dict[int, list[int]] = {}
        for s in self.work.partition.slices:
            if found.start <= s.start < found.stop:
                by_worker.setdefault(s.worker, []).append(s.size)
        return max(by_worker.values(), key=sum, default=[])

    def _push(self, key: str, slices: list[int]) -> Iterator[Act]:
        """Messages to servers, which are on their way together."""
        if slices:
            reply = self._reply(slices)
            yield Compute(self.costs.coding("encode", sum(slices)), "codec")
            yield Compute(reply.cpu, "servers")
            yield Ask(key, max(0.0, reply.seconds - reply.cpu), reply.busy)

    def _reply(self, slices: list[int]) -> Reply:
        servers = self.costs.topology.nservers_per_group
        clients = max(1, round(self.size * len(slices) / servers))
        reply = self.costs.reply(slices, clients, self.processes)
        if self.costs.collectives.where(self.processes) != "machine":
            return reply
        # All processes share the cores of one host.
        computing = (self.size * reply.cpu + servers * reply.served) / self.costs.machines.cores
        return replace(reply, seconds=max(reply.seconds, computing))

    @property
    def replies(self) -> list[Reply]:
        """To all messages of a step, one for those of a bucket. All go out by one network: replies come one by one."""
        if self.local:
            return []
        messages = [*(self._slices(bucket) for bucket in range(len(self.buckets))), [self.work.own]]
        return [self._reply(slices) for slices in messages if sum(slices)]

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

    def _update_clipped(self) -> Script:
        if self.size > 1:
            yield Compute(self.costs.collectives.cost("all_reduce", _NORM_NBYTES, self.size).seconds, "exchange")
        count = len(self.buckets)
        for bucket in range(count + 1):
            if bucket < count:
                yield from self._inline(tuple(self._apply(bucket)))
            if bucket > 0:
                yield from self._inline(tuple(self._take(bucket - 1)))

    def _finish(self) -> Script:
        work = self.work
        if self.costs.clips:
            yield from self._update_clipped()
        if work.own and self.local:
            yield Compute(self.costs.update(work.own), "update")
        elif work.own:
            yield from self._inline(tuple(self._push("server own", [work.own])))
        if self.in_process:
            return
        if not (self.behind or self.local):
            for bucket in range(len(self.buckets)):
                yield from self._inline((Arrive(f"server {bucket}"), Arrive("server own")))
        for bucket in range(len(self.buckets) if self.size > 1 else 0):
            if self.shares:
                yield Compute(self.costs.meeting(self.size), "exchange")
                continue
            yield from self._inline(tuple(self._start_gather(bucket)))
            yield from self._inline((Arrive(f"values {bucket}"),))
            others = self.buckets[bucket].size - self._part(bucket)
            yield Compute(self.costs.coding("decode", others), "codec")

    @property
    def activations(self) -> float:
        """Bytes of activations and their gradients that a worker sends in a step."""
        return sum(collective.sent(self.size) for call in self.work.calls for collective in call.collectives)

    @property
    def sent(self) -> float:
        """Bytes that a worker sends in a step, or would if it did not share memory."""
        total = self.activations
        for bucket in range(len(self.buckets) if self.size > 1 else 0):
            others = self.buckets[bucket].size - self._part(bucket)
            total += self.costs.nbytes(others) + (self.size - 1) * self.costs.nbytes(self._part(bucket))
        if not self.local:
            total += sum(self.costs.nbytes(n) for b in range(len(self.buckets)) for n in self._slices(b))
            total += self.costs.nbytes(self.work.own)
        return total


def _beside(topology: ClusterTopology) -> bool:
    """Whether each worker's server is in its process: every worker group has servers of its own, one for each."""
    alike = topology.nserver_groups == topology.nworker_groups and topology.nservers_per_procs == 1
    return alike and not topology.server_worker_separate and topology.nservers_per_group == topology.nworkers_per_group
