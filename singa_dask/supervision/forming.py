"""What is formed next, where, and from what; who joins. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from singa_dask.server.ledger import Ledger
from singa_dask.supervision import events as ev
from singa_dask.supervision.facts import Code, Fact, fact
from singa_dask.supervision.losing import Losing
from singa_dask.supervision.members import Member, Restart, ServerGroup, WorkerGroup, is_first
from singa_dask.supervision.phases import CheckpointSearch, Phase
from singa_dask.supervision.places import Places
from singa_dask.supervision.run_state import RunState

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo


class Forming:
    """The members of a run that are formed. askers: of a worker group that wants to join."""

    def __init__(self, run: RunState, places: Places, losing: Losing) -> None:
        self.run, self.members, self.processes = run, run.members, run.processes
        self.places, self.losing = places, losing
        self.askers: list[Any] = []
        self._requests = 0
        self._not_inherited: Fact | None = None
        self._begun_anew = False

    # Events

    def answered(self, event: ev.Formed | ev.NotFormed) -> None:
        """A request has been carried out, or has failed."""
        request, members = self.run.request, [m for m in self.members.all() if m.phase is Phase.FORMING]
        if not isinstance(request, ev.FormRequest) or request.number != event.request:
            return
        self.run.answered()
        self.members.relocate(members, event.moved)
        self.processes.moved(event.moved)
        if isinstance(event, ev.NotFormed):
            return self.losing.not_formed(members, event)
        self.processes.pids.update(event.pids)
        for number in event.unkept:
            self.run.tell(Code.UNKEPT, self.members.server_groups[number])
        made = [group for group in request.server_groups if is_first(group.generation)]
        if self.members.topology.server_replicas is None and any(any(group.replicas) for group in made):
            self.run.tell(Code.REPLICATED)
        if self.members.before and made:
            self.run.do(ev.LetEarlierGo(self.processes.nannies))
        for member in members:
            self.members.move(member, "formed")
            member.formed = member.generation
            if isinstance(member, WorkerGroup):
                member.began = None
                if member.number == 0:
                    self.run.lead.move("formed")
                if self.run.stopping or member.leaving:
                    self.run.do(ev.Stop(member.number))

    def join(self, asker: Any) -> None:
        """Somebody wants one more worker group."""
        if self.members.synchronous or self.run.stopping:
            refusal = Code.SYNCHRONOUS if self.members.synchronous else Code.ENDING
            return self.run.do(ev.Reply(asker, fact(refusal)))
        self.askers.append(asker)
        self.run.status.move("outdate")

    def refuse(self) -> None:
        """Nobody joins any more."""
        while self.askers:
            self.run.do(ev.Reply(self.askers.pop(), fact(Code.ENDING)))

    # Decisions on a status request

    def inherit(self, left: Mapping[str, tuple[Any, ...]], inherited: ev.Inherited) -> None:
        """Have servers continue from what those of an earlier start have left, unless the newest checkpoint contains
        more updates; or say why not. A group of which something is missing takes over a neighbour's parameters."""
        if self._begun_anew:  # the record says so: what an earlier start has left later counts no more
            return
        found, why = self.run.found, None
        groups = [g for g in self.members.server_groups if str(g) in inherited.ledgers and g.counts(left[str(g)], 0)]
        contained = Ledger.joint(inherited.ledgers[str(group)] for group in groups)
        if not inherited.fits:
            why = fact(Code.MISFIT)
        elif not groups:
            why = fact(Code.TORN, torn=inherited.torn) if inherited.torn else fact(Code.GONE)
        elif found is not None and contained.updates < found.ledger.updates:
            why = fact(Code.FEWER)
        for group in groups if why is None else ():
            group.left = left[str(group)]
        if why and why != self._not_inherited:
            self.run.tell(Code.NOT_TAKEN_OVER, cause=why, step=found.step if found else 0)
        self._not_inherited = why

    def place(self, there: Sequence[WorkerInfo], at: float, nannies: frozenset[str]) -> None:
        """Have what is down formed, as far as it has Dask workers."""
        batch = self.members.batch(self.run.dispensable)
        unknown = self.run.checkpoint.phase is not CheckpointSearch.KNOWN
        if not batch or (unknown and not self.members.serving()):
            return
        placed, stuck, lack = self.places.find(batch, there, at, nannies)
        if lack is not None:
            self._not_placed(batch, lack, there)
        elif placed:
            self._form(placed)
        else:
            self.losing.kill(stuck)

    def _not_placed(self, batch: Sequence[Member], lack: Fact, there: Sequence[WorkerInfo]) -> None:
        """Go on without what has no Dask workers if the run can, else end it."""
        first, last = batch[0], batch[-1]
        groups = [member for member in batch if isinstance(member, WorkerGroup)]
        if isinstance(first, WorkerGroup) and self.run.dispensable(first):
            self.run.drop(first, Code.NOT_JOINED, lack)
        elif self.members.running() and groups == batch and last.number > 0:
            # All that wait may hold back the others, newcomers too: no further wait for what cannot come.
            down = [group for group in self.members.worker_groups if group.phase is Phase.DOWN]
            for group in self.places.least_to_leave_out(down, there):
                self.run.drop(group, Code.LEFT_OUT, lack)
        elif self.run.stopping and not groups:
            for member in batch:
                self.run.drop(member, Code.NOT_BACK, lack)
        else:
            self.run.end(lack)

    def improve(self, there: Sequence[WorkerInfo]) -> None:
        """Form members again, which have lost nothing, if there are Dask workers that they lack."""
        for member in self.places.better(there):
            self.members.move(member, "take down")
            if member is self.members.worker_groups[0]:
                self.run.lead.move("restart")
            self.run.changed()

    def answer_askers(self, there: Sequence[WorkerInfo]) -> None:
        """Take in those who want to join, on free Dask workers."""
        while self.askers:
            self.run.do(ev.Reply(self.askers.pop(0), self._newcomer(there)))

    def _newcomer(self, there: Sequence[WorkerInfo]) -> Fact:
        """Take in one more worker group on free Dask workers, if they suffice; returns what to answer."""
        needed = self.members.topology.nworkers_per_group
        lost = self.members.used(but=Phase.FORMING) - {info.address for info in there}
        unused = [info for info in self.processes.free(there, self.members) if self.processes.suits(info)]
        free = unused[len(lost) + self.places.lacks :]  # replacements come first
        if len(free) < needed:
            return fact(Code.TOO_FEW_FREE, needed=needed, there=len(free))
        group = self.members.add(free[:needed], first=max(self.run.steps.values(), default=0))
        return fact(Code.JOINS, group, where=group.where)

    # Requests

    def _form(self, batch: Sequence[Member]) -> None:
        workers = [member for member in batch if isinstance(member, WorkerGroup)]
        servers = [member for member in batch if isinstance(member, ServerGroup)]
        returning = self.members.returning()
        fresh = not (self.members.serving() or returning)
        if fresh:
            self._begun_anew = True
            self._begin_anew(workers)
        if any(not group.formed and not group.inherits for group in returning):
            self._take_over(workers, servers)
        for member in batch:
            self.members.move(member, "form")
            member.generation += 1
        self._requests += 1
        used = self.members.used()
        worker_groups = tuple(
            self.members.worker_group_request(
                group,
                self.run.steps,
                self._keeps_checkpoint(group, used),
                self.processes.gpus_of(group.where),
                fresh=fresh,
            )
            for group in workers
        )
        server_groups = tuple(
            self.members.server_group_request(
                group,
                tuple(self.processes.also(address, used) for address in group.where),
                tuple(self.run.keeps_replica(group, rank) for rank in range(len(group.where))),
                fresh=fresh,
                returns=group in returning,
            )
            for group in servers
        )
        self.run.begin("form", ev.FormRequest(self._requests, worker_groups, server_groups, fresh))

    def _begin_anew(self, workers: Sequence[WorkerGroup]) -> None:
        """Have worker groups begin with what they have left, which tells them where, or with the newest checkpoint."""
        found, anew = self.run.found, not all(group.left for group in workers)
        if anew and any(group.generation for group in workers):
            numbers = tuple(group.number for group in workers)
            self.run.steps |= dict.fromkeys(numbers, found.step if found else 0)
            self.run.do(ev.Rewind(numbers, found.step if found else None))
        if anew and found and found.in_memory and not any(member.formed for member in self.members.all()):
            self.run.tell(Code.BEGINS_IN_MEMORY, step=found.step)
        for group in workers:
            group.resume, group.first = (found.copies, found.step) if found else ((), 0)
            group.given = False

    def _take_over(self, workers: Sequence[WorkerGroup], servers: Sequence[ServerGroup]) -> None:
        """Record that servers continue from what those of an earlier start of the run have left."""
        returning = [group for group in servers if group.left]
        for group in returning:
            group.inherits = True
        numbers = tuple(group.number for group in workers)
        anew = tuple(group.number for group in servers if group not in returning)
        step = min((self.run.steps.get(number, 0) for number in numbers), default=0)
        whole = tuple(group.number for group in returning)
        self.run.restarts.append(Restart(numbers, step, fact(Code.DRIVER_LOST), anew, whole))
        self.run.tell(Code.TAKEN_OVER, *returning)

    def _keeps_checkpoint(self, group: WorkerGroup, used: set[str]) -> tuple[tuple[str, str], ...]:
        """As GroupPlan.nannies: of the group that saves for all."""
        return self.processes.keeps_checkpoint(group.where[0], used) if group.number == 0 else ()
