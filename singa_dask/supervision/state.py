"""How the driver decides about a run's worker groups and servers. No IO: events in, commands out.

Every decision about processes rests on a status request that began after the event that made it necessary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from singa_dask.supervision import events as ev
from singa_dask.supervision.ending import Ending
from singa_dask.supervision.forming import Forming
from singa_dask.supervision.losing import Losing
from singa_dask.supervision.members import Members
from singa_dask.supervision.phases import CheckpointSearch, Phase, Status
from singa_dask.supervision.places import Places
from singa_dask.supervision.run_state import RunState

# Between two status requests while a replacement is missing.
_AGAIN_S = 0.05
# Between two status requests while members run with fewer processes than they should.
_IMPROVE_EVERY_S = 2.0


class Supervision:
    """Decides about one run, in three parts. One thread owns it and calls `handle`."""

    def __init__(
        self,
        members: Members,
        *,
        steps: Mapping[int, int] | None = None,
        max_restarts: int = 3,
        patience_s: float = 30.0,
        least: int | None = None,
        gpus: Sequence[int] | None = None,
    ) -> None:
        self.run = RunState(members, steps, gpus)
        self.places = Places(members, self.run.processes, patience_s, least, self.run.tell)
        self.losing = Losing(self.run, self.places, max_restarts)
        self.forming = Forming(self.run, self.places, self.losing)
        self.ending = Ending(self.run)

    def handle(self, event: ev.Event | None) -> list[ev.Command]:
        """Take an event (None: the start); returns what to do about it, in this order."""
        run = self.run
        if run.over:
            return []
        run.commands = []
        if not isinstance(event, ev.Progress | ev.StatusReport | ev.ReplicaLost):
            run.members.record(ev.line(event))
        match event:
            case ev.Progress(group, step):
                run.steps[group] = step
                run.members.made(group, step)
            case ev.WorkerGroupEnded() | ev.WorkerGroupFailed():
                self._worker_group_came_to_an_end(event)
            case ev.ServersLost():
                self.losing.servers_lost(event)
            case ev.ReplicaLost():
                self.losing.replica_lost(event)
            case ev.StatusReport():
                self._reported(event)
            case ev.Formed() | ev.NotFormed():
                self.forming.answered(event)
            case ev.Closed(replaced):
                self.losing.closed(replaced)
            case ev.LeadTold():
                self.ending.lead_told(event)
            case ev.StopAsked(by, early) if not run.stopping:
                self.ending.stop(by, early)
                self.forming.refuse()
            case ev.JoinAsked(asker):
                self.forming.join(asker)
            case ev.LeaveAsked(asker, group):
                run.do(ev.Reply(asker, self.ending.leave(group)))
        self._go_on()
        return run.commands

    def _worker_group_came_to_an_end(self, event: ev.WorkerGroupEnded | ev.WorkerGroupFailed) -> None:
        group = self.run.members.worker_groups[event.group]
        if group.phase is not Phase.RUNNING or group.generation != event.generation:
            return
        if isinstance(event, ev.WorkerGroupEnded):
            self.run.members.move(group, "ended")
        else:
            self.losing.worker_group_failed(event)

    def _go_on(self) -> None:
        """Issue the commands that are due and need no further event."""
        run = self.run
        if not run.over and self.ending.others_ended and run.members.worker_groups[0].phase is Phase.ENDED:
            run.end()
        if run.over:
            self.forming.refuse()
            return run.do(ev.End(run.error))
        self.losing.close()
        self.ending.tell_lead(pending=self._pending)
        pending, improves = self._pending, self._improves
        if run.status.phase is Status.NONE and (pending or self.forming.askers or improves):
            unknown = run.checkpoint.phase is not CheckpointSearch.KNOWN
            wanted = (
                run.checkpoint.phase is CheckpointSearch.WANTED or run.members.synchronous or not run.members.serving()
            )
            waiting_s = _IMPROVE_EVERY_S if improves and not self.forming.askers else 0.0
            delay_s = _AGAIN_S if self.places.awaits else waiting_s
            nannies = run.processes.nannies if pending or improves else frozenset[str]()
            run.status.move("ask")
            run.asked = ev.StatusRequest(run.asked.number + 1, wanted and unknown and pending, delay_s, nannies)
            run.do(run.asked)

    @property
    def _pending(self) -> bool:
        """Whether a decision waits for a status request, and for no operation."""
        waits = self.run.members.batch(self.run.dispensable) or self.run.members.stranded()
        return self.run.idle and bool(self.losing.losses or self.ending.fault or waits)

    @property
    def _improves(self) -> bool:
        """Whether members that run wait for more processes, and nothing else waits for a decision."""
        return self.places.wanting and not (self.run.stopping or self._pending)

    def _reported(self, event: ev.StatusReport) -> None:
        run, members, was = self.run, self.run.members, self.run.status.phase
        if was is Status.NONE or run.asked.number != event.number:
            return
        run.status.move("answered")
        if was is Status.OUTDATED:
            return
        if run.asked.checkpoint:
            run.checkpoint.move("look")
            run.found = event.found
        members.found_left(event.left)
        if event.inherited is not None and not any(member.formed for member in members.all()):
            self.forming.inherit(event.left, event.inherited)
        there, back = run.processes.there(event.workers, members.used())
        self.losing.kill(back)
        silent = members.used() - {info.address for info in there}
        if run.idle and not self.losing.waits_for_memory(silent, event) and not self.losing.take_losses(silent):
            for member in members.cut_off() if run.stopping else ():
                run.drop(member)
            self.forming.place(there, event.at, event.nannies)
            if not run.over:
                self.ending.without_exchange(complete=not silent)
                if run.idle and not (run.stopping or self._pending):
                    self.forming.improve(there)
        if not run.over:
            self.forming.answer_askers(there)
