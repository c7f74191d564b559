"""What the driver decides about a run's worker groups and servers. No IO: events in, commands out.

The unit of failure is what shares processes. A worker group that is lost takes along the servers in its processes, and
servers that are lost take along the worker groups that they serve; all others go on.

Every decision about processes rests on a survey that was asked for after the event that made it necessary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from singa_dask.errors import ClusterError
from singa_dask.supervision import events as ev
from singa_dask.supervision.members import (
    Gang,
    GroupLost,
    Loss,
    Member,
    Members,
    NoReplacement,
    Phase,
    Restart,
    ServerGroup,
)
from singa_dask.supervision.processes import Processes, Surveys

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo
    from singa_dask.training.checkpoint import Found

# Between two surveys while a replacement is missing.
_SURVEY_AGAIN_S = 0.05


class Supervision:
    """The state of one run. One thread owns it and calls `handle`.

    steps: last known step of every worker group; ended: those at their end. busy: the operation under way, of which
    there is one at a time. over: the run has ended, with `error` if it failed.
    """

    def __init__(
        self,
        members: Members,
        *,
        steps: Mapping[int, int] | None = None,
        max_restarts: int = 3,
        patience_s: float = 30.0,
    ) -> None:
        self.members, self.processes = members, Processes()
        self.max_restarts, self.patience_s = max_restarts, patience_s
        self.steps: dict[int, int] = dict(steps or {})
        self.ended: set[int] = set()
        self.restarts: list[Restart] = []
        self.interrupted = self.over = False
        self.error: BaseException | None = None
        self.busy: ev.FormRequest | ev.Close | ev.TellLead | None = None
        self.lead_told = False
        self._commands: list[ev.Command] = []
        self._losses: list[Loss] = []
        self._askers: list[Any] = []  # who wants a worker group to join
        self._flush_cause = ""
        self._requests = 0
        self._surveys = Surveys()
        self._checkpoint: tuple[Found | None] | None = None  # the newest, once looked for
        self._needs_checkpoint = False
        self._replaced_by: float | None = None  # when replacements must have come

    def handle(self, event: ev.Event | None) -> list[ev.Command]:
        """Take an event (None: the start); returns what to do about it, in this order."""
        if self.over:
            return []
        self._commands = []
        if not isinstance(event, ev.Progress):
            self.members.record(ev.line(event))
        match event:
            case ev.Progress(group, step, ended):
                self.steps[group] = step
                self.ended |= {group} if ended else set()
            case ev.GangEnded() | ev.GangFailed():
                self._gang_came_to_an_end(event)
            case ev.ServersLost(addresses):
                self._servers_lost(addresses)
            case ev.Surveyed():
                self._surveyed(event)
            case ev.Formed() | ev.NotFormed():
                self._form_answered(event)
            case ev.Closed(replaced):
                self._closed(replaced)
            case ev.LeadTold(ended, heard):
                self._operation_done()
                self.lead_told = ended if heard else self.lead_told
            case ev.FlushFailed(cause):
                self._operation_done()
                self._flush_cause = cause
            case ev.StopAsked():
                self._stop()
            case ev.JoinAsked(asker):
                self._join(asker)
            case ev.LeaveAsked(asker, group):
                self._do(ev.Reply(asker, self._leave(group)))
        self._go_on()
        return self._commands

    def _go_on(self) -> None:
        """Begin what is due and needs no further event."""
        gangs = self.members.gangs
        if self.over:
            return
        if all(gang.phase is Phase.ENDED for gang in gangs):
            return self._end()
        gone = [member for member in self.members.all() if member.phase in (Phase.CLOSING, Phase.DROPPED)]
        if self.busy is None and gone:
            closed = tuple(m.number for m in gone if isinstance(m, Gang))
            self._do_alone(ev.Close(closed, tuple(m.number for m in gone if isinstance(m, ServerGroup))))
        if self.busy is None and gangs[0].phase is Phase.RUNNING and not self._flush_cause:
            last = all(gang.phase is Phase.ENDED for gang in gangs[1:])
            if self.lead_told and not last:
                self._do_alone(ev.TellLead(False))
            elif last and not (self.lead_told or self._pending() or set(gangs[0].groups[1:]) - self.ended):
                numbers = tuple(group.number for group in self.members.serving())
                self._do_alone(ev.TellLead(True, (*numbers[:-1], *numbers[-3::-1])))  # along the line, and back
        if not self._surveys.under_way and (self._pending() or self._askers):
            checkpoint = (
                self._pending() and self._checkpoint is None and (self._needs_checkpoint or not self.members.serving())
            )
            delay_s = 0.0 if self._replaced_by is None else _SURVEY_AGAIN_S
            self._do(self._surveys.ask(checkpoint=checkpoint, delay_s=delay_s))

    def _pending(self) -> bool:
        """Whether a decision waits for a survey, and for no operation."""
        return self.busy is None and bool(self._losses or self._flush_cause or self._batch())

    # What happens

    def _gang_came_to_an_end(self, event: ev.GangEnded | ev.GangFailed) -> None:
        gang = next((gang for gang in self.members.running() if gang.number == event.gang), None)
        if gang is None or gang.generation != event.generation:
            return
        if isinstance(event, ev.GangEnded):
            return self.members.move(gang, "ended")
        self.processes.replacing(event.replaced)
        if event.raised is None:
            self._lose(Loss(gang, GroupLost(event.cause)))
        elif self._may_be_dropped(gang):
            self._lose(Loss(gang, GroupLost(event.cause), refused=True))
        else:
            self._end(event.raised)

    def _servers_lost(self, addresses: frozenset[str]) -> None:
        for group in self.members.serving():
            if here := sorted(addresses & set(group.where)):
                self._lose(Loss(group, GroupLost(f"{group}: the process of {', '.join(here)} died")))

    def _form_answered(self, event: ev.Formed | ev.NotFormed) -> None:
        request = self.busy
        if not isinstance(request, ev.FormRequest) or request.number != event.request:
            return
        self._operation_done()
        members = [member for member in self.members.all() if member.phase is Phase.FORMING]
        self.members.relocate(members, event.moved)
        if isinstance(event, ev.NotFormed):
            return self._not_formed(members, event)
        self.processes.remember(event.pids)
        for member in members:
            self.members.move(member, "formed")
            if self.interrupted and isinstance(member, Gang):
                self._do(ev.Stop(member.number))

    def _not_formed(self, members: Sequence[Member], event: ev.NotFormed) -> None:
        self.processes.replacing(event.replaced)
        first, *others = members
        for member in others:
            self.members.move(member, "not formed")
        if isinstance(first, Gang) and self._may_be_dropped(first):
            self._lose(Loss(first, event.error, refused=True))
        elif event.raised is not None:
            self._end(event.raised)
        else:
            self._lose(Loss(first, GroupLost(str(event.error)) if event.lost else event.error, False, not event.lost))

    def _closed(self, replaced: Mapping[str, int]) -> None:
        self._operation_done()
        self.processes.replacing(replaced)
        self._checkpoint = None  # one more may have been saved until the end
        serving = [group.number for group in self.members.serving()]
        for member in self.members.all():
            if member.phase is Phase.DROPPED and isinstance(member, Gang):
                pairs = zip(member.groups, member.server_groups, strict=True)
                self._commands += [ev.Dismiss(s, g, member.generation) for g, s in pairs if s in serving]
            if member.phase in (Phase.CLOSING, Phase.DROPPED):
                self.members.move(member, "closed")

    def _stop(self) -> None:
        if self.interrupted:
            return
        self.interrupted = True
        self._do(ev.Note("stopping after this step (press Ctrl-C again to abort)"))
        for gang in self.members.running():
            self._do(ev.Stop(gang.number))
        self._refuse_askers()

    def _join(self, asker: Any) -> None:
        if self.members.synchronous or self.interrupted:
            synchronous = "one worker group is synchronous, and cannot take in another"
            why = synchronous if self.members.synchronous else "the run is ending"
            return self._do(ev.Reply(asker, f"refused: {why}"))
        self._askers.append(asker)
        self._surveys.outdate()

    def _leave(self, number: int) -> str:
        gang = self.members.with_group(number)
        if gang is None:
            return f"refused: there is no worker group {number} at work"
        if 0 in gang.groups:
            return "refused: worker group 0 tests and saves for the whole run; stop the run instead"
        if gang.phase is not Phase.RUNNING:
            return f"refused: worker group {number} is being formed"
        gang.leaving = True
        self._do(ev.Stop(gang.number))
        return f"{gang} leaves after its step"

    # Surveys, and what is decided on them

    def _surveyed(self, event: ev.Surveyed) -> None:
        survey = self._surveys.answered(event)
        if survey is None:
            return
        if survey.checkpoint:
            self._checkpoint = (event.found,)
            self._needs_checkpoint = False
        there, back = self.processes.there(event.workers)
        self._kill(back)
        silent = self.members.used() - {info.address for info in there}
        if self.busy is None and not self._take_losses(silent):
            self._place(there, event.at)
            if self._flush_cause and self.busy is None and not silent:  # else the loss is dealt with first
                self._do(ev.Note(f"the last exchange between server groups failed: {self._flush_cause}"))
                self._do_alone(ev.TellLead(True))
            self._flush_cause = ""
        while self._askers and not self.over:
            self._do(ev.Reply(self._askers.pop(0), self._newcomer(there)))

    def _take_losses(self, silent: set[str]) -> bool:
        """Take down what is lost. Whether anything was: then nothing can be placed yet."""
        taken = bool(self._losses)
        while self._losses and not self.over:
            loss = self._losses[0]
            if loss.member.phase is Phase.LOST and not self._take_down(loss, silent):
                return True
            self._losses.pop(0)  # or it is down already, with another one
        return taken

    def _take_down(self, loss: Loss, silent: set[str]) -> bool:
        """Take down a lost member and what goes along; False if the newest checkpoint must be known first."""
        member, error = loss.member, loss.error
        gangs, groups = self.members.affected(member, silent)
        if loss.refused:
            self._drop(member, f"{member} could not join: {error}")
        elif loss.unless_all_answer and not silent:
            self._end(error)
        elif self.interrupted:
            if gangs:
                self._do(ev.Note(f"{error} The run was being stopped, so it ends here."))
            for other in (*gangs, *groups):
                self._drop(other)
        elif self._checkpoint is None and not set(self.members.serving()) - set(groups):
            self._needs_checkpoint = True
            return False
        else:
            if isinstance(member, Gang) and member.leaving:
                self._drop(member, f"{member} left: {error}")
                gangs.remove(member)
            if gangs or groups:
                self._restart(member, error, gangs, groups)
        return True

    def _restart(self, member: Member, error: Exception, gangs: list[Gang], groups: list[ServerGroup]) -> None:
        member.restarts += 1
        numbers = tuple(number for gang in gangs for number in gang.groups)
        for other in (*gangs, *groups):
            self.members.move(other, "take down")
        self.ended -= set(numbers)
        self.lead_told = False
        if member.restarts > self.max_restarts:
            return self._end(error)
        step = min((self.steps.get(number, 0) for number in numbers), default=0)
        self.restarts.append(Restart(numbers, step, str(error)))
        attempt = f"Restart {member.restarts} of {self.max_restarts}"
        self._do(ev.Note(f"{error} (step {step}). {attempt}{self._way_out(gangs, groups)}."))

    def _way_out(self, gangs: Sequence[Gang], groups: Sequence[ServerGroup]) -> str:
        """Which worker groups are formed anew, and what they go on from."""
        names = "" if self.members.synchronous else f" of {' and '.join(map(str, gangs)) or 'the servers'}"
        if self.members.server_groups and not groups:
            return f"{names}, from the servers' parameters"
        if self.members.serving():
            return f"{names}, from the parameters of a neighbouring server group"
        return f"{names}, from step {self._found.step if self._found else 0}"

    # Places

    def _place(self, there: Sequence[WorkerInfo], at: float) -> None:
        """Put free Dask workers in the place of those that are gone, and have the batch formed. Nannies bring lost
        processes back, elsewhere."""
        batch = self._batch()
        if not batch or (self._checkpoint is None and not self.members.serving()):
            return
        answer = {info.address for info in there}
        missing = list(dict.fromkeys(address for m in batch for address in m.where if address not in answer))
        free = [info.address for info in self.processes.free(there, self.members)]
        if len(free) >= len(missing):
            self._replaced_by = None
            self.members.relocate(batch, dict(zip(missing, free, strict=False)))
            return self._form(batch)
        first, self._replaced_by = self._replaced_by is None, self._replaced_by or at + self.patience_s
        if at < self._replaced_by:
            return self._kill(self.processes.stuck(missing, again=first))
        self._replaced_by = None
        error = NoReplacement(
            f"{len(missing)} Dask workers were lost ({', '.join(missing)}) and only {len(free)} free ones are there "
            f"after {self.patience_s:g} s. Start more."
        )
        if isinstance(batch[0], Gang) and self._may_be_dropped(batch[0]):
            self._drop(batch[0], f"{batch[0]} could not join: {error}")
        else:
            self._end(error)

    def _newcomer(self, there: Sequence[WorkerInfo]) -> str:
        """Take in a gang of one worker group on free Dask workers, if they suffice; returns what to answer."""
        needed = self.members.topology.nworkers_per_group
        lost = self.members.used(but=Phase.FORMING) - {info.address for info in there}
        free = self.processes.free(there, self.members)[len(lost) :]  # replacements come first
        if len(free) < needed:
            return f"refused: {needed} free Dask workers are needed, {len(free)} are there; start more and join again"
        gang = self.members.add(free[:needed], first=max(self.steps.values(), default=0))
        return f"{gang} joins on {', '.join(gang.where)}"

    def _kill(self, pids: Mapping[str, int]) -> None:
        if pids:
            self.processes.replacing(pids)
            self._do(ev.Kill(pids))

    def _form(self, batch: Sequence[Member]) -> None:
        gangs = [member for member in batch if isinstance(member, Gang)]
        groups = [member for member in batch if isinstance(member, ServerGroup)]
        fresh, found = not self.members.serving(), self._found
        if fresh and any(gang.generation for gang in gangs):
            numbers = tuple(number for gang in gangs for number in gang.groups)
            self.steps |= dict.fromkeys(numbers, found.step if found else 0)
            self._do(ev.Rewind(numbers, found.step if found else None))
        for member in batch:
            self.members.move(member, "form")
            member.generation += 1
        for gang in gangs if fresh else ():
            gang.resume, gang.first = (found.path, found.step) if found else (None, 0)
        self._requests += 1
        gang_requests = tuple(self.members.gang_request(gang, self.steps, fresh=fresh) for gang in gangs)
        server_requests = tuple(self.members.server_request(group, fresh=fresh) for group in groups)
        self._do_alone(ev.FormRequest(self._requests, gang_requests, server_requests, fresh))

    # Parts

    @property
    def _found(self) -> Found | None:
        return self._checkpoint[0] if self._checkpoint else None

    def _batch(self) -> list[Member]:
        return self.members.batch(self._may_be_dropped)

    def _may_be_dropped(self, gang: Gang) -> bool:
        """Whether it came to a running job and has not done anything for it yet."""
        return gang.joined and not any(number in self.steps for number in gang.groups)

    def _lose(self, loss: Loss) -> None:
        self.members.move(loss.member, "lost")
        self._losses.append(loss)
        self._checkpoint = None
        self._surveys.outdate()

    def _drop(self, member: Member, why: str = "") -> None:
        """Go on without a member."""
        if why:
            self._do(ev.Note(why))
        self.members.move(member, "drop")

    def _do(self, command: ev.Command) -> None:
        self._commands.append(command)

    def _do_alone(self, operation: ev.FormRequest | ev.Close | ev.TellLead) -> None:
        assert self.busy is None
        self.busy = operation
        self._do(operation)

    def _operation_done(self) -> None:
        self.busy = None
        self._surveys.outdate()

    def _end(self, error: BaseException | None = None) -> None:
        """The run is over. An error of the cluster tells what happened before."""
        self.over, self.error = True, error
        if isinstance(error, ClusterError):
            error.add_note("What happened before, the latest last:\n" + "\n".join(self.members.history))
        self._refuse_askers()
        self._do(ev.End(error))

    def _refuse_askers(self) -> None:
        while self._askers:
            self._do(ev.Reply(self._askers.pop(), "refused: the run is ending"))
