"""How worker groups and server groups are formed, at the start and after a loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.cluster import Group, WorkerInfo, form_group, place, wait_workers
from singa_dask.cluster.remote import kill_processes
from singa_dask.cluster.workers import answering
from singa_dask.errors import ClusterError
from singa_dask.supervision.servers import ServerGroup
from singa_dask.training.checkpoint import Found
from singa_dask.training.gang import GangPlan, on_dask_worker
from singa_dask.training.placement import server_plan
from singa_dask.training.prepare import Prepared
from singa_dask.training.worker import GroupPlan, WorkerPlan

if TYPE_CHECKING:
    from distributed import Client


class NoReplacement(ClusterError):
    """Nothing can take the place of a process that was lost."""


class State(Enum):
    """DOWN waits to be formed; FORMING belongs to the thread that forms; RUNNING is watched; ENDED is over."""

    DOWN = "down"
    FORMING = "forming"
    RUNNING = "running"
    ENDED = "ended"


@dataclass
class Gang:
    """The worker groups that share processes: one, unless nworkers_per_procs says otherwise.

    where: the Dask worker of each process. group: its ranks, from the first forming on; reports: once it has ended.
    resume: checkpoint that its servers began with. first: step to begin with where nothing later is known. joined: it
    came to a running job; leaving: it was asked to end.
    """

    groups: tuple[int, ...]
    where: list[str]
    server_groups: tuple[int, ...]
    state: State = State.DOWN
    generation: int = 0
    restarts: int = 0
    group: Group | None = None
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    resume: Path | None = None
    first: int = 0
    joined: bool = False
    leaving: bool = False

    def __str__(self) -> str:
        return f"worker group {'+'.join(map(str, self.groups))}"


@dataclass(frozen=True)
class FormRequest:
    """What is formed together."""

    crews: Sequence[Gang]
    server_groups: Sequence[ServerGroup]


class GangLauncher:
    """Forms the crews and server groups of one run.

    crews, server_groups: all of the run. steps: last known step of every worker group. newest: the newest valid
    checkpoint at the moment; rewound: is told when worker groups go back to a step (None: the start).
    """

    def __init__(
        self,
        client: Client,
        prepared: Prepared,
        worker_plan: WorkerPlan,
        *,
        topic: str,
        steps: Mapping[int, int],
        newest: Callable[[], Found | None],
        rewound: Callable[[Iterable[int], int | None], None],
        patience_s: float,
    ) -> None:
        self.client, self.prepared, self.topology = client, prepared, prepared.topology
        self.worker_plan, self.topic = worker_plan, topic
        self.steps, self.newest, self.rewound, self.patience_s = steps, newest, rewound, patience_s
        self.crews: list[Gang] = []
        self.server_groups: list[ServerGroup] = []
        self._cores: dict[str, int] = {}
        self._pids: dict[str, int] = {}
        self._replaced: set[tuple[str, int]] = set()  # processes, by address and pid, that nannies were asked to kill

    def plan(self) -> None:
        """Decide which Dask workers hold what. Waits until there are enough."""
        topology = self.topology
        placement = place(topology, wait_workers(self.client, topology.nprocesses, self.patience_s))
        self._cores = dict(placement.cores)
        for number, where in enumerate(placement.workers):
            self.crews.append(Gang((number,), list(where), (topology.server_group_of(number),)))
        if not topology.private_servers:
            self.server_groups += [ServerGroup(i, where, self.topic) for i, where in enumerate(placement.servers)]

    def newcomer(self) -> Gang:
        """One more crew, of one worker group, on free Dask workers. Raises ClusterError where there are too few."""
        needed = self.topology.nworkers_per_group
        used = self.used()
        free = [info for info in self._answering() if info.address not in used and not info.group]
        if len(free) < needed:
            raise ClusterError(
                f"{needed} free Dask workers are needed, {len(free)} are there; start more and join again"
            )
        number = 1 + max(number for crew in self.crews for number in crew.groups)
        chosen = free[:needed]
        self._cores |= {info.address: max(1, info.cores // (1 + len(used))) for info in chosen}
        first = max(self.steps.values(), default=0)
        server_group = number % self.topology.nserver_groups
        crew = Gang((number,), [info.address for info in chosen], (server_group,), first=first, joined=True)
        self.crews.append(crew)
        return crew

    def used(self) -> set[str]:
        """The Dask workers that crews or servers are on."""
        crews = {address for crew in self.crews if crew.state != State.ENDED for address in crew.where}
        return crews | {address for group in self.server_groups for address in group.where}

    def lost(self) -> set[str]:
        """Those of them that do not answer any more."""
        used = self.used()
        return used.difference(info.address for info in self._answering()) if used else set()

    def bring_up(self, order: FormRequest) -> None:
        """Form the crews and make the server groups of an order, which nobody else touches in the meantime, from a
        neighbour's or the newest checkpoint's parameters. Raises ClusterError, and leaves them half made."""
        for crew in order.crews:
            if crew.group is not None:
                crew.group.abort("it is formed anew")
                self._replaced |= set(crew.group.replaced.items())
                crew.group.close()
        for group in order.server_groups:
            group.stop()
        self._replace_lost(order)
        fresh = not any(group.up for group in self.server_groups)
        found = self.newest() if fresh else None
        if fresh and any(crew.generation for crew in order.crews):
            self.rewound([n for crew in order.crews for n in crew.groups], found.step if found else None)
        for crew in order.crews:
            if fresh:
                crew.resume, crew.first = (found.path, found.step) if found else (None, 0)
            self._form(order, crew, [self._group_plan(crew, number, fresh) for number in crew.groups])
        self._make_servers(order.server_groups, fresh)
        for crew in order.crews:
            assert crew.group is not None
            if self.server_groups:
                crew.group.tell("servers", {s: self.server_groups[s].addresses for s in crew.server_groups})

    # Worker groups

    def _form(self, order: FormRequest, crew: Gang, groups: Sequence[GroupPlan]) -> None:
        crew.generation += 1
        plan = GangPlan(
            worker=self.worker_plan,
            groups=tuple(groups),
            cores=tuple(self._cores.get(address, 1) for address in crew.where),
            server_groups=crew.server_groups if self.server_groups else None,
        )
        crew.group = form_group(
            self.client,
            crew.where,
            on_dask_worker,
            plan,
            self.topic,
            comm_timeout_s=self.patience_s,
            name=f"train-{self.prepared.job.name}",
            run=self.topic,
        )
        self._remember(crew.group.workers)
        self._moved(order, dict(zip(crew.where, crew.group.addresses, strict=True)))

    def _group_plan(self, crew: Gang, number: int, fresh: bool) -> GroupPlan:
        served = [] if crew.joined else self._coming(self.topology.server_group_of(number))
        return GroupPlan(
            number=number,
            generation=crew.generation + 1,
            # Servers that have parameters already ignore it.
            puts=number in served[:1],
            resume=crew.resume,
            first=crew.first if fresh else self.steps.get(number, crew.first),
            fresh=fresh,
        )

    def _coming(self, server_group: int) -> list[int]:
        """The worker groups, not yet at their end, that use a server group: founders first."""
        working = sorted((crew for crew in self.crews if crew.state != State.ENDED), key=lambda crew: crew.joined)
        pairs = [pair for crew in working for pair in zip(crew.groups, crew.server_groups, strict=True)]
        return [number for number, used in pairs if used == server_group]

    # Server groups

    def _make_servers(self, groups: Sequence[ServerGroup], fresh: bool) -> None:
        """Make server groups: all anew, or each from a neighbour that is up, the nearest to one first."""
        waiting = sorted(groups, key=lambda group: group.number)
        while waiting:
            group = waiting[0] if fresh else next(g for g in waiting if any(n.up for n in self._neighbours(g)))
            waiting.remove(group)
            others = [n for n in self._neighbours(group) if n.up and not fresh]
            group.start(self.client, self._server_plans(group, fresh))
            if others:
                group.take_over(others[0])
                for other in others[1:]:
                    group.hand_on(other)
        for left, right in zip(self.server_groups[:-1], self.server_groups[1:], strict=True):
            if left in groups or right in groups:
                left.meet(right)

    def _server_plans(self, group: ServerGroup, fresh: bool) -> list[Any]:
        accounts = {}
        if fresh:  # all server groups begin with the same parameters
            mine = group.generation + 1
            if group.number > 0:
                accounts["left"] = (self.server_groups[group.number - 1].generation, mine)
            if group.number + 1 < len(self.server_groups):
                accounts["right"] = (mine, self.server_groups[group.number + 1].generation + 1)
        cut, coming = self.prepared.partition, tuple(self._coming(group.number))
        return [
            server_plan(
                self.prepared.job,
                self.prepared.entries,
                cut.of_server(i),
                "",
                coming,
                accounts=accounts,
                code=self.prepared.code,
            )
            for i in range(len(group.where))
        ]

    def _neighbours(self, group: ServerGroup) -> list[ServerGroup]:
        return [g for g in self.server_groups if abs(g.number - group.number) == 1]

    # Processes

    def _answering(self) -> list[WorkerInfo]:
        """The Dask workers that answer, however busy. Who does not is waited for: most are merely gone.

        One whose nanny was asked to replace it may answer once more, when a cut network is back: it is asked again.
        """
        answers, _ = answering(self.client, 5.0)
        back = {info.address: info.pid for info in answers if (info.address, info.pid) in self._replaced}
        if back:
            kill_processes(self.client, back)
        workers = [info for info in answers if info.address not in back]
        self._remember(workers)
        return workers

    def _remember(self, workers: Iterable[WorkerInfo]) -> None:
        """Processes that can be replaced, should they stop to answer."""
        self._pids |= {info.address: info.pid for info in workers if info.nanny}

    def _replace_lost(self, order: FormRequest) -> None:
        """Put free Dask workers in the place of those that are gone; their nannies bring them back, elsewhere."""
        deadline = time.monotonic() + self.patience_s
        killed: set[str] = set()
        while True:
            there = self._answering()
            wanted = {address for where in _places(order) for address in where}
            lost = sorted(wanted.difference(info.address for info in there))
            if not lost:
                return
            used = self.used()
            free = [info.address for info in there if info.address not in used and not info.group]
            if len(free) >= len(lost):
                self._moved(order, dict(zip(lost, free, strict=False)))
                return
            if time.monotonic() > deadline:
                raise NoReplacement(
                    f"{len(lost)} Dask workers were lost ({', '.join(lost)}) and only {len(free)} free ones are there "
                    f"after {self.patience_s:g} s. Start more."
                )
            # A process that was stopped lives, and its nanny is content with it.
            stopped = {address: self._pids[address] for address in set(lost) & self._pids.keys() - killed}
            kill_processes(self.client, stopped)
            self._replaced |= set(stopped.items())
            killed |= stopped.keys()
            time.sleep(0.05)

    def _moved(self, order: FormRequest, moved: Mapping[str, str]) -> None:
        for where in _places(order):
            where[:] = [moved.get(address, address) for address in where]
        # In place: the thread that watches may add newcomers'.
        self._cores |= {new: self._cores[old] for old, new in moved.items() if old in self._cores}


def _places(order: FormRequest) -> list[list[str]]:
    return [crew.where for crew in order.crews] + [group.where for group in order.server_groups]
