"""Training in this process: a group of one worker, without Dask."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from singa_dask.cluster.cores import equal_share
from singa_dask.comm.solo import SoloCommunicator
from singa_dask.errors import ConfigError, Problem
from singa_dask.job import ClusterTopology
from singa_dask.supervision.interrupts import interrupts
from singa_dask.training.checkpoint import Found
from singa_dask.training.rank_plan import GroupPlan, RankServices, WorkerPlan
from singa_dask.training.worker import train_rank


def check_single(topology: ClusterTopology) -> None:
    """Raise ConfigError unless one process holds the whole run."""
    if topology.nprocesses > 1:
        message = "training in this process is for one worker, with its server in the same process"
        hint = "Leave out processes=False, or the cluster block. Give an estimator client=Client(...)."
        raise ConfigError(Problem("cluster", message, topology.describe(), hint))


class InProcess:
    """The only worker of a run. emit: is called with its events; plan: without a group. gpu: on which it computes, by
    number; None for the CPU."""

    def __init__(
        self, plan: WorkerPlan, found: Found | None, emit: Callable[[dict[str, Any]], None], gpu: int | None = None
    ) -> None:
        step, copies = (found.step, found.copies) if found else (0, ())
        gpus = () if gpu is None else (gpu,)
        group = GroupPlan(resume=copies, first=step, cores=(equal_share(1),), gpus=gpus)
        self._plan = replace(plan, group=group)
        self._emit = emit
        self.stopped = ""  # by whom

    def run(self) -> dict[str, Any]:
        """Train to the end; returns the report. The first Ctrl-C stops the run after the step in progress, with a
        checkpoint; the second raises KeyboardInterrupt."""
        with interrupts(self.stop), ThreadPoolExecutor(1, thread_name_prefix="loader") as pool:
            services = RankServices(
                submit=pool.submit,
                emit=self._emit,
                stop_requested=lambda: bool(self.stopped),
                cores=self._plan.group.cores[0],
            )
            return train_rank(SoloCommunicator(), self._plan, services)

    def stop(self, by: str) -> None:
        """Ask the run to end after the step in progress. From any thread."""
        self.stopped = self.stopped or by
