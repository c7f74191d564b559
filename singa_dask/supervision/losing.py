"""What is lost, what goes along with it, and which of it comes back. No IO.

The unit of failure is what shares processes. A worker group that is lost takes along the servers in its processes.
Servers that are lost resume from what they have left in memory, and the worker groups that they serve wait for them.
If nothing is left, they take along these worker groups. All others go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from singa_dask.supervision import events as ev
from singa_dask.supervision.facts import Cause, Code, fact
from singa_dask.supervision.members import Member, MemberLoss, Restart, ServerGroup, WorkerGroup
from singa_dask.supervision.phases import CheckpointSearch, Phase
from singa_dask.supervision.places import Places
from singa_dask.supervision.run_state import RunState

# How long nannies that may hold the memory of lost members get to answer.
_SILENT_S = 6.0


class Losing:
    """The losses of a run. losses: those whose extent is not known yet."""

    def __init__(self, run: RunState, places: Places, max_restarts: int) -> None:
        self.run, self.members, self.places, self.max_restarts = run, run.members, places, max_restarts
        self.losses: list[MemberLoss] = []
        self._silent_until: float | None = None

    # Events

    def worker_group_failed(self, event: ev.WorkerGroupFailed) -> None:
        """A rank of a worker group that runs has failed."""
        group = self.members.worker_groups[event.group]
        self.run.processes.replaced.update(event.replaced.items())
        if why := self.places.retreat(group, raised=event.raised is not None):
            self.lose(MemberLoss(group, fact(Code.RESIZED_IN_VAIN, undone=(why,), cause=event.cause)))
        elif event.raised is None or self.run.dispensable(group):
            self.lose(MemberLoss(group, event.cause, refused=event.raised is not None))
        else:
            self.run.end(event.raised)

    def servers_lost(self, event: ev.ServersLost) -> None:
        """Processes of servers died, or are stopped."""
        # Status requests would wait for the answers of the latter.
        self.kill({address: self.run.processes.pids[address] for address in event.stopped})
        for group in self.members.serving():
            if here := sorted(event.addresses & set(group.where)):
                self.lose(MemberLoss(group, fact(Code.SERVERS_DIED, group, where=tuple(here))))

    def replica_lost(self, event: ev.ReplicaLost) -> None:
        """From now on a replica does not count, so its server may go on without it. Unless its group is lost: then a
        successor may have read the replica."""
        group = self.members.server_groups[event.group]
        if group.phase is not Phase.RUNNING or group.generation != event.generation:
            return
        place = event.generation, event.rank
        if event.replica > group.outdated.get(place, 0):
            if event.awaited or event.replica == 1:
                self.members.record(ev.line(event))
                self.run.tell(Code.REPLICA_LOST, group, rank=event.rank)
            if event.awaited:  # else it was never whole
                self.run.do(ev.RecordOutdated(group.number, event.generation, event.rank, event.replica))
            group.outdated[place] = event.replica
        nanny = self.run.keeps_replica(group, event.rank, event.replica)
        self.run.do(ev.ReplaceReplica(group.number, event.rank, event.replica, nanny))

    def not_formed(self, members: Sequence[Member], event: ev.NotFormed) -> None:
        """Members could not be formed."""
        self.run.processes.replaced.update(event.replaced.items())
        for number in event.void:
            self.members.server_groups[number].since = self.members.server_groups[number].generation
        first, *others = members
        for member in others:
            self.members.move(member, "not formed")
        groups, raised = (m for m in members if isinstance(m, WorkerGroup)), event.raised is not None
        undone = tuple(why for group in groups if (why := self.places.retreat(group, raised=raised)))
        if isinstance(first, WorkerGroup) and self.run.dispensable(first):
            self.lose(MemberLoss(first, event.error, refused=True))
        elif undone:
            self.lose(MemberLoss(first, fact(Code.RESIZED_IN_VAIN, undone=undone, cause=event.error)))
        elif event.raised is not None:
            self.run.end(event.raised)
        else:
            self.lose(MemberLoss(first, str(event.error) if event.lost else event.error))

    def closed(self, replaced: Mapping[str, int]) -> None:
        """Members that were taken down or dropped are closed."""
        self.run.answered()
        self.run.changed()  # one more checkpoint may have been saved until the end
        self.run.processes.replaced.update(replaced.items())
        serving = [group.number for group in self.members.serving()]
        for member in self.members.all():
            if member.phase is Phase.DROPPED and isinstance(member, WorkerGroup) and member.server_group in serving:
                self.run.do(ev.Dismiss(member.server_group, member.number, member.generation))
            if member.phase in (Phase.CLOSING, Phase.DROPPED):
                self.members.move(member, "closed")

    # Commands

    def close(self) -> None:
        """Have members closed that were taken down or dropped."""
        gone = [member for member in self.members.all() if member.phase in (Phase.CLOSING, Phase.DROPPED)]
        groups = [member for member in gone if isinstance(member, WorkerGroup)]
        if gone and self.run.idle:
            growing = tuple(group.number for group in groups if group.added)
            servers = tuple(member.number for member in gone if isinstance(member, ServerGroup))
            self.run.begin("close", ev.Close(tuple(group.number for group in groups), servers, growing))

    def kill(self, pids: Mapping[str, int]) -> None:
        """Have nannies replace these processes, pid by address."""
        if pids:
            self.run.processes.replaced.update(pids.items())
            self.run.do(ev.Kill(pids))

    def lose(self, loss: MemberLoss) -> None:
        """A member is lost. The extent of it shows when processes are asked next."""
        self.members.move(loss.member, "lost")
        self.losses.append(loss)
        self.run.changed()

    # Decisions on a status request

    def waits_for_memory(self, silent: set[str], event: ev.StatusReport) -> bool:
        """Whether nannies that do not answer may hold what lost members would resume from, and have some time left."""
        keepers: Sequence[WorkerGroup | ServerGroup] = self.members.server_groups or self.members.worker_groups
        lost = [m for loss in self.losses for of in self.members.affected(loss.member, silent) for m in of]
        without = (m for m in keepers if (m in lost or m.phase is Phase.DOWN) and m.formed and not m.left)
        asked = any(self.run.processes.nannies_of(m.where) & event.silent for m in without)
        if self.run.stopping or not asked:
            self._silent_until = None
            return False
        if self._silent_until is None:
            self._silent_until = event.at + _SILENT_S
        return event.at < self._silent_until

    def take_losses(self, silent: set[str]) -> bool:
        """Take down what is lost. Returns whether anything was: then nothing can be placed yet."""
        taken = bool(self.losses)
        while self.losses and not self.run.over:
            loss = self.losses[0]
            if loss.member.phase is Phase.LOST and not self._take_down(loss, silent):
                return True
            self.losses.pop(0)  # or it is down already, with another one
        stranded = [] if taken else self.members.stranded()
        for group in stranded:
            self.lose(MemberLoss(group, fact(Code.SERVERS_GONE, group, servers=group.server_group)))
        return taken or bool(stranded)

    def _take_down(self, loss: MemberLoss, silent: set[str]) -> bool:
        """Take down a lost member and what goes along; False if the newest checkpoint must be known first."""
        member, cause = loss.member, loss.cause
        workers, servers = self.members.affected(member, silent)
        if loss.refused:
            self.run.drop(member, Code.NOT_JOINED, cause)
        elif isinstance(cause, BaseException) and not silent:
            self.run.end(cause)
        elif self.run.stopping:
            self._take_down_at_end(cause, workers, servers)
        elif self._needs_start(servers):
            self.run.checkpoint.move("want")
            return False
        else:
            if isinstance(member, WorkerGroup) and member.leaving:
                self.run.drop(member, Code.LEFT, cause)
                workers.remove(member)
            if workers or servers:
                self._restart(member, cause, workers, servers)
        return True

    def _take_down_at_end(self, cause: Cause, workers: Sequence[WorkerGroup], servers: Sequence[ServerGroup]) -> None:
        """Go on without what is lost while the run is being stopped, unless worker groups wait for it."""
        back = [group for group in servers if group.left]
        if workers:
            self.run.tell(Code.ENDS_HERE, cause=cause)
        for other in (*workers, *(group for group in servers if group not in back)):
            self.run.drop(other)
        if back:
            self._restart(back[0], cause, (), back)

    def _needs_start(self, servers: Sequence[ServerGroup]) -> bool:
        """Whether the newest checkpoint must be known, as no server group stays or comes back."""
        stay = set(self.members.serving()) - set(servers)
        unknown = self.run.checkpoint.phase is not CheckpointSearch.KNOWN
        return unknown and not stay and not any(group.left for group in servers)

    def _restart(
        self, member: Member, cause: Cause, workers: Sequence[WorkerGroup], servers: Sequence[ServerGroup]
    ) -> None:
        self.places.be_patient()
        numbers = tuple(group.number for group in workers)
        served = [n for group in servers for n in self.members.coming(group.number)]
        step = min((self.run.steps.get(number, 0) for number in numbers or served), default=0)
        member.restarts = 1 if step > member.reached else member.restarts + 1
        member.reached = max(member.reached, step)
        for other in (*workers, *servers):
            self.members.move(other, "take down")
        self.run.lead.move("restart")
        if member.restarts > self.max_restarts:
            given_up = fact(Code.GIVEN_UP, cause=cause, step=step, times=self.max_restarts)
            return self.run.end(cause if isinstance(cause, BaseException) else given_up)
        whole = tuple(group.number for group in servers if group.left)
        anew = tuple(group.number for group in servers if group.number not in whole)
        self.run.restarts.append(Restart(numbers, step, cause, anew, whole))
        way = self.members.way_out(workers, servers, self.run.found)
        back = [*workers, *servers] if way.code is Code.WITH_EVERYTHING else workers
        figures = {"attempt": member.restarts, "most": self.max_restarts, "everybody": not self.members.server_groups}
        self.run.tell(Code.RESTARTED, *back, cause=cause, step=step, **figures, way=way)
