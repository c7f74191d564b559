"""What runs on one Dask worker: the workers that this process holds, usually one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from singa_dask.comm.communicator import Communicator
from singa_dask.server import Address, Link, link_to
from singa_dask.training.worker import GroupPlan, RankServices, WorkerPlan, train_rank

# Servers are made as soon as all groups that share processes with them have formed.
SERVERS_S = 120.0

Directory = Mapping[int, Sequence[Address]]


@dataclass(frozen=True)
class GangPlan:
    """What the driver tells the processes of one or several worker groups that are formed together.

    worker: the plan of their workers, but for the group. groups: the worker groups. cores: of each process, in order.
    server_groups: of each worker group, the server group, None where servers
    are private.
    """

    worker: WorkerPlan
    groups: tuple[GroupPlan, ...]
    cores: tuple[int, ...]
    server_groups: tuple[int, ...] | None = None


def on_dask_worker(comm: Communicator, plan: GangPlan, topic: str) -> dict[int, dict[str, Any]]:
    """Run this process's workers to their end; returns, by worker group, the report of the group's first one here."""
    from distributed import get_client, get_worker

    from singa_dask.cluster import current_task
    from singa_dask.data import dask_submit

    worker, task = get_worker(), current_task()
    submit = dask_submit(get_client(), worker)

    def links(server_group: int) -> Mapping[int, Link]:
        directory: Directory = task.wait_told("servers", SERVERS_S)
        addresses = directory[server_group]
        return {i: link_to(address, worker, comm.timeout_s) for i, address in enumerate(addresses)}

    def services(index: int) -> RankServices:
        server_group = None if plan.server_groups is None else plan.server_groups[index]
        return RankServices(
            submit=submit,
            emit=partial(worker.log_event, topic),
            stop_requested=lambda: task.stop_requested,
            links=None if server_group is None else partial(links, server_group),
            others_ended=lambda: bool(task.told.get("others ended")),
        )

    own = replace(plan.worker, threads=plan.cores[comm.rank], group=plan.groups[0])
    return {plan.groups[0].number: train_rank(comm, own, services(0))}
