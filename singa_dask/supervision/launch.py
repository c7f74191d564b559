"""How worker groups and server groups are formed, in a thread that shares nothing with the supervisor."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

from singa_dask.cluster import Group, GroupFailed, form_group
from singa_dask.cluster.formation import NoAnswer
from singa_dask.cluster.nanny_store import left_behind, let_go
from singa_dask.cluster.remote import alive, ask_nannies
from singa_dask.errors import ClusterError, SingaError
from singa_dask.job.schedule import orphan_seconds
from singa_dask.memory.newest import Newest
from singa_dask.memory.owner import SERVERS, Owner, Saved, Version
from singa_dask.server import ServerPlan
from singa_dask.server.kept import kept_ledger, never_served
from singa_dask.server.ledger import Ledger
from singa_dask.supervision.events import (
    Formed,
    FormRequest,
    Inherited,
    NotFormed,
    ServerGroupRequest,
    WorkerGroupRequest,
)
from singa_dask.supervision.members import is_first
from singa_dask.supervision.servers import Keeping, Servers, make_servers
from singa_dask.training.checkpoint import model_of as checkpoint_model
from singa_dask.training.dask_task import train_on_dask_worker
from singa_dask.training.placement import server_plan
from singa_dask.training.prepare import Prepared, training_data
from singa_dask.training.rank_plan import WorkerPlan

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

_IN_USE_S = 2.0
# Pauses before the attempts to tell a worker group where its servers are. One that hears of none fails, and is formed
# again.
_TELL_AFTER_S = 0.0, 0.5, 1.0, 2.0, 4.0
_HOLDERS_S = 10.0


class NoParameters(ClusterError):
    """No server has parameters that these server groups could begin with."""

    def __init__(self, groups: Sequence[int]) -> None:
        super().__init__("No server has parameters.")
        self.groups = tuple(groups)


@dataclass
class Launched:
    """The outcome of a request: the ranks of every worker group and the servers of every server group, by number, and
    the event that tells the supervisor. moved: old addresses of Dask workers -> new ones."""

    groups: dict[int, Group] = field(default_factory=dict)
    servers: dict[int, Servers] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    event: Formed | NotFormed | None = None


class GroupLauncher:
    """Forms the worker groups and server groups of one run.

    topic: of the run's events, and its name (leases.server_key). resumes: whether it may resume from what an earlier
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

    @cached_property
    def model(self) -> int:
        """The `model` of what servers save."""
        return model_of(self.prepared)

    def form(self, request: FormRequest, running: Mapping[int, Servers], groups: Mapping[int, Group]) -> Launched:
        """Form the whole request, or nothing. running, groups: the server groups and worker groups outside the
        request."""
        launched = Launched()
        try:
            for group in request.worker_groups:
                self._form_worker_group(group, launched)
            unkept = self._make_servers(request, running, launched)
            self._tell_servers(request, {**running, **launched.servers}, {**groups, **launched.groups})
        except BaseException as error:
            launched.replaced |= close(launched.groups.values(), launched.servers.values())
            if not isinstance(error, ClusterError):
                raise
            lost, raised = isinstance(error, GroupFailed | NoAnswer | NoParameters), own_error(error)
            void = error.groups if isinstance(error, NoParameters) else ()
            launched.groups, launched.servers = {}, {}
            launched.event = NotFormed(request.number, error, raised, lost, launched.moved, launched.replaced, void)
        else:
            workers = [worker for group in launched.groups.values() for worker in group.workers if worker.nanny]
            launched.event = Formed(request.number, launched.moved, {w.address: w.pid for w in workers}, unkept)
        return launched

    def left_behind(self, nannies: Iterable[str], files: tuple[Saved, ...] = ()) -> tuple[Newest, Inherited | None]:
        """What the processes of each group have left. If an earlier start of the run had servers that have left it,
        also whether they fit this one, and their ledgers: they acknowledge nothing any more.

        files: as for `newest`.
        """
        left = left_behind(self.client, nannies, self.topic, earlier=self.resumes, files=files, fits=self._fits)
        servers = {name: group for name, group in left.groups.items() if name.startswith(SERVERS)}
        torn = tuple(name for name in left.torn if name.startswith(SERVERS))
        if left.run in ("", self.topic) or not (servers or torn):
            return left, None
        fits = all(kept.model == self.model for group in servers.values() for kept in group)
        return left, Inherited(fits, torn, self._ledgers(servers) if fits else {})

    def _fits(self, saved: Saved) -> bool:
        made = self.prepared
        return saved.version.number <= made.job.train_steps and saved.model == checkpoint_model(
            made.contents, made.data
        )

    def _ledgers(self, servers: Mapping[str, tuple[Saved, ...]]) -> dict[str, Ledger]:
        """Of each group of which all memory can be read."""
        found = self._ask_holders(kept_ledger, servers)
        by_group = {name: [found.get((name, kept.owner.rank)) for kept in group] for name, group in servers.items()}
        return {name: Ledger.joint(filter(None, of)) for name, of in by_group.items() if None not in of}

    def _served(self, groups: Sequence[ServerGroupRequest]) -> list[ServerGroupRequest]:
        """The same, without what servers have left that never had parameters."""
        left = {str(group.number): group.left for group in groups if group.left}
        void = {int(number) for (number, _), never in self._ask_holders(never_served, left).items() if never}
        return [replace(group, left=()) if group.number in void else group for group in groups]

    def _ask_holders(
        self, function: Callable[[Saved], Any], left: Mapping[str, tuple[Saved, ...]]
    ) -> dict[tuple[str, int], Any]:
        """What a function returns for the memory of each server, where it is held; by group and rank."""
        held: defaultdict[str, dict[tuple[str, int], Saved]] = defaultdict(dict)
        for name, group in left.items():
            for kept in group:
                held[kept.holder][name, kept.owner.rank] = kept
        asked = {nanny: (function, of) for nanny, of in sorted(held.items())}
        answers = ask_nannies(self.client, _each, asked, _HOLDERS_S).values() if asked else ()
        return {
            place: said for answer in answers if not isinstance(answer, Exception) for place, said in answer.items()
        }

    def let_go(self, nannies: Iterable[str], *, own: bool = True, earlier: bool = False, deposits: bool) -> None:
        """Have nobody hold anything of this start of the run any more, or of earlier ones: of checkpoints in memory,
        only if `deposits`."""
        with suppress(ClusterError):  # Dask is gone, and so is what was held
            kinds = {"own": own, "earlier": earlier and self.resumes, "deposits": deposits}
            let_go(self.client, nannies, self.topic, **kinds)

    def _form_worker_group(self, request: WorkerGroupRequest, launched: Launched) -> None:
        group = form_group(
            self.client,
            request.where,
            train_on_dask_worker,
            replace(self.worker_plan, group=request.plan),
            self.topic,
            comm_timeout_s=self.patience_s,
            name=f"train-{self.prepared.job.name}",
            run=self.topic,
            replaced=launched.replaced,
            # Workers that were free a moment ago.
            in_use_s=_IN_USE_S if is_first(request.plan.generation) or request.grows else None,
        )
        launched.groups[request.plan.number] = group
        launched.moved |= {old: new for old, new in zip(request.where, group.addresses, strict=True) if old != new}

    def _make_servers(
        self, request: FormRequest, running: Mapping[int, Servers], launched: Launched
    ) -> tuple[int, ...]:
        """Make the server groups: from what lost ones have left, for the workers' parameters, or each from a neighbour
        that is up, the nearest first. Then neighbours meet. Returns the groups of which no memory is held."""
        up = dict(running)
        waiting = sorted(self._served(request.server_groups), key=lambda group: (not group.left, group.number))
        if not (request.fresh or up or any(group.left for group in waiting)) and waiting:
            raise NoParameters([group.number for group in request.server_groups])
        while waiting:
            if request.fresh or waiting[0].left:
                group, neighbours = waiting[0], []
            else:
                group = next(g for g in waiting if {g.number - 1, g.number + 1} & up.keys())
                neighbours = [up[n] for n in (group.number - 1, group.number + 1) if n in up]
            waiting.remove(group)
            where = [launched.moved.get(address, address) for address in group.where]
            servers = make_servers(
                self.client,
                group.number,
                group.generation,
                where,
                self._server_plans(group),
                keeping_of(group, self.topic, self.model, orphan_seconds(self.prepared.job)),
            )
            up[group.number] = launched.servers[group.number] = servers
            if neighbours:
                servers.take_over(neighbours[0])
                for other in neighbours[1:]:
                    servers.hand_on(other)
        for group in request.server_groups:
            launched.servers[group.number].replicate(group.replicas)
        unkept = tuple(number for number, servers in sorted(launched.servers.items()) if not servers.settle())
        for number in sorted(up):
            if number + 1 in up and {number, number + 1} & launched.servers.keys():
                up[number].meet(up[number + 1])
        return unkept

    def _tell_servers(self, request: FormRequest, up: Mapping[int, Servers], groups: Mapping[int, Group]) -> None:
        """Tell worker groups the addresses of their servers: those that are new, and those whose servers are."""
        told = {workers.plan.number: workers.server_group for workers in request.worker_groups if up}
        told |= {group: servers.number for servers in request.server_groups for group in servers.groups}
        untold = {number: server_group for number, server_group in told.items() if number in groups}
        for pause_s in _TELL_AFTER_S:
            time.sleep(pause_s)
            for number, server_group in list(untold.items()):
                if groups[number].tell("servers", up[server_group].addresses):
                    del untold[number]
            here: set[str] = alive(self.client) if untold else set()
            untold = {number: of for number, of in untold.items() if here.issuperset(groups[number].addresses)}
            if not untold:
                return

    def _server_plans(self, group: ServerGroupRequest) -> list[ServerPlan]:
        made, partition = self.prepared, self.prepared.partition
        told = {"code": made.code, "trace": self.worker_plan.trace}
        options = {"groups": group.groups, "accounts": dict(group.accounts), **told}
        slices = [partition.of_server(i) for i in range(len(group.where))]
        return [server_plan(made.job, made.layout.entries, own, **options) for own in slices]


def _each(
    function: Callable[[Saved], Any], servers: Mapping[tuple[str, int], Saved], dask_worker: Any
) -> dict[tuple[str, int], Any]:
    """On the nanny that holds what these servers have left."""
    return {place: function(kept) for place, kept in servers.items()}


def model_of(prepared: Prepared) -> int:
    """The same for starts of a run whose servers can resume from each other's memory: they have the same parameters,
    updater state and training data, and the same number of servers, server groups and worker groups."""
    topology, entries = prepared.topology, prepared.layout.entries
    cut = [prepared.partition.of_server(i) for i in range(topology.nservers_per_group)]
    groups = topology.nserver_groups, topology.nworker_groups
    data = sorted(training_data(prepared.data).items())
    return crc32(repr((entries, cut, groups, prepared.updater_state, data)).encode())


def keeping_of(group: ServerGroupRequest, run: str, model: int, orphan_s: float) -> list[Keeping]:
    """How each server of a group leaves its slices in memory."""
    size = len(group.where)
    also, left = group.also or ("",) * size, group.left or (None,) * size
    return [
        Keeping(
            Owner(SERVERS, group.number, i, size),
            Version(run, group.generation),
            group.sides,
            also[i],
            left[i],
            model,
            orphan_s,
        )
        for i in range(size)
    ]


def close(groups: Iterable[Group], servers: Iterable[Servers], growing: Collection[Group] = ()) -> dict[str, int]:
    """End ranks, those of growing groups after a step, and let servers go; returns the processes that nannies were
    asked to replace, pid by address."""
    replaced: dict[str, int] = {}
    for group in groups:
        try:
            if group in growing:
                group.leave_after_step()
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
