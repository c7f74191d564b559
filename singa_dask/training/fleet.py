"""All worker groups and server groups of a run: forming, watching, restarting, ending.

The unit of failure is what shares processes. A worker group that is lost takes along the servers in its processes, and
servers that are lost take along the worker groups that they serve; everybody else goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singa_dask.cluster import Group, GroupFailed, WorkerInfo, form_group, place, probe, wait_workers
from singa_dask.cluster.remote import alive
from singa_dask.cluster.workers import answering
from singa_dask.errors import ClusterError, SingaError
from singa_dask.training.checkpoint import Found
from singa_dask.training.crew import CrewPlan, on_dask_worker
from singa_dask.training.prepare import Prepared
from singa_dask.training.replica import server_plan
from singa_dask.training.server_group import ServerGroup
from singa_dask.training.worker import GroupPlan, WorkerPlan

if TYPE_CHECKING:
    from distributed import Client

_LOOK_S = 0.02
_ALIVE_EVERY_S = 0.25


class GroupLost(ClusterError):
    """A process of the run died or went silent: forming what it held anew may help."""


class NoReplacement(ClusterError):
    """Nothing can take the place of a process that was lost."""


@dataclass
class Crew:
    """The worker groups that share processes: one, unless nworkers_per_procs says otherwise.

    where: the Dask worker of each process. group: while it runs; down: waits to be formed; reports: once it has ended.
    resume: checkpoint that its servers began with; joined: whether it came to a running job.
    """

    groups: tuple[int, ...]
    where: list[str]
    server_groups: tuple[int, ...]
    generation: int = 0
    restarts: int = 0
    group: Group | None = None
    down: bool = True
    ended: bool = False
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    resume: Path | None = None
    joined: bool = False

    @property
    def running(self) -> bool:
        return self.group is not None and not self.down and not self.ended

    def __str__(self) -> str:
        return f"worker group {'+'.join(map(str, self.groups))}"


@dataclass(frozen=True)
class Restart:
    """For the record: which worker groups were formed anew, why, and near which step."""

    groups: tuple[int, ...]
    step: int
    cause: str


class Fleet:
    """The processes of one run.

    note: says something to the user. newest: the newest valid checkpoint at the moment. rewound: is told when worker
    groups go back to a step (None: the start). steps, ended: last known step of every worker group, and which have
    reached their end; kept by the caller.
    """

    def __init__(
        self,
        client: Client,
        prepared: Prepared,
        worker_plan: WorkerPlan,
        *,
        topic: str,
        note: Callable[[str], None],
        newest: Callable[[], Found | None],
        rewound: Callable[[Iterable[int], int | None], None],
        steps: Mapping[int, int],
        ended: Set[int],
        max_restarts: int,
        patience_s: float,
    ) -> None:
        self.client, self.prepared, self.topology = client, prepared, prepared.topology
        self.worker_plan, self.topic = worker_plan, topic
        self.note, self.newest, self.rewound, self.steps, self.ended = note, newest, rewound, steps, ended
        self.max_restarts, self.patience_s = max_restarts, patience_s
        self.restarts: list[Restart] = []
        self.interrupted = False
        self.crews: list[Crew] = []
        self.server_groups: list[ServerGroup] = []
        self._cores: dict[str, int] = {}
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix="fleet")
        self._forming: Future[None] | None = None
        self._wishes: list[Callable[[], None]] = []
        self._lead_told = False
        self._checked_at = 0.0

    @property
    def synchronous(self) -> bool:
        """Whether there is one worker group only, which then goes back to a checkpoint when it is lost."""
        return self.topology.nworker_groups == 1

    # From start to end

    def run(self) -> dict[int, dict[str, Any]]:
        """Train from the newest checkpoint, if any, until every worker group has ended; returns their reports."""
        try:
            self._plan()
            while not all(crew.ended for crew in self.crews):
                try:
                    self._look()
                    time.sleep(_LOOK_S)
                except KeyboardInterrupt:
                    self.stop()
            return {number: report for crew in self.crews for number, report in crew.reports.items()}
        finally:
            self._close()

    def stop(self) -> None:
        """Ask every worker group to end after its step. A second time: raises KeyboardInterrupt."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.note("stopping after this step (Ctrl-C again: at once)")
        for crew in self.crews:
            if crew.group is not None:
                crew.group.stop()

    def wish(self, action: Callable[[], None]) -> None:
        """Have something done by the thread that watches."""
        self._wishes.append(action)

    def join(self) -> str:
        """Add a worker group on free Dask workers; returns what came of it, in a line."""
        if self.synchronous:
            return "refused: one worker group is synchronous, and cannot take in another"
        if self.interrupted or all(crew.ended for crew in self.crews):
            return "refused: the run is ending"
        needed = max(1, self.topology.nworkers_per_group // self.topology.nworkers_per_procs)
        free = self._free()
        if len(free) < needed:
            return f"refused: {needed} free Dask workers are needed, {len(free)} are there; start more and join again"
        number = 1 + max(number for crew in self.crews for number in crew.groups)
        chosen = free[:needed]
        server_group = number % self.topology.nserver_groups
        crew = Crew((number,), [info.address for info in chosen], (server_group,), joined=True)
        self._cores |= {info.address: max(1, info.cores // (1 + len(self._used()))) for info in chosen}
        self.crews.append(crew)
        return f"worker group {number} joins on {', '.join(crew.where)}"

    def leave(self, number: int) -> str:
        """Ask a worker group to end after its step; returns what came of it, in a line."""
        crew = next((crew for crew in self.crews if number in crew.groups), None)
        if crew is None or crew.ended:
            return f"refused: there is no worker group {number} at work"
        if number == 0:
            return "refused: worker group 0 tests and saves for the whole run; stop the run instead"
        if crew.group is None:
            return f"refused: worker group {number} is just being formed"
        crew.group.stop()
        return f"{crew} leaves after its step"

    # Looking after what runs

    def _look(self) -> None:
        """One look at everything: what has ended, what was lost, what can be told."""
        while self._wishes:
            self._wishes.pop(0)()
        if self._forming is not None and self._forming.done():
            forming, self._forming = self._forming, None
            self._formed(forming)
        for crew in self.crews:
            if crew.running:
                try:
                    self._poll(crew)
                except GroupLost as error:
                    self._lost(crew, error)
        if self._forming is None:
            self._check_servers()
            self._form_what_is_down()
            self._tell_lead()

    def _formed(self, forming: Future[None]) -> None:
        try:
            forming.result()
        except NoReplacement:
            raise
        except ClusterError as error:
            used = self._used()
            if isinstance(error, GroupFailed):
                _raise_own(error)
            elif not used - alive(self.client, used):
                raise
            self._lost(next(crew for crew in self.crews if crew.down), GroupLost(str(error)))

    def _poll(self, crew: Crew) -> None:
        """Notice that a crew has ended. Raises GroupLost, or the error that one of its ranks raised on purpose."""
        group = crew.group
        assert group is not None
        try:
            if not group.poll():
                return
        except GroupFailed as error:
            _raise_own(error)
            raise GroupLost(f"{error.failure}") from error.failure.exception
        for reports in reversed(group.results()):
            crew.reports |= reports
        crew.ended = True
        group.close()

    def _check_servers(self) -> None:
        """Servers die with their processes, and nobody but us would know."""
        if time.monotonic() - self._checked_at < _ALIVE_EVERY_S:
            return
        self._checked_at = time.monotonic()
        watched = {address for group in self.server_groups if group.up for address in group.where}
        gone = watched - alive(self.client, watched) if watched else set()
        for group in self.server_groups:
            here = sorted(gone & set(group.where))
            if group.up and here:
                self._lost(group, GroupLost(f"server group {group.number}: the process of {', '.join(here)} died"))

    def _tell_lead(self) -> None:
        """Once all others have ended, let the group that tests and saves take in what they have done."""
        lead = self.crews[0]
        if self._lead_told or not lead.running or not all(crew.ended for crew in self.crews[1:]):
            return
        if not set(lead.groups[1:]) <= self.ended:
            return
        self._lead_told = True
        try:
            for group in [*self.server_groups[:-1], *reversed(self.server_groups[:-2])]:
                group.flush()
        except ClusterError as error:
            self.note(f"the last exchange between server groups failed: {error}")
        assert lead.group is not None
        lead.group.tell("others ended", True)

    # What is lost

    def _lost(self, holder: Crew | ServerGroup, error: GroupLost) -> None:
        """Mark what the loss takes along, and have it formed anew, unless that was tried too often."""
        crews, groups = self._affected(holder)
        if self.interrupted:
            self.note(f"{error} The run was being stopped, so it ends here.")
            for crew in crews:
                self._end_at_once(crew)
            return
        holder.restarts += 1
        if holder.restarts > self.max_restarts:
            raise error
        numbers = tuple(number for crew in crews for number in crew.groups)
        step = min((self.steps.get(number, 0) for number in numbers), default=0)
        self.restarts.append(Restart(numbers, step, str(error)))
        for crew in crews:
            crew.down = True
        for group in groups:
            group.lost()
        attempt = f"Restart {holder.restarts} of {self.max_restarts}"
        self.note(f"{error} (step {step}). {attempt}{self._way_out(crews, groups)}.")
        self._lead_told = False

    def _way_out(self, crews: Sequence[Crew], groups: Sequence[ServerGroup]) -> str:
        """Which worker groups are formed anew, and what they go on from."""
        names = "" if self.synchronous else f" of {' and '.join(map(str, crews)) or 'the servers'}"
        if self.server_groups and not groups:
            return f"{names}, from the servers' parameters"
        if any(group.up for group in self.server_groups):
            return f"{names}, from the parameters of a neighbouring server group"
        found = self.newest()
        return f"{names}, from step {found.step if found else 0}"

    def _affected(self, holder: Crew | ServerGroup) -> tuple[list[Crew], list[ServerGroup]]:
        """Every crew and server group that cannot go on: what is in lost processes, or in processes that are replaced
        because a crew of several processes is formed anew; the crews of lost servers."""
        working = [crew for crew in self.crews if not crew.ended]
        if self.synchronous:
            return working, list(self.server_groups)
        used = self._used()
        lost = used - alive(self.client, used)
        crews = [crew for crew in working if crew is holder]
        groups = [group for group in self.server_groups if group is holder]
        while True:
            known = len(crews), len(groups)
            lost |= {address for crew in crews if len(crew.where) > 1 for address in crew.where}
            groups = [g for g in self.server_groups if g in groups or lost & set(g.where)]
            down = {g.number for g in groups}
            crews = [c for c in working if c in crews or down & set(c.server_groups) or lost & set(c.where)]
            if (len(crews), len(groups)) == known:
                return crews, groups

    def _end_at_once(self, crew: Crew) -> None:
        crew.ended, crew.down = True, False
        if crew.group is not None:
            crew.group.abort("the run is being stopped")

    # Forming

    def _plan(self) -> None:
        """Decide which Dask workers hold what."""
        topology = self.topology
        self.note(f"forming {_groups_of(topology.nworker_groups)} of {topology.nworkers_per_group} on Dask workers")
        placement = place(topology, wait_workers(self.client, topology.nprocesses, self.patience_s))
        self._cores = dict(placement.cores)
        held = max(1, topology.nworkers_per_procs // topology.nworkers_per_group)
        for first in range(0, topology.nworker_groups, held):
            numbers = tuple(range(first, first + held))
            where = list(dict.fromkeys(address for g in numbers for address in placement.workers[g]))
            self.crews.append(Crew(numbers, where, tuple(topology.server_group_of(g) for g in numbers)))
        if not topology.private_servers:
            self.server_groups = [ServerGroup(i, where) for i, where in enumerate(placement.servers)]

    def _form_what_is_down(self) -> None:
        crews = [crew for crew in self.crews if crew.down]
        groups = [group for group in self.server_groups if not group.up]
        if crews or groups:
            self._forming = self._jobs.submit(self._bring_up, crews, groups)

    def _bring_up(self, crews: Sequence[Crew], groups: Sequence[ServerGroup]) -> None:
        """Form crews and make server groups, from a neighbour's or the newest checkpoint's parameters."""
        for crew in crews:
            if crew.group is not None:
                crew.group.abort("it is formed anew")
                crew.group.close()
                crew.group = None
        for group in groups:
            group.stop()
        self._replace_lost(crews, groups)
        fresh = not any(group.up for group in self.server_groups)
        found = self.newest() if fresh else None
        if fresh and any(crew.generation for crew in crews):
            self.rewound([n for crew in crews for n in crew.groups], found.step if found else None)
        for crew in crews:
            if fresh:
                crew.resume = found.path if found else None
            self._form(crew, [self._group_plan(crew, number, found, fresh) for number in crew.groups])
        self._make_servers(groups, fresh)
        for crew in crews:
            assert crew.group is not None
            if self.server_groups:
                crew.group.tell("servers", {s: self.server_groups[s].addresses for s in crew.server_groups})
            if self.interrupted:
                crew.group.stop()
            crew.down = False

    def _form(self, crew: Crew, groups: Sequence[GroupPlan]) -> None:
        crew.generation += 1
        plan = CrewPlan(
            worker=self.worker_plan,
            groups=tuple(groups),
            cores=tuple(self._cores.get(address, 1) for address in crew.where),
            nworkers_per_group=self.topology.nworkers_per_group,
            per_process=self.topology.nworkers_per_procs,
            server_groups=crew.server_groups if self.server_groups else None,
        )
        name = f"train-{self.prepared.job.name}"
        group = form_group(
            self.client,
            crew.where,
            on_dask_worker,
            plan,
            self.topic,
            comm_timeout_s=self.patience_s,
            name=name,
        )
        self._moved(dict(zip(crew.where, group.addresses, strict=True)))
        crew.group = group

    def _group_plan(self, crew: Crew, number: int, found: Found | None, fresh: bool) -> GroupPlan:
        served = () if crew.joined else self.topology.worker_groups_of(self.topology.server_group_of(number))
        first = self.steps.get(number, 0)
        if fresh:
            first = found.step if found else 0
        elif crew.joined and crew.generation == 0:
            first = max(self.steps.values(), default=0)
        return GroupPlan(
            number=number,
            generation=crew.generation + 1,
            # Servers that have parameters already ignore it.
            puts=number in served[:1],
            resume=crew.resume,
            first=first,
        )

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
        cut = self.prepared.partition
        return [
            server_plan(
                self.prepared.job, self.prepared.entries, cut.of_server(i), "", group.number, accounts=accounts
            )
            for i in range(len(group.where))
        ]

    def _neighbours(self, group: ServerGroup) -> list[ServerGroup]:
        return [g for g in self.server_groups if abs(g.number - group.number) == 1]

    # Processes

    def _used(self) -> set[str]:
        crews = {address for crew in self.crews if not crew.ended for address in crew.where}
        return crews | {address for group in self.server_groups for address in group.where}

    def _free(self) -> list[WorkerInfo]:
        used = self._used()
        return [info for info in probe(self.client) if info.address not in used]

    def _replace_lost(self, crews: Sequence[Crew], groups: Sequence[ServerGroup]) -> None:
        """Put free Dask workers in the place of those that are gone; their nannies bring them back, elsewhere."""
        deadline = time.monotonic() + self.patience_s
        while True:
            there = [info.address for info in answering(self.client)[0]]
            lost = sorted({address for where in _places(crews, groups) for address in where}.difference(there))
            if not lost:
                return
            used = self._used()
            free = [address for address in there if address not in used]
            if len(free) >= len(lost):
                self._moved(dict(zip(lost, free, strict=False)))
                return
            if time.monotonic() > deadline:
                raise NoReplacement(
                    f"{len(lost)} Dask workers were lost ({', '.join(lost)}) and only {len(free)} free ones are there "
                    f"after {self.patience_s:g} s. Start more."
                )
            time.sleep(0.05)

    def _moved(self, moved: Mapping[str, str]) -> None:
        for where in _places(self.crews, self.server_groups):
            where[:] = [moved.get(address, address) for address in where]
        self._cores = {moved.get(address, address): cores for address, cores in self._cores.items()}

    def _close(self) -> None:
        self._jobs.shutdown(wait=True, cancel_futures=True)
        for crew in self.crews:
            if crew.group is not None:
                crew.group.close()
        for group in self.server_groups:
            group.stop()


def _places(crews: Iterable[Crew], groups: Iterable[ServerGroup]) -> list[list[str]]:
    return [crew.where for crew in crews] + [group.where for group in groups]


def _raise_own(error: GroupFailed) -> None:
    """Raise what a rank raised on purpose, or by mistake; return where its group was lost."""
    raised = error.failure.exception
    if raised is None or isinstance(raised, ClusterError):
        return
    raise (raised if isinstance(raised, SingaError) else error) from error.__cause__


def _groups_of(n: int) -> str:
    return f"{n} worker group{'s' if n > 1 else ''}"
