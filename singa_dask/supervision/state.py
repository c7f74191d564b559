"""How the driver decides about a run's worker groups and servers. No IO: events in, commands out.

The unit of failure is what shares processes. A worker group that is lost takes along the servers in its processes.
Servers that are lost go on from what they have left in memory, and the worker groups that they serve wait for them. If
nothing is left, they take along these worker groups. All others go on.

Every decision about processes rests on a survey that began after the event that made it necessary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from singa_dask.supervision import events as ev
from singa_dask.supervision.facts import Cause, Code, Fact, fact
from singa_dask.supervision.inheritance import inherit
from singa_dask.supervision.members import (
    Loss,
    Member,
    Members,
    Phase,
    Restart,
    ServerGroup,
    WorkerGroup,
    is_first,
)
from singa_dask.supervision.places import Places
from singa_dask.supervision.processes import Processes

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo
    from singa_dask.training.checkpoint import Found

# Between two surveys while a replacement is missing.
_SURVEY_AGAIN_S = 0.05
# How long nannies that may hold the memory of lost members get to answer.
_SILENT_S = 6.0
# Between two surveys while members run with fewer processes than they should.
_IMPROVE_EVERY_S = 2.0


class Supervision:
    """The state of one run. One thread owns it and calls `handle`.

    steps: last known step of every worker group. busy: the operation under way, of which there is one at a time.
    stopped: by whom it was asked to stop. lead_told: whether worker group 0 was told that all others have ended, after
    the last exchange of the servers; lead_believes: whether it believes that they have. over: the run has ended, with
    `error` if it failed.
    """

    def __init__(
        self,
        members: Members,
        *,
        steps: Mapping[int, int] | None = None,
        max_restarts: int = 3,
        patience_s: float = 30.0,
        least: int | None = None,
    ) -> None:
        self.members, self.processes = members, Processes()
        self.places = Places(members, self.processes, patience_s, least, self._tell)
        self.max_restarts, self.patience_s = max_restarts, patience_s
        self.steps: dict[int, int] = dict(steps or {})
        self.restarts: list[Restart] = []
        self.stopped, self.over = "", False
        self.lead_told = self.lead_believes = False
        self.error: Fact | BaseException | None = None
        self.busy: ev.FormRequest | ev.Close | ev.TellLead | None = None
        self._commands: list[ev.Command] = []
        self._losses: list[Loss] = []
        self._askers: list[Any] = []  # of a worker group that wants to join
        self._flush_fault = ""
        self._not_inherited: Fact | None = None
        self._silent_until: float | None = None
        self._survey: ev.Survey | None = None  # under way
        self._requests = self._surveys = self._outdated = 0
        self._checkpoint: tuple[Found | None] | None = None  # the newest, once looked for
        self._needs_checkpoint = False

    def handle(self, event: ev.Event | None) -> list[ev.Command]:
        """Take an event (None: the start); returns what to do about it, in this order."""
        if self.over:
            return []
        self._commands = []
        if not isinstance(event, ev.Progress | ev.Surveyed | ev.ReplicaLost):
            self.members.record(ev.line(event))
        match event:
            case ev.Progress(group, step):
                self.steps[group] = step
                self.members.made(group, step)
            case ev.WorkerGroupEnded() | ev.WorkerGroupFailed():
                self._worker_group_came_to_an_end(event)
            case ev.ServersLost(addresses, stopped):
                self._kill({a: self.processes.pids[a] for a in stopped})  # surveys would wait for their answers
                self._servers_lost(addresses)
            case ev.ReplicaLost():
                self._replica_lost(event)
            case ev.Surveyed():
                self._surveyed(event)
            case ev.Formed() | ev.NotFormed():
                self._form_answered(event)
            case ev.Closed(replaced):
                self._closed(replaced)
            case ev.LeadTold(ended, heard, fault):
                self._flush_fault = fault
                self._operation_done()
                if heard:
                    self.lead_told = self.lead_believes = ended
            case ev.StopAsked(by, early) if not self.stopped:
                self._stop(by, early)
            case ev.JoinAsked(asker):
                self._join(asker)
            case ev.LeaveAsked(asker, group):
                self._do(ev.Reply(asker, self._leave(group)))
        self._go_on()
        return self._commands

    def _go_on(self) -> None:
        """Issue the commands that are due and need no further event."""
        if self.over:
            return
        lead, *others = self.members.worker_groups
        others_ended = all(group.phase is Phase.ENDED for group in others)
        if lead.phase is Phase.ENDED and others_ended:
            return self._end()
        gone = [member for member in self.members.all() if member.phase in (Phase.CLOSING, Phase.DROPPED)]
        if self.busy is None and gone:
            groups = [member for member in gone if isinstance(member, WorkerGroup)]
            closed, growing = (tuple(g.number for g in of) for of in (groups, (g for g in groups if g.added)))
            servers = tuple(member.number for member in gone if isinstance(member, ServerGroup))
            self._do_alone(ev.Close(closed, servers, growing))
        if self.busy is None and lead.phase is Phase.RUNNING and not self._flush_fault:
            if self.lead_believes and not others_ended:
                self._do_alone(ev.TellLead(False))
            elif others_ended and not (self.lead_told or self._pending()):
                numbers = tuple(group.number for group in self.members.serving())
                self._do_alone(ev.TellLead(True, (*numbers[:-1], *numbers[-3::-1])))  # along the line, and back
        improves = self.places.wanting and not (self.stopped or self._pending())
        if self._survey is None and (self._pending() or self._askers or improves):
            wanted = self._needs_checkpoint or self.members.synchronous or not self.members.serving()
            checkpoint = wanted and self._checkpoint is None and self._pending()
            waiting_s = _IMPROVE_EVERY_S if improves and not self._askers else 0.0
            delay_s = _SURVEY_AGAIN_S if self.places.awaits else waiting_s
            self._surveys += 1
            nannies = self.processes.nannies if self._pending() or improves else frozenset()
            self._survey = ev.Survey(self._surveys, checkpoint, delay_s, nannies)
            self._do(self._survey)

    def _pending(self) -> bool:
        """Whether a decision waits for a survey, and for no operation."""
        waits = self.members.batch(self._may_be_dropped) or self.members.stranded()
        return self.busy is None and bool(self._losses or self._flush_fault or waits)

    # Events

    def _worker_group_came_to_an_end(self, event: ev.WorkerGroupEnded | ev.WorkerGroupFailed) -> None:
        group = self.members.worker_groups[event.group]
        if group.phase is not Phase.RUNNING or group.generation != event.generation:
            return
        if isinstance(event, ev.WorkerGroupEnded):
            return self.members.move(group, "ended")
        self.processes.replaced.update(event.replaced.items())
        raised = event.raised is not None
        if why := self.places.retreat(group, raised=raised):
            self._lose(Loss(group, fact(Code.RESIZED_IN_VAIN, undone=(why,), cause=event.cause)))
        elif not raised or self._may_be_dropped(group):
            self._lose(Loss(group, event.cause, refused=raised))
        else:
            self._end(event.raised)

    def _servers_lost(self, addresses: frozenset[str]) -> None:
        for group in self.members.serving():
            if here := sorted(addresses & set(group.where)):
                self._lose(Loss(group, fact(Code.SERVERS_DIED, group, where=tuple(here))))

    def _replica_lost(self, event: ev.ReplicaLost) -> None:
        """From now on a replica does not count, so its server may go on without it. Unless its group is lost: then a
        successor may have read the replica."""
        group = self.members.server_groups[event.group]
        if group.phase is not Phase.RUNNING or group.generation != event.generation:
            return
        place = event.generation, event.rank
        if event.replica > group.outdated.get(place, 0) and (event.awaited or event.replica == 1):
            self.members.record(ev.line(event))
            self._tell(fact(Code.REPLICA_LOST, group, rank=event.rank))
        if event.replica > group.outdated.get(place, 0) and event.awaited:  # else it was never whole
            self._do(ev.RecordOutdated(group.number, event.generation, event.rank, event.replica))
        group.outdated[place] = max(event.replica, group.outdated.get(place, 0))
        nanny = self._keeps_replica(group, event.rank, event.replica)
        self._do(ev.ReplaceReplica(group.number, event.rank, event.replica, nanny))

    def _keeps_replica(self, group: ServerGroup, rank: int, lost: int = 0) -> str:
        """The nanny that keeps the next replica of a server, "" for none. lost: how many it has lost."""
        members = self.members
        wanted = members.topology.server_replicas
        return self.processes.keeps_replica(group.where[rank], members.used(), rank + lost, wanted=wanted)

    def _form_answered(self, event: ev.Formed | ev.NotFormed) -> None:
        request = self.busy
        if not isinstance(request, ev.FormRequest) or request.number != event.request:
            return
        self._operation_done()
        members = [member for member in self.members.all() if member.phase is Phase.FORMING]
        self.members.relocate(members, event.moved)
        self.processes.moved(event.moved)
        if isinstance(event, ev.NotFormed):
            return self._not_formed(members, event)
        self.processes.pids.update(event.pids)
        for number in event.unkept:
            self._tell(fact(Code.UNKEPT, self.members.server_groups[number]))
        made = [group for group in request.server_groups if is_first(group.generation)]
        if self.members.topology.server_replicas is None and any(any(group.replicas) for group in made):
            self._tell(fact(Code.REPLICATED))
        if self.members.before and made:
            self._do(ev.LetEarlierGo(self.processes.nannies))
        for member in members:
            self.members.move(member, "formed")
            member.formed = member.generation
            if isinstance(member, WorkerGroup):
                member.began = None
                self.lead_believes = self.lead_believes and member.number > 0
                if self.stopped or member.leaving:
                    self._do(ev.Stop(member.number))

    def _not_formed(self, members: Sequence[Member], event: ev.NotFormed) -> None:
        self.processes.replaced.update(event.replaced.items())
        first, *others = members
        for member in others:
            self.members.move(member, "not formed")
        groups, raised = (m for m in members if isinstance(m, WorkerGroup)), event.raised is not None
        undone = [why for group in groups if (why := self.places.retreat(group, raised=raised))]
        if isinstance(first, WorkerGroup) and self._may_be_dropped(first):
            self._lose(Loss(first, event.error, refused=True))
        elif undone:
            self._lose(Loss(first, fact(Code.RESIZED_IN_VAIN, undone=tuple(undone), cause=event.error)))
        elif event.raised is not None:
            self._end(event.raised)
        else:
            self._lose(Loss(first, str(event.error) if event.lost else event.error))

    def _closed(self, replaced: Mapping[str, int]) -> None:
        self._operation_done()
        self.processes.replaced.update(replaced.items())
        self._checkpoint = None  # one more may have been saved until the end
        serving = [group.number for group in self.members.serving()]
        for member in self.members.all():
            if member.phase is Phase.DROPPED and isinstance(member, WorkerGroup) and member.server_group in serving:
                self._do(ev.Dismiss(member.server_group, member.number, member.generation))
            if member.phase in (Phase.CLOSING, Phase.DROPPED):
                self.members.move(member, "closed")

    def _stop(self, by: str, early: bool) -> None:
        self.stopped = by
        for group in self.members.running():
            if group.number > 0 or not early:
                self._do(ev.Stop(group.number))
        if not early:  # after the stop, as it may take a while to write it
            self._tell(fact(Code.STOPPING, by=by))
        self._refuse_askers()

    def _join(self, asker: Any) -> None:
        if self.members.synchronous or self.stopped:
            refusal = Code.SYNCHRONOUS if self.members.synchronous else Code.ENDING
            return self._do(ev.Reply(asker, fact(refusal)))
        self._askers.append(asker)
        self._outdated = self._surveys

    def _leave(self, number: int) -> Fact:
        group = next((group for group in self.members.working() if group.number == number), None)
        if group is None:
            return fact(Code.NOT_AT_WORK, group=number)
        if number == 0:
            return fact(Code.LEAD_STAYS)
        if group.phase is not Phase.RUNNING:
            return fact(Code.BEING_FORMED, group)
        group.leaving = True
        self._do(ev.Stop(number))
        return fact(Code.LEAVES, group)

    # Decisions on a survey

    def _surveyed(self, event: ev.Surveyed) -> None:
        survey = self._survey
        if survey is None or survey.number != event.number:
            return
        self._survey = None
        if survey.number <= self._outdated:
            return
        if survey.checkpoint:
            self._checkpoint = (event.found,)
            self._needs_checkpoint = False
        for group in self.members.worker_groups:
            group.left = event.left.get(str(group), ())
        for servers in self.members.server_groups:
            left = event.left.get(str(servers), ())
            servers.left = left if servers.current(left) else ()
        if event.inherited is not None and not any(member.formed for member in self.members.all()):
            self._inherit(event.left, event.inherited)
        there, back = self.processes.there(event.workers)
        self._kill(back)
        silent = self.members.used() - {info.address for info in there}
        decides = self.busy is None and not self._waits_for_memory(silent, event)
        if decides and not self._take_losses(silent) and not self._lose_stranded():
            for member in self.members.cut_off() if self.stopped else ():
                self._drop(member)
            self._place(there, event.at, event.nannies)
            if self._flush_fault and self.busy is None and not silent:  # else the loss is dealt with first
                self._tell(fact(Code.EXCHANGE_FAILED, cause=self._flush_fault))
                self._do_alone(ev.TellLead(True))
            self._flush_fault = ""
            if self.busy is None and not (self.stopped or self._pending()):
                self._improve(there)
        while self._askers and not self.over:
            self._do(ev.Reply(self._askers.pop(0), self._newcomer(there)))

    def _inherit(self, left: Mapping[str, tuple[Any, ...]], inherited: ev.Inherited) -> None:
        """Have servers go on from what those of an earlier start have left, or say why not."""
        why = inherit(self.members, left, inherited, None if self._found is None else self._found.ledger)
        if why and why != self._not_inherited:
            step = self._found.step if self._found else 0
            self._tell(fact(Code.NOT_TAKEN_OVER, cause=why, step=step))
        self._not_inherited = why

    def _waits_for_memory(self, silent: set[str], event: ev.Surveyed) -> bool:
        """Whether nannies that do not answer may hold what lost members would go on from, and have some time left."""
        keepers: Sequence[WorkerGroup | ServerGroup] = self.members.server_groups or self.members.worker_groups
        lost = [m for loss in self._losses for of in self.members.affected(loss.member, silent) for m in of]
        without = (m for m in keepers if (m in lost or m.phase is Phase.DOWN) and m.formed and not m.left)
        if self.stopped or not any(self.processes.nannies_of(m.where) & event.silent for m in without):
            self._silent_until = None
            return False
        if self._silent_until is None:
            self._silent_until = event.at + _SILENT_S
        return event.at < self._silent_until

    def _take_losses(self, silent: set[str]) -> bool:
        """Take down the lost members. Returns whether there were any: then nothing can be placed yet."""
        taken = bool(self._losses)
        while self._losses and not self.over:
            loss = self._losses[0]
            if loss.member.phase is Phase.LOST and not self._take_down(loss, silent):
                return True
            self._losses.pop(0)  # or it is down already, with another one
        return taken

    def _take_down(self, loss: Loss, silent: set[str]) -> bool:
        """Take down a lost member and what goes along; False if the newest checkpoint must be known first."""
        member, cause = loss.member, loss.cause
        workers, servers = self.members.affected(member, silent)
        if loss.refused:
            self._drop(member, fact(Code.NOT_JOINED, member, cause=cause))
        elif isinstance(cause, BaseException) and not silent:
            self._end(cause)
        elif self.stopped:
            self._take_down_at_end(cause, workers, servers)
        elif self._needs_start(servers):
            self._needs_checkpoint = True
            return False
        else:
            if isinstance(member, WorkerGroup) and member.leaving:
                self._drop(member, fact(Code.LEFT, member, cause=cause))
                workers.remove(member)
            if workers or servers:
                self._restart(member, cause, workers, servers)
        return True

    def _take_down_at_end(self, cause: Cause, workers: Sequence[WorkerGroup], servers: Sequence[ServerGroup]) -> None:
        """Go on without what is lost while the run is being stopped, unless worker groups wait for it."""
        back = [group for group in servers if group.left]
        if workers:
            self._tell(fact(Code.ENDS_HERE, cause=cause))
        for other in (*workers, *(group for group in servers if group not in back)):
            self._drop(other)
        if back:
            self._restart(back[0], cause, (), back)

    def _lose_stranded(self) -> bool:
        """Take down the worker groups whose servers do not come back. Returns whether there are any."""
        stranded = self.members.stranded()
        for group in stranded:
            self._lose(Loss(group, fact(Code.SERVERS_GONE, group, servers=group.server_group)))
        return bool(stranded)

    def _needs_start(self, servers: Sequence[ServerGroup]) -> bool:
        """Whether the newest checkpoint must be known, as no server group stays or comes back."""
        stay = set(self.members.serving()) - set(servers)
        return self._checkpoint is None and not stay and not any(group.left for group in servers)

    def _restart(
        self, member: Member, cause: Cause, workers: Sequence[WorkerGroup], servers: Sequence[ServerGroup]
    ) -> None:
        self.places.be_patient()
        numbers = tuple(group.number for group in workers)
        served = [n for group in servers for n in self.members.coming(group.number)]
        step = min((self.steps.get(number, 0) for number in numbers or served), default=0)
        member.restarts = 1 if step > member.reached else member.restarts + 1
        member.reached = max(member.reached, step)
        for other in (*workers, *servers):
            self.members.move(other, "take down")
        self.lead_told = False
        if member.restarts > self.max_restarts:
            given_up = fact(Code.GIVEN_UP, cause=cause, step=step, times=self.max_restarts)
            return self._end(cause if isinstance(cause, BaseException) else given_up)
        whole = tuple(group.number for group in servers if group.left)
        anew = tuple(group.number for group in servers if group.number not in whole)
        self.restarts.append(Restart(numbers, step, cause, anew, whole))
        way = self.members.way_out(workers, servers, self._found)
        back = [*workers, *servers] if way.code is Code.WITH_EVERYTHING else workers
        attempt, everybody = member.restarts, not self.members.server_groups
        figures = {"step": step, "attempt": attempt, "most": self.max_restarts, "everybody": everybody, "way": way}
        self._tell(fact(Code.RESTARTED, *back, cause=cause, **figures))

    # Places

    def _place(self, there: Sequence[WorkerInfo], at: float, nannies: frozenset[str]) -> None:
        """Have the batch formed, as far as it has Dask workers."""
        batch = self.members.batch(self._may_be_dropped)
        if not batch or (self._checkpoint is None and not self.members.serving()):
            return
        placed, stuck, lack = self.places.find(batch, there, at, nannies)
        if lack is not None:
            self._not_placed(batch, lack, there)
        elif placed:
            self._form(placed)
        else:
            self._kill(stuck)

    def _not_placed(self, batch: Sequence[Member], lack: Fact, there: Sequence[WorkerInfo]) -> None:
        """Go on without what has no Dask workers if the run can, else end it."""
        *_, last = batch
        groups = [member for member in batch if isinstance(member, WorkerGroup)]
        if isinstance(batch[0], WorkerGroup) and self._may_be_dropped(batch[0]):
            self._drop(batch[0], fact(Code.NOT_JOINED, batch[0], cause=lack))
        elif self.members.running() and groups == batch and last.number > 0:
            # Those that wait may hold back the others: no further wait for what cannot come.
            for group in self.places.least_to_leave_out(groups, there):
                self._drop(group, fact(Code.LEFT_OUT, group, cause=lack))
        elif self.stopped and not any(isinstance(member, WorkerGroup) for member in batch):
            for member in batch:
                self._drop(member, fact(Code.NOT_BACK, member, cause=lack))
        else:
            self._end(lack)

    def _improve(self, there: Sequence[WorkerInfo]) -> None:
        """Form members again, which have lost nothing, if there are Dask workers that they lack."""
        for member in self.places.better(there):
            self.members.move(member, "take down")
            self.lead_told = self.lead_told and member is not self.members.worker_groups[0]
            self._checkpoint = None
            self._outdated = self._surveys

    def _newcomer(self, there: Sequence[WorkerInfo]) -> Fact:
        """Take in one more worker group on free Dask workers, if they suffice; returns what to answer."""
        needed = self.members.topology.nworkers_per_group
        lost = self.members.used(but=Phase.FORMING) - {info.address for info in there}
        free = self.processes.free(there, self.members)[len(lost) + self.places.lacks :]  # replacements come first
        if len(free) < needed:
            return fact(Code.TOO_FEW_FREE, needed=needed, there=len(free))
        group = self.members.add(free[:needed], first=max(self.steps.values(), default=0))
        return fact(Code.JOINS, group, where=group.where)

    def _kill(self, pids: Mapping[str, int]) -> None:
        if pids:
            self.processes.replaced.update(pids.items())
            self._do(ev.Kill(pids))

    def _form(self, batch: Sequence[Member]) -> None:
        workers = [member for member in batch if isinstance(member, WorkerGroup)]
        servers = [member for member in batch if isinstance(member, ServerGroup)]
        returning = self.members.returning()
        fresh, found = not (self.members.serving() or returning), self._found
        if fresh and any(group.generation for group in workers):
            numbers = tuple(group.number for group in workers)
            if not all(group.left for group in workers):  # else they tell where they begin
                self.steps |= dict.fromkeys(numbers, found.step if found else 0)
                self._do(ev.Rewind(numbers, found.step if found else None))
        if any(not group.formed and not group.inherits for group in returning):
            self._take_over(workers, servers)
        anew = fresh and not all(group.left for group in workers)
        if anew and found and found.deposits and not any(member.formed for member in self.members.all()):
            self._tell(fact(Code.BEGINS_IN_MEMORY, step=found.step))
        for member in batch:
            self.members.move(member, "form")
            member.generation += 1
        for group in workers:
            if fresh:
                group.resume, group.first = (found.source, found.step) if found else (None, 0)
                group.given = False
        self._requests += 1
        used = self.members.used()
        worker_groups = tuple(
            self.members.worker_group_request(group, self.steps, self._keeps_checkpoint(group, used), fresh=fresh)
            for group in workers
        )
        server_groups = tuple(
            self.members.server_group_request(
                group,
                tuple(self.processes.also(a, used) for a in group.where),
                tuple(self._keeps_replica(group, rank) for rank in range(len(group.where))),
                fresh=fresh,
                returns=group in returning,
            )
            for group in servers
        )
        self._do_alone(ev.FormRequest(self._requests, worker_groups, server_groups, fresh))

    def _keeps_checkpoint(self, group: WorkerGroup, used: set[str]) -> tuple[tuple[str, str], ...]:
        """As GroupPlan.nannies: of the group that saves for all."""
        return self.processes.keeps_checkpoint(group.where[0], used) if group.number == 0 else ()

    def _take_over(self, workers: Sequence[WorkerGroup], servers: Sequence[ServerGroup]) -> None:
        """Record that servers go on from what those of an earlier start of the run have left."""
        for group in (returning := [group for group in servers if group.left]):
            group.inherits = True
        numbers = tuple(group.number for group in workers)
        anew = tuple(group.number for group in servers if group not in returning)
        step = min((self.steps.get(number, 0) for number in numbers), default=0)
        whole = tuple(group.number for group in returning)
        self.restarts.append(Restart(numbers, step, fact(Code.DRIVER_LOST), anew, whole))
        self._tell(fact(Code.TAKEN_OVER, *returning))

    # Parts

    @property
    def _found(self) -> Found | None:
        return self._checkpoint[0] if self._checkpoint else None

    def _may_be_dropped(self, group: WorkerGroup) -> bool:
        """Whether it came to a running job and has not done anything for it yet."""
        return group.joined and group.number not in self.steps

    def _lose(self, loss: Loss) -> None:
        self.members.move(loss.member, "lost")
        self._losses.append(loss)
        self._checkpoint = None
        self._outdated = self._surveys

    def _drop(self, member: Member, why: Fact | None = None) -> None:
        """Go on without a member."""
        if why:
            self._tell(why)
        self.members.move(member, "drop")

    def _tell(self, what: Fact) -> None:
        self._do(ev.Note(what))

    def _do(self, command: ev.Command) -> None:
        self._commands.append(command)

    def _do_alone(self, operation: ev.FormRequest | ev.Close | ev.TellLead) -> None:
        assert self.busy is None
        self.busy = operation
        self._do(operation)

    def _operation_done(self) -> None:
        self.busy = None
        self._outdated = self._surveys

    def _end(self, error: Fact | BaseException | None = None) -> None:
        """The run is over."""
        self.over, self.error = True, error
        self._refuse_askers()
        self._do(ev.End(error))

    def _refuse_askers(self) -> None:
        while self._askers:
            self._do(ev.Reply(self._askers.pop(), fact(Code.ENDING)))
