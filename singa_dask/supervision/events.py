"""Events, which tell a run's state what has happened, and commands, by which it has things done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from singa_dask.supervision.facts import Fact

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo
    from singa_dask.memory.owner import Saved
    from singa_dask.server.ledger import Ledger
    from singa_dask.training.checkpoint import Found
    from singa_dask.training.rank_plan import GroupPlan


class Event:
    """Something that has happened."""


@dataclass(frozen=True)
class Inherited:
    """What the servers of an earlier start of the run have left in memory, by the group's name.

    fits: whether it is of the same net, updater, data and topology. torn: the server groups of which something is
    missing. ledgers: of those whose memory can be read.
    """

    fits: bool = True
    torn: tuple[str, ...] = ()
    ledgers: Mapping[str, Ledger] = field(default_factory=dict)


@dataclass(frozen=True)
class StatusReport(Event):
    """The answer to a StatusRequest. at: when, by a monotonic clock; nannies: those of it that answer; found: the
    newest checkpoint, if it was asked for; left: what the processes of worker groups and server groups have left in
    memory, by the group's name; inherited: of `left`, if servers of an earlier start have left it; silent: the nannies
    that do not answer in time, and may hold more."""

    number: int
    workers: tuple[WorkerInfo, ...]
    at: float = 0.0
    found: Found | None = None
    left: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    nannies: frozenset[str] = frozenset()
    inherited: Inherited | None = None
    silent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Formed(Event):
    """A request succeeded. moved: old addresses of restarted Dask workers -> new ones; pids: by address, of processes
    that have a nanny; unkept: the server groups of which no memory would outlive their processes."""

    request: int
    moved: Mapping[str, str] = field(default_factory=dict)
    pids: Mapping[str, int] = field(default_factory=dict)
    unkept: tuple[int, ...] = ()


@dataclass(frozen=True)
class NotFormed(Event):
    """A request failed; nothing of it is left. raised: the error of a rank's own; lost: whether a process was lost for
    certain, or did not answer; replaced: processes that nannies were asked to replace, pid by address; void: the
    server groups that have left memory without parameters."""

    request: int
    error: Exception
    raised: BaseException | None = None
    lost: bool = False
    moved: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)
    void: tuple[int, ...] = ()


@dataclass(frozen=True)
class Closed(Event):
    """A Close is done. replaced: as for NotFormed."""

    replaced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerGroupEnded(Event):
    """Every rank of a worker group has returned."""

    group: int
    generation: int


@dataclass(frozen=True)
class WorkerGroupFailed(Event):
    """A rank failed. raised: the error of its own, None where its process was lost; replaced: as above."""

    group: int
    generation: int
    cause: str
    raised: BaseException | None = None
    replaced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ServersLost(Event):
    """These processes died, or are stopped. stopped: the latter."""

    addresses: frozenset[str]
    stopped: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ReplicaLost(Event):
    """A server, by its group and its rank there, has lost the replica with this number. awaited: whether it
    acknowledges nothing until it hears that this is known."""

    group: int
    generation: int
    rank: int
    replica: int
    awaited: bool


@dataclass(frozen=True)
class Progress(Event):
    """A worker group has made `step` steps."""

    group: int
    step: int


@dataclass(frozen=True)
class LeadTold(Event):
    """The answer to a TellLead. heard: whether all ranks of the lead were reached; fault: why server groups could not
    exchange before, and the lead was not told."""

    ended: bool
    heard: bool
    fault: str = ""


@dataclass(frozen=True)
class StopAsked(Event):
    """Somebody wants the run to stop. by: who, for the record. early: the lead ends by itself, after the others."""

    by: str = "Ctrl-C"
    early: bool = False


@dataclass(frozen=True)
class JoinAsked(Event):
    """Somebody wants one more worker group. asker: gets the Reply."""

    asker: Any


@dataclass(frozen=True)
class LeaveAsked(Event):
    """Somebody wants a worker group to end."""

    asker: Any
    group: int


def line(event: Event | None) -> str:
    """A line for the history: the name of an event, and its short fields."""
    if event is None:
        return "the start"
    short = {name: value for name, value in vars(event).items() if isinstance(value, str | int | float)}
    return " ".join([type(event).__name__, *(f"{name}={value}" for name, value in short.items())])


class Command:
    """Something to do. StatusRequest, FormRequest, Close and TellLead are answered by an event; the others are not."""


@dataclass(frozen=True)
class StatusRequest(Command):
    """Ask all Dask workers to describe themselves, and these nannies and theirs what they hold of lost processes.

    checkpoint: look for the newest one too.
    """

    number: int
    checkpoint: bool = False
    delay_s: float = 0.0
    nannies: frozenset[str] = frozenset()


@dataclass(frozen=True)
class WorkerGroupRequest:
    """A worker group to form. server_group: that it uses. grows: whether it takes in Dask workers that it lacked."""

    plan: GroupPlan
    where: tuple[str, ...]
    server_group: int
    grows: bool = False


@dataclass(frozen=True)
class ServerGroupRequest:
    """A server group to make. groups: the worker groups that will use it; accounts: the generations, left and right of
    each border, of neighbours that begin with the same parameters; sides: on which there are neighbours; also: another
    nanny of each server's machine, "" for none; replicas: the nanny that keeps each server's replica, "" for none;
    left: what the lost servers have left, from which it goes on."""

    number: int
    where: tuple[str, ...]
    generation: int
    groups: tuple[int, ...]
    accounts: Mapping[str, tuple[int, int]]
    sides: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    left: tuple[Saved, ...] = ()


@dataclass(frozen=True)
class FormRequest(Command):
    """Form these together. fresh: no server has parameters yet."""

    number: int
    worker_groups: tuple[WorkerGroupRequest, ...]
    server_groups: tuple[ServerGroupRequest, ...]
    fresh: bool


@dataclass(frozen=True)
class Close(Command):
    """End the ranks of these worker groups, and let these server groups go. growing: those of the worker groups that
    have lost nothing: their ranks leave after a step."""

    worker_groups: tuple[int, ...]
    server_groups: tuple[int, ...]
    growing: tuple[int, ...] = ()


@dataclass(frozen=True)
class TellLead(Command):
    """Tell the lead whether all others have ended, after these server groups have exchanged, in this order."""

    ended: bool
    flush: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kill(Command):
    """Have nannies replace these processes, pid by address."""

    pids: Mapping[str, int]


@dataclass(frozen=True)
class Stop(Command):
    """Ask a worker group to end after its step."""

    group: int


@dataclass(frozen=True)
class Dismiss(Command):
    """Have a server group wait no more for a worker group."""

    server_group: int
    group: int
    generation: int


@dataclass(frozen=True)
class ReplaceReplica(Command):
    """Tell a server that the loss of its replica is known. nanny: keeps the next one, "" for none."""

    server_group: int
    rank: int
    replica: int
    nanny: str


@dataclass(frozen=True)
class RecordOutdated(Command):
    """Record that a replica does not count any more, for a driver that follows this one."""

    server_group: int
    generation: int
    rank: int
    replica: int


@dataclass(frozen=True)
class LetEarlierGo(Command):
    """Have nannies hold nothing any more of earlier starts of the run."""

    nannies: frozenset[str]


@dataclass(frozen=True)
class Rewind(Command):
    """These worker groups go back to a step (None: the start); their later metrics are void."""

    groups: tuple[int, ...]
    step: int | None


@dataclass(frozen=True)
class Note(Command):
    """Tell the user."""

    what: Fact


@dataclass(frozen=True)
class Reply(Command):
    """Answer a request to join or leave."""

    asker: Callable[[str], None]
    what: Fact


@dataclass(frozen=True)
class End(Command):
    """The run is over. error: why it failed."""

    error: Fact | BaseException | None = None
