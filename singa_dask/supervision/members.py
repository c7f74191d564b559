"""The gangs and server groups of a run: where each stands, where its processes are, who depends on whom. No IO."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from singa_dask.errors import ClusterError
from singa_dask.job import ClusterTopology
from singa_dask.supervision.events import GangRequest, ServerRequest

if TYPE_CHECKING:
    from singa_dask.cluster import Placement, WorkerInfo

logger = logging.getLogger(__name__)

_HISTORY = 200  # lines


class GroupLost(ClusterError):
    """A process of the run died or went silent; re-forming its groups may recover."""


class NoReplacement(ClusterError):
    """Nothing can take the place of a process that was lost."""


@dataclass(frozen=True)
class Restart:
    """For the record: which worker groups were formed anew, why, and near which step."""

    groups: tuple[int, ...]
    step: int
    cause: str


class Phase(Enum):
    """Where a gang or a server group stands. Its processes are in use unless it has ENDED."""

    DOWN = "down"  # waits for places
    FORMING = "forming"  # the launcher has it
    RUNNING = "running"  # is watched
    LOST = "lost"  # waits for a survey, which says what else is lost
    CLOSING = "closing"  # what is left of it is being closed
    DROPPED = "dropped"  # the same, for good
    ENDED = "ended"


TRANSITIONS = {
    (Phase.DOWN, "form"): Phase.FORMING,
    (Phase.FORMING, "formed"): Phase.RUNNING,
    (Phase.FORMING, "not formed"): Phase.DOWN,
    (Phase.FORMING, "lost"): Phase.LOST,
    (Phase.RUNNING, "lost"): Phase.LOST,
    (Phase.RUNNING, "ended"): Phase.ENDED,
    (Phase.LOST, "take down"): Phase.CLOSING,
    (Phase.RUNNING, "take down"): Phase.CLOSING,
    (Phase.DOWN, "take down"): Phase.CLOSING,
    (Phase.CLOSING, "closed"): Phase.DOWN,
    (Phase.LOST, "drop"): Phase.DROPPED,
    (Phase.RUNNING, "drop"): Phase.DROPPED,
    (Phase.DOWN, "drop"): Phase.DROPPED,
    (Phase.DROPPED, "closed"): Phase.ENDED,
}


@dataclass(eq=False)
class Member:
    """What gangs and server groups have in common.

    where: the Dask worker of each process, or server. generation: grows whenever it is formed. restarts: how often it
    was lost.
    """

    where: tuple[str, ...]
    phase: Phase = field(default=Phase.DOWN, kw_only=True)
    generation: int = field(default=0, kw_only=True)
    restarts: int = field(default=0, kw_only=True)


@dataclass(eq=False)
class Gang(Member):
    """The worker groups that share processes: one, unless nworkers_per_procs says otherwise.

    cores: of each process. server_groups: of each worker group. resume: checkpoint that its servers began with. first:
    step to begin with where nothing later is known. joined: it came to a running job; leaving: it was asked to end.
    """

    groups: tuple[int, ...]
    server_groups: tuple[int, ...]
    cores: tuple[int, ...]
    resume: Path | None = None
    first: int = 0
    joined: bool = False
    leaving: bool = False

    @property
    def number(self) -> int:
        """Its name in events and commands."""
        return self.groups[0]

    def __str__(self) -> str:
        return f"worker group {'+'.join(map(str, self.groups))}"


@dataclass(eq=False)
class ServerGroup(Member):
    """The servers that hold one copy of the parameters."""

    number: int

    def __str__(self) -> str:
        return f"server group {self.number}"


@dataclass(frozen=True)
class Loss:
    """A loss that waits for a survey.

    refused: a newcomer failed, and is not brought back. unless_all_answer: it is a loss only if a process is silent;
    otherwise `error` ends the run.
    """

    member: Member
    error: Exception
    refused: bool = False
    unless_all_answer: bool = False


class Members:
    """All gangs and server groups of a run. history: what happened to them, the latest last."""

    def __init__(self, topology: ClusterTopology, gangs: Iterable[Gang], server_groups: Iterable[ServerGroup]) -> None:
        self.topology, self.gangs, self.server_groups = topology, list(gangs), list(server_groups)
        self.history: deque[str] = deque(maxlen=_HISTORY)

    @classmethod
    def placed(cls, topology: ClusterTopology, placement: Placement) -> Members:
        """Those of a job before its start, on the Dask workers that the placement names."""
        gangs = []
        for number, where in enumerate(placement.workers):
            cores = tuple(placement.cores[address] for address in where)
            gangs.append(Gang(where, (number,), (topology.server_group_of(number),), cores))
        servers = () if topology.private_servers else placement.servers
        return cls(topology, gangs, [ServerGroup(where, i) for i, where in enumerate(servers)])

    @property
    def synchronous(self) -> bool:
        """Whether there is one worker group only, which then goes back to a checkpoint when it is lost."""
        return self.topology.nworker_groups == 1

    def all(self) -> list[Member]:
        """Gangs, then server groups."""
        return [*self.gangs, *self.server_groups]

    def running(self) -> list[Gang]:
        """The gangs that run."""
        return [gang for gang in self.gangs if gang.phase is Phase.RUNNING]

    def serving(self) -> list[ServerGroup]:
        """The server groups that run."""
        return [group for group in self.server_groups if group.phase is Phase.RUNNING]

    def with_group(self, number: int) -> Gang | None:
        """The gang of a worker group, None if it has none any more."""
        over = (Phase.DROPPED, Phase.ENDED)
        return next((gang for gang in self.gangs if number in gang.groups and gang.phase not in over), None)

    def used(self, but: Phase = Phase.ENDED) -> set[str]:
        """The Dask workers that members are on, without those in the phase `but`."""
        return {a for m in self.all() if m.phase not in (Phase.ENDED, but) for a in m.where}

    def move(self, member: Member, what: str) -> None:
        """Make the transition that `what` means. Raises KeyError where TRANSITIONS has none."""
        before, member.phase = member.phase, TRANSITIONS[member.phase, what]
        self.record(f"{member} on {', '.join(member.where)}: {what}: {before.value} -> {member.phase.value}")

    def add(self, workers: Sequence[WorkerInfo], first: int) -> Gang:
        """One more gang, of one worker group, on these Dask workers; it begins with the step `first`."""
        number = 1 + max(number for gang in self.gangs for number in gang.groups)
        cores = tuple(max(1, info.cores // (1 + len(self.used()))) for info in workers)
        where, used = tuple(info.address for info in workers), (number % self.topology.nserver_groups,)
        gang = Gang(where, (number,), used, cores, first=first, joined=True)
        self.gangs.append(gang)
        return gang

    def relocate(self, members: Iterable[Member], moved: Mapping[str, str]) -> None:
        """Put members elsewhere: old address -> new one."""
        for member in members:
            member.where = tuple(moved.get(address, address) for address in member.where)
        if moved:
            self.record(f"moved: {dict(moved)}")

    def record(self, line: str) -> None:
        """Add a line to the history."""
        self.history.append(line)
        logger.debug("%s", line)

    def affected(self, member: Member, silent: set[str]) -> tuple[list[Gang], list[ServerGroup]]:
        """Every gang and server group that cannot go on after the loss of a member.

        They are in silent processes, or in processes that are replaced because a gang of several processes is formed
        anew, or they are the gangs of lost servers.
        """
        standing = (Phase.DOWN, Phase.RUNNING, Phase.LOST)
        working = [gang for gang in self.gangs if gang.phase in standing]
        serving = [group for group in self.server_groups if group.phase in standing]
        if self.synchronous:
            return working, serving
        lost = set(silent)
        gangs = [gang for gang in working if gang is member]
        groups = [group for group in serving if group is member]
        while True:
            known = len(gangs), len(groups)
            lost |= {address for gang in gangs if len(gang.where) > 1 for address in gang.where}
            groups = [g for g in serving if g in groups or lost & set(g.where)]
            down = {g.number for g in groups}
            gangs = [c for c in working if c in gangs or down & set(c.server_groups) or lost & set(c.where)]
            if (len(gangs), len(groups)) == known:
                return gangs, groups

    # What is formed

    def batch(self, dispensable: Callable[[Gang], bool]) -> list[Member]:
        """What is formed next. A dispensable gang comes alone: what it lacks must not hurt others."""
        down = [gang for gang in self.gangs if gang.phase is Phase.DOWN]
        needed = [gang for gang in down if not dispensable(gang)]
        groups = [group for group in self.server_groups if group.phase is Phase.DOWN]
        return [*needed, *groups] or [*down[:1]]

    def coming(self, server_group: int) -> tuple[int, ...]:
        """The worker groups, not yet at their end, that use a server group: founders first."""
        over = (Phase.DROPPED, Phase.ENDED)
        working = sorted((gang for gang in self.gangs if gang.phase not in over), key=lambda gang: gang.joined)
        pairs = [pair for gang in working for pair in zip(gang.groups, gang.server_groups, strict=True)]
        return tuple(number for number, used in pairs if used == server_group)

    def gang_request(self, gang: Gang, steps: Mapping[int, int], *, fresh: bool) -> GangRequest:
        """What the launcher must know of a gang. fresh: servers have no parameters yet."""
        pairs = list(zip(gang.groups, gang.server_groups, strict=True))
        return GangRequest(
            number=gang.number,
            groups=gang.groups,
            server_groups=gang.server_groups,
            where=gang.where,
            cores=gang.cores,
            generation=gang.generation,
            # Servers that have parameters already ignore it.
            puts=tuple(not gang.joined and self.coming(used)[0] == number for number, used in pairs),
            first=tuple(gang.first if fresh else steps.get(number, gang.first) for number in gang.groups),
            resume=gang.resume,
        )

    def server_request(self, group: ServerGroup, *, fresh: bool) -> ServerRequest:
        """What the launcher must know of a server group."""
        pairs = {"left": (group.number - 1, group.number), "right": (group.number, group.number + 1)}
        return ServerRequest(
            number=group.number,
            where=group.where,
            generation=group.generation,
            groups=self.coming(group.number),
            accounts={
                side: (self.server_groups[left].generation, self.server_groups[right].generation)
                for side, (left, right) in pairs.items()
                if fresh and left >= 0 and right < len(self.server_groups)
            },
        )
