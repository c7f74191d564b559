"""What has become of a run, and what its parts want done: losing, forming and ending share it. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from singa_dask.supervision import events as ev
from singa_dask.supervision.facts import Cause, Code, Fact, fact
from singa_dask.supervision.members import Member, Members, Restart, ServerGroup, WorkerGroup
from singa_dask.supervision.phases import CheckpointSearch, Course, Lead, Operation, Status, Track
from singa_dask.supervision.processes import Processes

if TYPE_CHECKING:
    from singa_dask.training.checkpoint import Found

_Operation: TypeAlias = ev.FormRequest | ev.Close | ev.TellLead


class RunState:
    """The state of one run.

    gpus: as Processes takes them. steps: last known step of every worker group. stopped: by whom it was asked to stop.
    error: why it failed.
    course, operation, status, checkpoint, lead: their phases. request: the operation under way. asked: the last status
    request. found: the newest checkpoint, if it is known. commands: of the event that is being handled.
    """

    def __init__(
        self, members: Members, steps: Mapping[int, int] | None = None, gpus: Sequence[int] | None = None
    ) -> None:
        self.members, self.processes = members, Processes(gpus)
        self.steps: dict[int, int] = dict(steps or {})
        self.restarts: list[Restart] = []
        self.course, self.operation = Track(Course.GOING), Track(Operation.NONE)
        self.status, self.checkpoint, self.lead = (
            Track(Status.NONE),
            Track(CheckpointSearch.UNKNOWN),
            Track(Lead.UNAWARE),
        )
        self.stopped = ""
        self.error: Fact | BaseException | None = None
        self.request: _Operation | None = None
        self.asked = ev.StatusRequest(0)
        self.found: Found | None = None
        self.commands: list[ev.Command] = []

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.course.phase is Course.OVER

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to stop."""
        return self.course.phase is Course.STOPPING

    @property
    def idle(self) -> bool:
        """Whether there is no operation under way."""
        return self.operation.phase is Operation.NONE

    def dispensable(self, group: WorkerGroup) -> bool:
        """Whether it came to a running job and has not done anything for it yet."""
        return group.joined and group.number not in self.steps

    def keeps_replica(self, group: ServerGroup, rank: int, lost: int = 0) -> str:
        """The nanny that keeps the next replica of a server, "" for none. lost: how many it has lost."""
        wanted, used = self.members.topology.server_replicas, self.members.used()
        return self.processes.keeps_replica(group.where[rank], used, rank + lost, wanted=wanted)

    def do(self, command: ev.Command) -> None:
        """Have something done."""
        self.commands.append(command)

    def tell(self, code: Code, *whom: Member, cause: Cause = "", **figures: Any) -> None:
        """Tell the user."""
        self.do(ev.Note(fact(code, *whom, cause=cause, **figures)))

    def begin(self, what: str, operation: _Operation) -> None:
        """Have an operation done, which an event answers."""
        self.operation.move(what)
        self.request = operation
        self.do(operation)

    def answered(self) -> None:
        """The operation is done."""
        self.operation.move("answered")
        self.request = None
        self.status.move("outdate")

    def changed(self) -> None:
        """What was found out before decides nothing any more."""
        self.checkpoint.move("forget")
        self.found = None
        self.status.move("outdate")

    def drop(self, member: Member, code: Code | None = None, cause: Cause = "") -> None:
        """Go on without a member."""
        if code is not None:
            self.tell(code, member, cause=cause)
        self.members.move(member, "drop")

    def end(self, error: Fact | BaseException | None = None) -> None:
        """The run is over."""
        self.course.move("end")
        self.error = error
