"""The ranks of worker groups in simulated processes: how they meet, are lost and leave."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from simulation.client import Task
from simulation.clock import Fiber
from simulation.cluster import Process
from simulation.training import Training
from singa_dask.cluster import leases
from singa_dask.cluster.bootstrap import MpiReport
from singa_dask.cluster.rank import RankTask
from singa_dask.errors import ClusterError
from singa_dask.memory.region import VALUES
from singa_dask.training.rank_plan import WorkerPlan
from singa_dask.training.shadows import RankShadow

if TYPE_CHECKING:
    from simulation.run import Run

JOINING_S = 0.03  # until the ranks of a group have met
LOOK_S = 0.05
UNHEARD_S = 5.2  # cluster/rank.py: how long the rank of a cancelled task waits for its driver


@dataclass(eq=False)
class Rank:
    """One rank, as its process and its driver see it. shadow: in which it leaves its slices; updating: whether it
    updates them at this moment."""

    meeting: Meeting
    process: Process
    task: RankTask
    future: Task
    shadow: RankShadow | None = None
    updating: bool = False

    def died(self) -> None:
        if self.updating and self.shadow is not None:
            _tear(self.shadow)
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


def _tear(shadow: RankShadow) -> None:
    """The process dies while it writes the older of two images."""
    for region in shadow.slices.values():
        older = min(region._images, key=lambda image: image.number)
        older.head[0], older.arrays[VALUES][...] = 0, np.nan


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
            result = Training(self).run()
        except Exception as caught:
            error = caught
            if not isinstance(error, ClusterError):
                self.run.history.breaks(f"a rank raised {error!r}")
            for rank in self.ranks if self.size > 1 else ():
                rank.process.mpi = replace(rank.process.mpi, spent=True)
        for rank in self.ranks:
            rank.leave("finished" if error is None else "error", result, error)
