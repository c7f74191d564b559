"""How worker groups and server groups are formed, in a thread that shares nothing with the supervisor."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from singa_dask.cluster import Group, GroupFailed, form_group
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.held import left_behind, let_go
from singa_dask.errors import ClusterError, SingaError
from singa_dask.planning.candidates import with_cluster
from singa_dask.server import Keeping, ServerAddress, ServerPlan
from singa_dask.supervision.events import Formed, FormRequest, NotFormed, ServerGroupRequest, WorkerGroupRequest
from singa_dask.supervision.servers import Servers, make_servers, number_of
from singa_dask.training.dask_task import train_on_dask_worker
from singa_dask.training.placement import server_plan
from singa_dask.training.prepare import Prepared
from singa_dask.training.shadows import RankAddress
from singa_dask.training.worker import WorkerPlan

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

_IN_USE_S = 2.0


@dataclass
class Launched:
    """The outcome of a request: the ranks of every worker group and the servers of every server group, by number, and
    the event that tells the supervisor. moved: old addresses of Dask workers -> new ones."""

    groups: dict[int, Group] = field(default_factory=dict)
    servers: dict[int, Servers] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    event: Formed | NotFormed | None = None


@dataclass(frozen=True)
class LeftMemory:
    """The shadows that the ranks of each worker group, and the servers of each server group, have left, by group; and
    the nannies that answer."""

    ranks: dict[int, tuple[RankAddress, ...]] = field(default_factory=dict)
    servers: dict[int, tuple[ServerAddress, ...]] = field(default_factory=dict)
    nannies: frozenset[str] = frozenset()


class GroupLauncher:
    """Forms the worker groups and server groups of one run.

    topic: of the run's events, and its name (leases.server_key). resumes: whether it may go on from what an earlier
    start of the run has left in memory.
    """

    def __init__(
        self,
        client: Client,
        prepared: Prepared,
        worker_plan: WorkerPlan,
        *,
        topic: str,
        patience_s: float,
        resumes: bool = False,
    ) -> None:
        self.client, self.prepared, self.resumes = client, prepared, resumes
        self.worker_plan, self.topic, self.patience_s = worker_plan, topic, patience_s

    def form(self, request: FormRequest, running: Mapping[int, Servers]) -> Launched:
        """Form the whole request, or nothing. running: the server groups outside the request."""
        launched = Launched()
        try:
            for group in request.worker_groups:
                self._form_worker_group(group, launched)
            self._make_servers(request, running, launched)
        except BaseException as error:
            launched.replaced |= close(launched.groups.values(), launched.servers.values())
            if not isinstance(error, ClusterError):
                raise
            lost, raised = isinstance(error, GroupFailed | NoAnswer), own_error(error)
            launched.groups, launched.servers = {}, {}
            launched.event = NotFormed(request.number, error, raised, lost, launched.moved, launched.replaced)
        else:
            workers = [worker for group in launched.groups.values() for worker in group.workers if worker.nanny]
            launched.event = Formed(request.number, launched.moved, {w.address: w.pid for w in workers})
        return launched

    def left_behind(self, nannies: Iterable[str]) -> LeftMemory:
        """What lost processes have left in memory. Servers go on from this start of the run only, as the worker groups
        of an earlier one are not those of now."""
        left, answer = left_behind(self.client, nannies, self.topic, earlier=self.resumes)
        numbers = {group: number_of(group) for group in left}
        return LeftMemory(
            {int(group): left[group] for group, number in numbers.items() if number is None},
            {
                number: left[group]
                for group, number in numbers.items()
                if number is not None and left[group][0].run == self.topic
            },
            answer,
        )

    def let_go(self, nannies: Iterable[str]) -> None:
        """Have nobody hold anything of this run any more."""
        with suppress(ClusterError):  # Dask is gone, and so is what was held
            let_go(self.client, nannies, self.topic)

    def _form_worker_group(self, request: WorkerGroupRequest, launched: Launched) -> None:
        group = form_group(
            self.client,
            request.where,
            train_on_dask_worker,
            replace(self.worker_plan, group=request.plan, job=self._job_of(len(request.where))),
            self.topic,
            comm_timeout_s=self.patience_s,
            name=f"train-{self.prepared.job.name}",
            run=self.topic,
            replaced=launched.replaced,
            in_use_s=_IN_USE_S if request.plan.generation == 1 else None,  # its workers were free a moment ago
        )
        launched.groups[request.plan.number] = group
        launched.moved |= {old: new for old, new in zip(request.where, group.addresses, strict=True) if old != new}

    def _job_of(self, workers: int) -> bytes:
        """The serialised job, for groups of so many workers."""
        job, topology = self.prepared.job, self.prepared.topology
        if workers == topology.nworkers_per_group:
            return self.worker_plan.job
        return with_cluster(job, topology.of_workers(workers).to_proto()).SerializeToString()

    def _make_servers(self, request: FormRequest, running: Mapping[int, Servers], launched: Launched) -> None:
        """Make the server groups: for the workers' parameters, from memory, or each from a neighbour that is up, the
        nearest first.

        Then neighbours meet, and the worker groups are told the addresses of their servers.
        """
        up = dict(running)
        waiting = sorted(request.server_groups, key=lambda group: group.number)
        while waiting:
            ready = (g for g in waiting if request.fresh or g.left or {g.number - 1, g.number + 1} & up.keys())
            group = next(ready)
            waiting.remove(group)
            alone = request.fresh or group.left
            neighbours = [] if alone else [up[n] for n in (group.number - 1, group.number + 1) if n in up]
            where = [launched.moved.get(address, address) for address in group.where]
            plans = self._server_plans(group)
            servers = make_servers(self.client, group.number, group.generation, where, plans, self.topic)
            up[group.number] = launched.servers[group.number] = servers
            if neighbours:
                servers.take_over(neighbours[0])
                for other in neighbours[1:]:
                    servers.hand_on(other)
        for number in sorted(up):
            if number + 1 in up and {number, number + 1} & launched.servers.keys():
                up[number].meet(up[number + 1])
        for workers in request.worker_groups if up else ():
            launched.groups[workers.plan.number].tell("servers", up[workers.server_group].addresses)

    def _server_plans(self, group: ServerGroupRequest) -> list[ServerPlan]:
        made, partition = self.prepared, self.prepared.partition
        options = {"groups": group.groups, "accounts": dict(group.accounts), "code": made.code}
        size = len(group.where)
        kept = [Keeping(self.topic, group.generation, i, size, also) for i, also in enumerate(group.also)]
        kept = [replace(each, left=left) for each, left in zip(kept, group.left, strict=True)] if group.left else kept
        return [
            server_plan(made.job, made.layout.entries, partition.of_server(i), keeping=keeping, **options)
            for i, keeping in enumerate(kept or [None] * size)
        ]


def close(groups: Iterable[Group], servers: Iterable[Servers]) -> dict[str, int]:
    """End ranks and let servers go; returns the processes that nannies were asked to replace, pid by address."""
    replaced: dict[str, int] = {}
    for group in groups:
        try:
            group.abort("the driver re-forms it, or goes on without it")
            group.close()
            group.replace_processes()
        except ClusterError as error:  # the others must be closed too
            logger.warning("a worker group could not be closed: %s", error)
        replaced |= group.replaced
    for server_group in servers:
        server_group.stop()
    return replaced


def own_error(error: ClusterError) -> BaseException | None:
    """What a rank raised on purpose, or by mistake; None where its group was lost."""
    if not isinstance(error, GroupFailed):
        return None
    raised = error.failure.exception
    if raised is None or isinstance(raised, ClusterError):
        return None
    return raised if isinstance(raised, SingaError) else error
