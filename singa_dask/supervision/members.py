"""The worker groups and server groups of a run: their phases, places and dependencies. No IO."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from singa_dask.job import ClusterTopology
from singa_dask.memory.newest import complete
from singa_dask.supervision.events import ServerGroupRequest, WorkerGroupRequest
from singa_dask.supervision.facts import Cause, Code, Fact, fact
from singa_dask.supervision.phases import Phase, moved
from singa_dask.training.forms import OUTDATED
from singa_dask.training.rank_plan import GroupPlan

if TYPE_CHECKING:
    from singa_dask.cluster.workers import Placement, WorkerInfo
    from singa_dask.memory.owner import Saved
    from singa_dask.training.checkpoint import Found

logger = logging.getLogger(__name__)

_HISTORY = 200  # lines
# Those of one start of a run. The generations of the next start are higher, so that memory has one order.
GENERATIONS = 1_000_000


def is_first(generation: int) -> bool:
    """Whether it is the first generation of a start of a run."""
    return generation % GENERATIONS == 1


@dataclass(frozen=True)
class Restart:
    """A restart, for the record: the worker groups that were re-formed, their step, the cause, and the server groups
    that were repeated. whole: the server groups that resumed from memory, with everything that they had."""

    groups: tuple[int, ...]
    step: int
    cause: Cause
    servers: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()


@dataclass(eq=False)
class Member:
    """A worker group or a server group.

    where: the Dask worker of each worker or server. generation: grows with every attempt to form it, and from one
    start of the run to the next; formed: the last one that succeeded in this start. restarts: how often it was lost
    since its worker groups last were beyond `reached`, the step that they had then.
    """

    where: tuple[str, ...]
    number: int
    phase: Phase = field(default=Phase.DOWN, kw_only=True)
    generation: int = field(default=0, kw_only=True)
    formed: int = field(default=0, kw_only=True)
    restarts: int = field(default=0, kw_only=True)
    reached: int = field(default=-1, kw_only=True)


@dataclass(eq=False)
class WorkerGroup(Member):
    """Workers that share mini-batches.

    server_group: that it uses. cores: of each process, also of those that it lacks. lacks: the lost Dask workers that
    it goes on without. least: the fewest workers with which it can. shrunk, added: until it makes a step with them,
    whether it goes on with fewer workers than before, and the Dask workers that it has taken in. began: the step with
    which it was formed last. given: whether its servers are known to have parameters. resume: checkpoint that its
    servers began with. first: step to begin with where nothing later is known. left: shadows of its lost ranks, from
    which it goes on. joined: it joined a running job; leaving: it was asked to end.
    """

    server_group: int
    cores: tuple[int, ...]
    lacks: tuple[str, ...] = ()
    least: int = 1
    shrunk: bool = False
    added: tuple[str, ...] = ()
    began: int | None = None
    given: bool = False
    resume: tuple[Saved, ...] = ()
    first: int = 0
    left: tuple[Saved, ...] = ()
    joined: bool = False
    leaving: bool = False

    def reached_step(self, step: int) -> None:
        """It has made so many steps."""
        if self.began is None:
            self.began = step
        elif step > self.began:
            self.shrunk, self.added = False, ()

    def __str__(self) -> str:
        return f"worker group {self.number}"


@dataclass(eq=False)
class ServerGroup(Member):
    """The servers that hold one copy of the parameters.

    left: by its lost servers, from which it goes on. colocated: the servers, by rank, that are in a process of other
    members until there is a free one. inherits: whether it was to resume from what an earlier start of the run had
    left. since: the first generation of which memory counts. outdated: the last replica that a server has lost, by
    generation and rank.
    """

    left: tuple[Saved, ...] = ()
    colocated: frozenset[int] = frozenset()
    inherits: bool = False
    since: int = 0
    outdated: dict[tuple[int, int], int] = field(default_factory=dict)

    def current(self, left: Sequence[Saved]) -> bool:
        """Whether servers of this start have left everything that they had acknowledged. Those that never had
        parameters have left nothing."""
        return bool(self.formed or self.inherits) and self.counts(left, max(self.formed, self.since))

    def counts(self, left: Sequence[Saved], since: int) -> bool:
        """Whether it was left by a generation not before `since`, in memory or replicas that are not outdated."""
        return bool(complete(left, since=since, outdated=self.outdated))

    def spread(self, free: list[str], together: int) -> list[str]:
        """Put co-located servers into free processes, so many together, and take these off the list; returns them."""
        colocated, own = sorted(self.colocated), free[: -(-len(self.colocated) // together)]
        del free[: len(own)]
        places = {rank: own[i // together] for i, rank in enumerate(colocated[: len(own) * together])}
        self.where = tuple(places.get(rank, address) for rank, address in enumerate(self.where))
        self.colocated -= places.keys()
        return own

    def __str__(self) -> str:
        return f"server group {self.number}"


@dataclass(frozen=True)
class MemberLoss:
    """A loss that waits for a status request.

    cause: an exception ends the run, unless a process is silent. refused: a newcomer failed, and is not brought back.
    """

    member: Member
    cause: Cause
    refused: bool = False


class Members:
    """All worker groups and server groups of a run, by number.

    starts: how many starts of the run there were before this one. history: what happened to the groups, the latest
    last.
    """

    def __init__(
        self,
        topology: ClusterTopology,
        worker_groups: Iterable[WorkerGroup],
        server_groups: Iterable[ServerGroup],
        starts: int = 0,
    ) -> None:
        self.topology, self.worker_groups, self.server_groups = topology, list(worker_groups), list(server_groups)
        self.before = starts * GENERATIONS
        for member in self.all():
            member.generation = self.before
        self.history: deque[str] = deque(maxlen=_HISTORY)

    @classmethod
    def placed(cls, topology: ClusterTopology, placement: Placement, starts: int = 0) -> Members:
        """Those of a job before its start, on the Dask workers that the placement names."""
        workers = [
            WorkerGroup(where, i, topology.server_group_of(i), tuple(placement.cores[address] for address in where))
            for i, where in enumerate(placement.workers)
        ]
        servers = () if topology.in_process_servers else placement.servers
        return cls(topology, workers, [ServerGroup(where, i) for i, where in enumerate(servers)], starts)

    @property
    def synchronous(self) -> bool:
        """Whether there is one worker group only."""
        return self.topology.nworker_groups == 1

    def all(self) -> list[Member]:
        """Worker groups, then server groups."""
        return [*self.worker_groups, *self.server_groups]

    def running(self) -> list[WorkerGroup]:
        """The worker groups that run."""
        return [group for group in self.worker_groups if group.phase is Phase.RUNNING]

    def serving(self) -> list[ServerGroup]:
        """The server groups that run."""
        return [group for group in self.server_groups if group.phase is Phase.RUNNING]

    def working(self) -> list[WorkerGroup]:
        """The worker groups that have not ended, and are not dropped."""
        return [group for group in self.worker_groups if group.phase not in (Phase.DROPPED, Phase.ENDED)]

    def used(self, but: Phase = Phase.ENDED) -> set[str]:
        """The Dask workers that members are on, without those in the phase `but`."""
        return {a for m in self.all() if m.phase not in (Phase.ENDED, but) for a in m.where}

    def move(self, member: Member, what: str) -> None:
        """Make the transition that `what` means."""
        before, member.phase = member.phase, moved(member.phase, what)
        self.record(f"{member} on {', '.join(member.where)}: {what}: {before.value} -> {member.phase.value}")

    def add(self, workers: Sequence[WorkerInfo], first: int) -> WorkerGroup:
        """One more worker group, on these Dask workers; it begins with the step `first`."""
        number, where = len(self.worker_groups), tuple(info.address for info in workers)
        cores = tuple(max(1, info.cores // (1 + len(self.used()))) for info in workers)
        group = WorkerGroup(where, number, number % self.topology.nserver_groups, cores, first=first, joined=True)
        group.generation = self.before
        self.worker_groups.append(group)
        return group

    def made(self, number: int, step: int) -> None:
        """A worker group has made so many steps, so its servers have parameters."""
        group = self.worker_groups[number]
        group.reached_step(step)
        if group.phase is Phase.RUNNING:  # else this is late news of servers that are lost
            for other in self.worker_groups:
                other.given = other.given or other.server_group == group.server_group

    def found_left(self, left: Mapping[str, tuple[Saved, ...]]) -> None:
        """What lost processes have left in memory, by the group's name: members continue from it if it counts."""
        for group in self.worker_groups:
            group.left = left.get(str(group), ())
        for servers in self.server_groups:
            saved = left.get(str(servers), ())
            servers.left = saved if servers.current(saved) else ()

    def relocate(self, members: Iterable[Member], moved: Mapping[str, str]) -> None:
        """Put members elsewhere: old address -> new one."""
        for member in members:
            member.where = tuple(moved.get(address, address) for address in member.where)
            if isinstance(member, WorkerGroup):
                member.added = tuple(moved.get(address, address) for address in member.added)
        if moved:
            self.record(f"moved: {dict(moved)}")

    def recall(self, told: Iterable[Mapping[str, Any]]) -> None:
        """Know the outdated replicas that earlier drivers have recorded. told: events of the run."""
        for lost in told:
            if lost["event"] == OUTDATED and lost["server_group"] < len(self.server_groups):
                outdated = self.server_groups[lost["server_group"]].outdated
                outdated[lost["generation"], lost["rank"]] = lost["replica"]

    def record(self, line: str) -> None:
        """Add a line to the history."""
        self.history.append(line)
        logger.debug("%s", line)

    def affected(self, member: Member, silent: set[str]) -> tuple[list[WorkerGroup], list[ServerGroup]]:
        """Every worker group and server group that cannot go on after the loss of a member.

        These are: members in silent processes; members in the processes of a lost worker group that has several, as
        all of them are replaced; worker groups of lost servers that have left nothing in memory.
        """
        standing = (Phase.DOWN, Phase.RUNNING, Phase.LOST)
        working = [group for group in self.worker_groups if group.phase in standing]
        serving = [group for group in self.server_groups if group.phase in standing]
        if not self.server_groups:
            return working, serving
        lost = set(silent)
        workers = [group for group in working if group is member]
        servers = [group for group in serving if group is member]
        while True:
            known = len(workers), len(servers)
            lost |= {address for group in workers if len(group.where) > 1 for address in group.where}
            servers = [g for g in serving if g in servers or lost & set(g.where)]
            down = {g.number for g in servers if not g.left}
            workers = [g for g in working if g in workers or g.server_group in down or lost & set(g.where)]
            if (len(workers), len(servers)) == known:
                return workers, servers

    def way_out(self, workers: Sequence[WorkerGroup], servers: Sequence[ServerGroup], found: Found | None) -> Fact:
        """What members that are formed again continue from. found: the newest checkpoint."""
        if servers and all(group.left for group in servers):
            return fact(Code.WITH_EVERYTHING)
        up = self.serving()
        if self.server_groups and not servers and all(self.server_groups[g.server_group] in up for g in workers):
            return fact(Code.FROM_SERVERS)
        if up or any(group.left for group in servers):
            return fact(Code.FROM_NEIGHBOUR)
        if all(group.left for group in workers):
            return fact(Code.FROM_RANKS)
        in_memory = found is not None and found.in_memory
        source = Code.FROM_CHECKPOINT_IN_MEMORY if in_memory else Code.FROM_CHECKPOINT
        return fact(source, step=found.step if found else 0)

    def returning(self) -> list[ServerGroup]:
        """The server groups that are down, and resume from what they have left."""
        return [group for group in self.server_groups if group.phase is Phase.DOWN and group.left]

    def stranded(self) -> list[WorkerGroup]:
        """The worker groups that run, though their servers are gone for good."""
        gone = (Phase.DOWN, Phase.DROPPED, Phase.ENDED)
        lost = {g.number for g in self.server_groups if g.phase in gone and g not in self.returning()}
        return [group for group in self.running() if group.server_group in lost]

    # Forming

    def batch(self, dispensable: Callable[[WorkerGroup], bool]) -> list[Member]:
        """What is formed next. A dispensable worker group comes alone: what it lacks must not hurt others.

        If no server group runs or returns, those without a worker group that gives them parameters come later: they
        take over a neighbour's. Worker groups that give parameters are not dispensable.
        """
        down = [group for group in self.worker_groups if group.phase is Phase.DOWN]
        servers, giving = [group for group in self.server_groups if group.phase is Phase.DOWN], set[int]()
        if not self.serving() and not self.returning():
            servers = [group for group in servers if self.coming(group.number)]
            giving = {self.coming(group.number)[0] for group in servers}
        needed = [group for group in down if group.number in giving or not dispensable(group)]
        return [*needed, *servers] or [*down[:1]]

    def cut_off(self) -> list[Member]:
        """The members that wait for places in vain, as server groups beside them were dropped: server groups that have
        no way to a neighbour's parameters, and their worker groups."""
        serving = [*self.serving(), *self.returning()]
        begun = {g.number for g in self.server_groups if g in serving or (not serving and self.coming(g.number))}
        while True:
            near = {n for number in begun for n in (number - 1, number + 1)}
            waiting = [g for g in self.server_groups if g.phase is Phase.DOWN and g.number not in begun]
            if not (more := {group.number for group in waiting if group.number in near}):
                break
            begun |= more
        lost = {group.number for group in waiting}
        return [*waiting, *(g for g in self.worker_groups if g.phase is Phase.DOWN and g.server_group in lost)]

    def coming(self, server_group: int) -> tuple[int, ...]:
        """The worker groups, not yet at their end, that use a server group: founders first."""
        users = [group for group in self.working() if group.server_group == server_group]
        return tuple(group.number for group in sorted(users, key=lambda group: group.joined))

    def worker_group_request(
        self,
        group: WorkerGroup,
        steps: Mapping[int, int],
        nannies: tuple[tuple[str, str], ...],
        gpus: tuple[int | None, ...],
        *,
        fresh: bool,
    ) -> WorkerGroupRequest:
        """What the launcher must know of a worker group. nannies, gpus: as in GroupPlan. fresh: servers have no
        parameters yet."""
        plan = GroupPlan(
            number=group.number,
            generation=group.generation,
            # Servers that have parameters already ignore it.
            puts=(fresh or not (group.joined or group.given)) and self.coming(group.server_group)[0] == group.number,
            resume=group.resume,
            first=group.first if fresh else steps.get(group.number, group.first),
            fresh=fresh,
            in_process_servers=self.topology.in_process_servers,
            cores=group.cores[: len(group.where)],
            left=group.left if fresh else (),
            nannies=nannies,
            gpus=gpus,
        )
        return WorkerGroupRequest(plan, group.where, group.server_group, grows=bool(group.added))

    def server_group_request(
        self, group: ServerGroup, also: tuple[str, ...], replicas: tuple[str, ...], *, fresh: bool, returns: bool
    ) -> ServerGroupRequest:
        """What the launcher must know of a server group. also, replicas: as in ServerGroupRequest. returns: whether it
        resumes from what it has left."""
        pairs = {"left": (group.number - 1, group.number), "right": (group.number, group.number + 1)}
        sides = {side: p for side, p in pairs.items() if p[0] >= 0 and p[1] < len(self.server_groups)}
        return ServerGroupRequest(
            number=group.number,
            where=group.where,
            generation=group.generation,
            groups=self.coming(group.number),
            accounts={
                side: (self.server_groups[left].generation, self.server_groups[right].generation)
                for side, (left, right) in sides.items()
                if fresh
            },
            sides=tuple(sides),
            also=also,
            replicas=replicas,
            left=group.left if returns else (),
        )
