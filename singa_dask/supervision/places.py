"""Which Dask workers members of a run get that lack some. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, cycle
from typing import TYPE_CHECKING

from singa_dask.supervision.members import Member, Members, NoReplacement, Phase, ServerGroup, WorkerGroup
from singa_dask.supervision.processes import Processes

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo


class Places:
    """Finds Dask workers for members that are to be formed, and better ones for members that run.

    least: the fewest workers with which the synchronous group goes on while replacements are missing; None: it waits.
    note: tells the user. awaits: whether replacements are missing.
    """

    def __init__(
        self, members: Members, processes: Processes, patience_s: float, least: int | None, note: Callable[[str], None]
    ) -> None:
        self.members, self.processes, self.patience_s, self.least = members, processes, patience_s, least
        self._note = note
        self._until: float | None = None  # when replacements must have come

    @property
    def awaits(self) -> bool:
        """Whether replacements are missing."""
        return self._until is not None

    def be_patient(self) -> None:
        """Wait for replacements with full patience again."""
        self._until = None

    def find(
        self, batch: Sequence[Member], there: Sequence[WorkerInfo], at: float, nannies: frozenset[str]
    ) -> tuple[Sequence[Member], dict[str, int]]:
        """Replace missing Dask workers by free ones; returns the members of the batch that can be formed now, and
        processes to kill, pid by address, that do not answer. Nannies restart lost processes under other addresses. If
        these have left memory, it waits for them: others may be on other machines.

        Raises NoReplacement if replacements have not come in time.
        """
        answer = {info.address for info in there}
        missing = _lost(batch, answer)
        unused = self.processes.free(there, self.members)
        free = self.processes.nearest(missing, unused)
        coming = self.processes.coming(missing, there, nannies)
        late = self._until is not None and at >= self._until
        left = any(member.left for member in batch if isinstance(member, WorkerGroup))
        if len(free) >= len(missing) and (late or not (left and coming)):
            self._until = None
            self.members.relocate(batch, dict(zip(missing, free, strict=False)))
            return batch, {}
        if part := self._part(batch, there, unused, nannies, late=late):
            return part, {}
        first, self._until = self._until is None, self._until or at + self.patience_s
        if late or not coming:
            here = [address for address in batch[0].where if address in answer] + free
            if self.least is not None and len(here) >= self.least:
                self._until = None
                self._resize(batch[0], here)
                return batch, {}
        if not late:
            return (), self.processes.stuck(missing, again=first)
        self._until = None
        raise NoReplacement(
            f"Dask workers were lost ({', '.join(missing)}): {len(missing)} must be replaced, and {len(free)} are "
            f"free after {self.patience_s:g} s. Start more."
        )

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
        Servers for which there are none are guests in other processes of the run."""
        answer, placed = {info.address for info in there}, list[Member]()
        for member in self._independent(batch, late=late):
            lost = _lost([member], answer)
            own = self.processes.nearest(lost, free)[: len(lost)]
            hosts = self._hosts(member, answer) if isinstance(member, ServerGroup) else []
            coming = self.processes.coming(lost, there, nannies)
            if (coming and not late) or (len(own) < len(lost) and not hosts):
                continue
            places = dict(zip(lost, chain(own, cycle(hosts)), strict=False))
            if isinstance(member, ServerGroup):
                if guests := {rank for rank, address in enumerate(member.where) if places.get(address) in hosts}:
                    self._note(f"{member} goes on in other processes of the run until there are free ones")
                member.guests |= guests
            self.members.relocate([member], places)
            free = [info for info in free if info.address not in own]
            placed.append(member)
        return placed

    def _independent(self, batch: Sequence[Member], *, late: bool) -> list[Member]:
        """Server groups that go on from memory and that running worker groups wait for (late: all that go on), then
        worker groups whose servers run, and which share no process with others of the batch."""
        waiting, serving = {group.server_group for group in self.members.running()}, self.members.serving()
        found: list[Member] = [g for g in self.members.returning() if g in batch and (late or g.number in waiting)]
        uses = Counter(address for member in batch for address in set(member.where))
        for group in batch:
            if isinstance(group, WorkerGroup) and all(uses[address] == 1 for address in group.where):
                found += [group for server_group in serving if server_group.number == group.server_group]
        return found

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
        return bool(self._lacks() or self._with_guests())

    def better(self, there: Sequence[WorkerInfo]) -> list[Member]:
        """Give free processes to the members that could use them; returns those that got some, to be formed again."""
        free, changed = [info.address for info in self.processes.free(there, self.members)], list[Member]()
        if (lacks := self._lacks()) and free:
            (group,) = self.members.worker_groups
            self._resize(group, [*group.where, *free[:lacks]])
            changed.append(group)
        for servers in self._with_guests():
            if own := servers.spread(free, self.members.topology.nservers_per_procs):
                self._note(f"{servers} goes on in {', '.join(own)}, which had no work")
                changed.append(servers)
        return changed

    def _resize(self, group: Member, where: Sequence[str]) -> None:
        group.where = tuple(where)
        count, whole = len(group.where), self.members.topology.nworkers_per_group
        size = f"{count} of {whole} workers" if count < whole else f"all {whole} workers"
        self._note(f"{group} goes on with {size}")

    def _lacks(self) -> int:
        """How many workers the synchronous group could take in, if it runs with fewer than it should."""
        (group, *others) = self.members.worker_groups
        if self.least is None or others or group.phase is not Phase.RUNNING:
            return 0
        return self.members.topology.nworkers_per_group - len(group.where)

    def _with_guests(self) -> list[ServerGroup]:
        return [group for group in self.members.serving() if group.guests]


def _lost(members: Iterable[Member], answer: set[str]) -> list[str]:
    """The processes of members that do not answer."""
    return list(dict.fromkeys(address for m in members for address in m.where if address not in answer))
