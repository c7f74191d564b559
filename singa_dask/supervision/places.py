"""Which Dask workers members of a run get that lack some. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from singa_dask.supervision.facts import Code, Fact, fact
from singa_dask.supervision.members import Member, Members, ServerGroup, WorkerGroup
from singa_dask.supervision.phases import Phase
from singa_dask.supervision.processes import Processes

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo


_LOOKS = 30  # for free processes, until one that could not be taken in is tried again: about a minute


class _Refused:
    """A free process that a group could not take in. It is tried again after some looks, then after twice as many."""

    def __init__(self) -> None:
        self._next, self._left = _LOOKS, 0

    def again(self) -> None:
        """It could not be taken in."""
        self._left, self._next = self._next, 2 * self._next

    def waits(self) -> bool:
        """Whether this look is too early."""
        self._left -= 1
        return self._left >= 0


class Places:
    """Finds Dask workers for members that are to be formed, and better ones for members that run.

    least: the fewest workers with which a worker group goes on while replacements are missing; None: it waits.
    tell: as RunState.tell. awaits: whether replacements are missing.
    """

    def __init__(
        self,
        members: Members,
        processes: Processes,
        patience_s: float,
        least: int | None,
        tell: Callable[..., None],
    ) -> None:
        self.members, self.processes, self.patience_s, self.least = members, processes, patience_s, least
        self._tell = tell
        self._until: float | None = None  # when replacements must have come
        self._refused: dict[str, _Refused] = {}  # what a group could not take in, by Processes.place

    @property
    def awaits(self) -> bool:
        """Whether replacements are missing."""
        return self._until is not None

    def be_patient(self) -> None:
        """Wait for replacements with full patience again."""
        self._until = None

    def find(
        self, batch: Sequence[Member], there: Sequence[WorkerInfo], at: float, nannies: frozenset[str]
    ) -> tuple[Sequence[Member], dict[str, int], Fact | None]:
        """Replace missing Dask workers by free ones; returns the members of the batch that can be formed now,
        processes to kill, pid by address, that do not answer, and what is missing if it has not come in time. Nannies
        restart lost processes under other addresses. If these have left memory, it waits for them: others may be on
        other machines.
        """
        answer = {info.address for info in there}
        missing = _lost(batch, answer)
        unused = self.processes.free(there, self.members)
        places = self.processes.nearest(missing, unused, _training(batch))
        coming = self.processes.coming(missing, there, nannies)
        late = self._until is not None and at >= self._until
        left = any(member.left for member in batch if isinstance(member, WorkerGroup))
        if len(places) == len(missing) and (late or not (left and coming)):
            self._until = None
            self.members.relocate(batch, places)
            return batch, {}, None
        if part := self._part(batch, there, unused, nannies, late=late):
            if len(part) == len(batch):
                self._until = None
            return part, {}, None
        first, self._until = self._until is None, self._until or at + self.patience_s
        if not late:
            return (), self.processes.stuck(missing, again=first), None
        self._until = None
        lost, after_s = tuple(missing), self.patience_s
        return (), {}, fact(Code.NO_REPLACEMENT, lost=lost, missing=len(lost), free=len(unused), after_s=after_s)

    def least_to_leave_out(self, groups: Sequence[WorkerGroup], there: Sequence[WorkerInfo]) -> list[WorkerGroup]:
        """The worker groups, the last first, without which the processes that answer suffice for those that remain.
        Worker group 0 always remains."""
        answer = {info.address for info in there}
        free = sum(map(self.processes.suits, self.processes.free(there, self.members)))
        stay, out = list(groups), list[WorkerGroup]()
        while stay and stay[-1].number > 0 and (not out or len(_lost(stay, answer)) > free):
            out.append(stay.pop())
            free += len(answer.intersection(out[-1].where))
        return out

    def _part(
        self,
        batch: Sequence[Member],
        there: Sequence[WorkerInfo],
        free: Sequence[WorkerInfo],
        nannies: frozenset[str],
        *,
        late: bool,
    ) -> list[Member]:
        """The members of the batch that need not wait for the others, with free processes in the place of lost ones.
        Worker groups for which there are none go on with fewer workers, and servers are co-located in other processes
        of the run."""
        answer, placed = {info.address for info in there}, list[Member]()
        for member in self._independent(batch, late=late):
            lost = _lost([member], answer)
            places = self.processes.nearest(lost, free, _training([member]))
            hosts = self._hosts(member, answer) if isinstance(member, ServerGroup) else []
            rest = [address for address in lost if address not in places]
            coming = self.processes.coming(lost, there, nannies)
            if (coming and not late) or (rest and not (hosts or self._may_shrink(member, rest))):
                continue
            free = [info for info in free if info.address not in places.values()]
            # Others of the batch that were in the same processes, such as the worker beside a server, move along.
            self.members.relocate(batch, places)
            if isinstance(member, ServerGroup):
                if colocated := {rank for rank, address in enumerate(member.where) if address in rest}:
                    self._tell(Code.COLOCATED, member)
                member.colocated |= colocated
                self.members.relocate([member], dict(zip(rest, cycle(hosts), strict=False)))
            elif isinstance(member, WorkerGroup) and rest:
                member.shrunk, member.added = True, ()
                self._resize(member, [a for a in member.where if a not in rest], [*member.lacks, *rest])
            placed.append(member)
        return placed

    def _independent(self, batch: Sequence[Member], *, late: bool) -> list[Member]:
        """Server groups that resume from memory and that running worker groups wait for (late: all that go on), then
        worker groups whose servers, if any, run, and which share no process with others of the batch."""
        waiting = {group.server_group for group in self.members.running()}
        found: list[Member] = [g for g in self.members.returning() if g in batch and (late or g.number in waiting)]
        uses = Counter(address for member in batch for address in set(member.where))
        serving = {group.number for group in self.members.serving()} if self.members.server_groups else {0}
        groups = (group for group in batch if isinstance(group, WorkerGroup) and group.server_group in serving)
        return found + [group for group in groups if all(uses[address] == 1 for address in group.where)]

    def _may_shrink(self, member: Member, lost: Sequence[str]) -> bool:
        """Whether it is a worker group that can go on without these."""
        if not isinstance(member, WorkerGroup) or self.least is None:
            return False
        return len(member.where) - len(lost) >= max(self.least, member.least)

    def _hosts(self, group: ServerGroup, answer: set[str]) -> list[str]:
        """The processes, of those that answer, that can take in servers of a group: those of its other servers, else
        of other server groups that run, else of worker groups that run."""
        others: list[Member] = [other for other in self.members.serving() if other is not group]
        for circle in ([group], others, self.members.running()):
            if found := [a for member in circle for a in dict.fromkeys(member.where) if a in answer]:
                return found
        return []

    @property
    def wanting(self) -> bool:
        """Whether members that run could use more processes."""
        return bool(self.lacks or self._with_guests())

    @property
    def lacks(self) -> int:
        """How many processes worker groups that run could use."""
        return sum(len(group.lacks) for group in self.members.running())

    def better(self, there: Sequence[WorkerInfo]) -> list[Member]:
        """Give free processes to the members that could use them; returns those that got some, to be formed again."""
        unused = sorted(self.processes.free(there, self.members), key=lambda info: info.gpu is not None)
        free, changed = [info.address for info in unused], list[Member]()
        for servers in self._with_guests():
            if own := servers.spread(free, self.members.topology.nservers_per_procs):
                self._tell(Code.OWN_PROCESSES, servers, where=tuple(own))
                changed.append(servers)
        suitable = {info.address for info in unused if self.processes.suits(info)}
        free = [address for address in free if address in suitable and not self._is_refused(address)]
        for group in filter(self._may_grow, self.members.running()):
            if own := free[: len(group.lacks)]:
                free = free[len(own) :]
                group.added = tuple(own)
                lacks = [address for address in group.lacks if address not in own]
                self._resize(group, [*group.where, *own], lacks[: len(group.lacks) - len(own)])
                changed.append(group)
        return changed

    def _may_grow(self, group: WorkerGroup) -> bool:
        """Whether it lacks workers and can be formed again without a loss: its processes, which may have to be started
        anew, have nannies and no server, and what they have in memory is held. At its end it need not grow."""
        others = self.members.worker_groups[1:]
        ends = group.leaving or (group.number == 0 and others and all(o.phase is Phase.ENDED for o in others))
        served = {address for servers in self.members.serving() for address in servers.where}
        nannied = len(self.processes.by_nanny(group.where)) == len(group.where)
        held = bool(self.members.server_groups or group.left)
        return bool(group.lacks and nannied and held and not ends and not served.intersection(group.where))

    def retreat(self, group: WorkerGroup, *, raised: bool) -> Fact | None:
        """Undo the last change of the size of a group that fails before it makes a step; returns what could not be
        done, None if its size had not changed. raised: whether a rank has raised an error of its own."""
        if group.added:
            added, group.added = group.added, ()
            for place in map(self.processes.place, added):
                self._refused.setdefault(place, _Refused()).again()
            self._resize(group, [a for a in group.where if a not in added], [*group.lacks, *added])
            return fact(Code.NOT_TAKEN_IN, group, added=added)
        if not (group.shrunk and raised):
            return None
        group.shrunk, group.least = False, len(group.where) + 1
        used = self.members.used()  # what is lost may have come back with its address, for another member
        group.where = (*group.where, *(f"{a} (lost)" if a in used else a for a in group.lacks))
        group.lacks = ()
        return fact(Code.NOT_SHRUNK, group)

    def _is_refused(self, address: str) -> bool:
        """Whether this free process could not be taken in lately. To be asked once per look."""
        refused = self._refused.get(self.processes.place(address))
        return refused is not None and refused.waits()

    def _resize(self, group: WorkerGroup, where: Sequence[str], lacks: Sequence[str]) -> None:
        group.where, group.lacks = tuple(where), tuple(lacks)
        code = Code.SHRUNK if lacks else Code.COMPLETE
        self._tell(code, group, count=len(where), whole=len(where) + len(lacks))

    def _with_guests(self) -> list[ServerGroup]:
        return [group for group in self.members.serving() if group.colocated]


def _training(members: Iterable[Member]) -> set[str]:
    """The processes of members that have workers."""
    return {address for m in members if isinstance(m, WorkerGroup) for address in m.where}


def _lost(members: Iterable[Member], answer: set[str]) -> list[str]:
    """The processes of members that do not answer."""
    return list(dict.fromkeys(address for m in members for address in m.where if address not in answer))
