"""Worker groups in simulated processes: the steps of training/worker.py with the product's Stub, and a counting model.

Element `group * steps + step` of a slice counts how often the parameters contain this update. A gradient is -1 there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simulation.clock import Fiber
from simulation.cluster import Process, Task
from singa_dask.cluster import leases
from singa_dask.cluster.bootstrap import MpiReport
from singa_dask.cluster.rank import RankTask
from singa_dask.errors import ClusterError, CommTimeout
from singa_dask.server import Address, Link, LocalLink, Stub
from singa_dask.server.link import DaskLink
from singa_dask.server.messages import Fresh, Reply, Request, Update
from singa_dask.training.dask_task import SERVERS_S
from singa_dask.training.worker import STOP_S, WorkerPlan

if TYPE_CHECKING:
    from simulation.rules import Lineage
    from simulation.run import Run

JOINING_S = 0.1  # until the ranks of a group have met
COMPUTE_S = 0.25  # of a step, on a fast worker group
SAVE_S = 0.2
LOOK_S = 0.05
UNHEARD_S = 5.2  # cluster/rank.py: how long the rank of a cancelled task waits for its driver
PATIENCE_S = 60.0  # for a reply of a living server


@dataclass(eq=False)
class Rank:
    """One rank, as its process and its driver see it."""

    meeting: Meeting
    process: Process
    task: RankTask
    future: Task

    def died(self) -> None:
        self.meeting.died(self)

    def wait(self) -> None:
        """Wait for the other ranks, for as long as the group may take to form."""
        if not self.task.formed and self.process.rank is self:
            if self.task.abort_reason:
                self.leave("error", None, ClusterError(f"aborted: {self.task.abort_reason}"))
            else:
                self.process.cluster.loop.call_later(LOOK_S, self.wait)

    def leave(self, status: str, result: Any, error: BaseException | None) -> None:
        """The task ends, and the driver hears of it."""
        if self.process.alive:
            leases.end(self.process.address)
            self.process.rank = None
            settle, driver = partial(self.future.settle, status, result, error), self.meeting.run.client.process
            self.process.cluster.network.send(self.process, driver, settle, stream=True)

    def forgotten(self) -> None:
        """The scheduler gives the task up."""
        self.future.settle("lost", error=ClusterError("the worker is lost"))
        self.cancelled()

    def cancelled(self) -> None:
        """The watchdog of cluster/rank.py: a rank leaves when nobody wants it any more."""
        self.process.cluster.loop.call_later(UNHEARD_S, self._leave_unheard)

    def _leave_unheard(self) -> None:
        if self.process.cluster.loop.now + 1000.0 - self.task.heard_at > UNHEARD_S - 0.2:
            self.task.abort("the task was cancelled; the driver or its Dask client is gone")
        else:
            self.cancelled()


def _link(address: Address, process: Process, timeout_s: float) -> Link:
    """As server.link.link_to, which takes all of Python for one process."""
    here = process.state.actors.get(address.key) if address.worker == process.address else None
    return DaskLink(address, process, timeout_s) if here is None else LocalLink(here.server)


@dataclass(eq=False)
class Meeting:
    """The ranks of one group, which meet and then train. One thread acts for all: collectives are not simulated.

    topic: of the start of the run that they belong to.
    """

    run: Run
    plan: WorkerPlan
    topic: str
    size: int
    ranks: list[Rank] = field(default_factory=list)
    fiber: Fiber | None = None

    def join(self, process: Process, task: RankTask, future: Task) -> None:
        """One rank's process is ready."""
        process.rank = rank = future.rank = Rank(self, process, task, future)
        self.ranks.append(rank)
        rank.wait()
        if len(self.ranks) == self.size:
            self.ranks.sort(key=lambda rank: rank.task.rank)
            self.ranks[0].process.cluster.loop.call_later(JOINING_S, self._met)

    def died(self, rank: Rank) -> None:
        if self.fiber is not None and not any(r.process.alive for r in self.ranks):
            self.fiber.kill()

    def aborted(self) -> str:
        """Why the group must end at once."""
        return next((rank.task.abort_reason for rank in self.ranks if rank.task.abort_reason), "")

    def _met(self) -> None:
        if not all(rank.process.rank is rank and rank.process.alive for rank in self.ranks):
            return
        for rank in self.ranks:
            rank.task.formed = True
            if self.size > 1 and not rank.process.mpi.world:
                world = self.ranks[0].task.plan.group
                rank.process.mpi = MpiReport(world, rank.task.rank, self.size, ours=True)
        self.fiber = Fiber(self.ranks[0].process.cluster.loop, self._train)

    def _train(self) -> None:
        result, error = None, None
        try:
            result = _Training(self).run()
        except Exception as caught:
            error = caught
            if not isinstance(error, ClusterError):
                self.run.history.breaks(f"a rank raised {error!r}")
            for rank in self.ranks if self.size > 1 else ():
                rank.process.mpi = replace(rank.process.mpi, spent=True)
        for rank in self.ranks:
            rank.leave("finished" if error is None else "error", result, error)


class _Watched:
    """A Link that tells the rules of every acknowledged update."""

    def __init__(self, link: Link, lineage: Lineage, key: str) -> None:
        self._link, self._lineage, self._key = link, lineage, key
        self.local = link.local

    def send(self, request: Request, out: Any = None) -> Any:
        future = self._link.send(request, out)
        if isinstance(request, Update):
            future.add_done_callback(partial(self._answered, request))
        return future

    def _answered(self, update: Update, future: Any) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        reply: Reply = future.result()
        if isinstance(reply, Fresh):
            self._lineage.acknowledged(self._key, update, reply)


class _Training:
    """The training loop of a worker group."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting, self.run_, self.plan = meeting, meeting.run, meeting.plan.group
        self.rules, self.steps = self.run_.rules, self.run_.steps
        self.lineage = self.rules.lineage
        self.clock = self.run_.clock
        self.cut = self.run_.prepared.partition
        self.values = np.zeros(self.cut.size, np.float32)
        self.compute_s = COMPUTE_S * (1 + self.run_.slow.get(self.plan.number, 0))

    def run(self) -> dict[str, Any]:
        plan, single = self.plan, self.run_.topology.nworker_groups == 1
        self.stubs = [self._stub(rank) for rank in range(self.meeting.size)]
        if plan.puts:
            self._put()
        step = start = self._fetch(plan.first)
        self.rules.begins(self.lineage, plan, start)
        self._pause(self.compute_s)  # warm-up
        if not single and not plan.in_process_servers:
            self._fetch(start)
        self._emit(step)
        while True:
            stopping = step > start and self._stop_requested()
            ended = stopping or step >= self.steps
            if ended:
                self._leave(step)
            if plan.leads and (ended or (step > 0 and step % self.run_.checkpoint_freq == 0)):
                self._save(step)
            if ended:
                self._emit(step)
                if plan.leads:
                    self.rules.final(self.lineage, self.values, interrupted=step < self.steps)
                return {"step": step, "interrupted": step < self.steps}
            self._step(step)
            step += 1
            if step % self.run_.display_freq == 0:
                self._emit(step)

    def _stub(self, rank: int) -> Stub:
        slices = self.cut.of_worker(rank)
        if self.plan.in_process_servers:
            links: dict[int, Link] = self.run_.in_process_links(self, rank)
        else:
            task, process = self.meeting.ranks[rank].task, self.meeting.ranks[rank].process
            deadline = self.clock.monotonic() + SERVERS_S
            while "servers" not in task.told:
                if self.clock.monotonic() > deadline:
                    raise ClusterError("the driver has not told the servers")
                self._pause(LOOK_S)
            links = {
                i: _Watched(_link(address, process, self.run_.patience_s), self.lineage, address.key)
                for i, address in enumerate(task.told["servers"])
            }
        behind = int(self.run_.topology.one_behind)
        return Stub(
            slices,
            links,
            self.plan.number,
            self.plan.generation,
            behind=behind,
            patience_s=PATIENCE_S,
            aborted=self.meeting.aborted,
        )

    def _put(self) -> None:
        saved = None if self.plan.resume is None else self.run_.disk.load(self.plan.resume)
        self.values[...] = 0 if saved is None else saved.values
        for stub in self._each():
            stub.put(self.values, {}, 0 if saved is None else saved.step)

    def _fetch(self, first: int) -> int:
        began = [(stub.get(self.values, first), stub.clock) for stub in self._each()]
        step, clock = max(step for step, _ in began), max(clock for _, clock in began)
        for stub in self.stubs:
            stub.begin(step, clock)
        return step

    def _step(self, step: int) -> None:
        self._pause(self.compute_s)
        gradient = np.zeros(self.cut.size, np.float32)
        gradient.reshape(len(self.cut.slices), -1)[:, self.plan.number * self.steps + step] = -1
        for stub in self._each():
            stub.push(step, gradient, self.values)
        for stub in self._each():
            stub.pull(self.values)

    def _leave(self, step: int) -> None:
        for stub in self._each():
            stub.pull(self.values, everything=True)
        for stub in self._each():
            stub.leave()
        if not self.plan.leads or self.run_.topology.nworker_groups == 1:
            return
        told, last = self.meeting.ranks[0].task.told, float("inf")
        while not told.get("others ended") and self.clock.monotonic() < last:
            self._pause(LOOK_S)
            if self._stop_requested():
                last = min(last, self.clock.monotonic() + STOP_S)
        self._fetch(step)

    def _save(self, step: int) -> None:
        for stub in self._each():
            stub.pull(self.values, everything=True)
        saved = np.zeros_like(self.values)
        for stub in self._each():
            for i, s in enumerate(stub.slices):
                saved[s.start : s.stop] = stub.inspect(i).values
        self._pause(SAVE_S)
        self.run_.disk.save(self.run_, step, saved, self.lineage)

    def _emit(self, step: int) -> None:
        """Tell the driver, by an event of Dask."""
        process, run = self.meeting.ranks[0].process, self.run_
        tell = partial(run.progress, self.plan.number, step)
        process.cluster.network.send(process, run.client.process, tell, stream=True)

    def _stop_requested(self) -> bool:
        return any(rank.task.stop_requested for rank in self.meeting.ranks)

    def _each(self) -> Any:
        """The stubs in turn, each once all ranks go on: a collective waits for all."""
        for stub in self.stubs:
            self._together()
            yield stub

    def _pause(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        self._together()

    def _together(self) -> None:
        """Wait as a collective would for ranks that are stopped or dead."""
        deadline = self.clock.monotonic() + self.run_.patience_s
        while True:
            if reason := self.meeting.aborted():
                raise ClusterError(f"aborted: {reason}")
            if all(rank.process.alive and not rank.process.stopped for rank in self.meeting.ranks):
                return
            if self.meeting.size > 1 and self.clock.monotonic() > deadline:
                raise CommTimeout("a collective timed out")
            self.clock.sleep(LOOK_S)
