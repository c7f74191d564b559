"""Events, which tell a run's state what has happened, and commands, by which it has things done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from singa_dask.cluster import WorkerInfo
    from singa_dask.training.checkpoint import Found
    from singa_dask.training.worker import GroupPlan

# Events


@dataclass(frozen=True)
class Surveyed:
    """The answer to a Survey. at: when, by a monotonic clock; found: the newest checkpoint, if it was asked for."""

    number: int
    workers: tuple[WorkerInfo, ...]
    at: float = 0.0
    found: Found | None = None


@dataclass(frozen=True)
class Formed:
    """A request succeeded. moved: old addresses of restarted Dask workers -> new ones; pids: by address, of processes
    that have a nanny."""

    request: int
    moved: Mapping[str, str] = field(default_factory=dict)
    pids: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NotFormed:
    """A request failed; nothing of it is left. raised: the error of a rank's own; lost: whether a process was lost for
    certain; replaced: processes that nannies were asked to replace, pid by address."""

    request: int
    error: Exception
    raised: BaseException | None = None
    lost: bool = False
    moved: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Closed:
    """A Close is done. replaced: as for NotFormed."""

    replaced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerGroupEnded:
    """Every rank of a worker group has returned."""

    group: int
    generation: int


@dataclass(frozen=True)
class WorkerGroupFailed:
    """A rank failed. raised: the error of its own, None where its process was lost; replaced: as above."""

    group: int
    generation: int
    cause: str
    raised: BaseException | None = None
    replaced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ServersLost:
    """These processes died."""

    addresses: frozenset[str]


@dataclass(frozen=True)
class Progress:
    """A worker group has made `step` steps."""

    group: int
    step: int


@dataclass(frozen=True)
class LeadTold:
    """The lead was told whether all others have ended. heard: whether all its ranks were reached."""

    ended: bool
    heard: bool


@dataclass(frozen=True)
class FlushFailed:
    """The server groups could not exchange for the last time."""

    cause: str


@dataclass(frozen=True)
class StopAsked:
    """Somebody wants the run to stop."""


@dataclass(frozen=True)
class JoinAsked:
    """Somebody wants one more worker group. asker: gets the Reply."""

    asker: Any


@dataclass(frozen=True)
class LeaveAsked:
    """Somebody wants a worker group to end."""

    asker: Any
    group: int


Event = (
    Surveyed
    | Formed
    | NotFormed
    | Closed
    | WorkerGroupEnded
    | WorkerGroupFailed
    | ServersLost
    | Progress
    | LeadTold
    | FlushFailed
    | StopAsked
    | JoinAsked
    | LeaveAsked
)


def line(event: Event | None) -> str:
    """A line for the history: the name of an event, and its short fields."""
    if event is None:
        return "the start"
    short = {name: value for name, value in vars(event).items() if isinstance(value, str | int | float)}
    return " ".join([type(event).__name__, *(f"{name}={value}" for name, value in short.items())])


# Commands. Survey, FormRequest, Close and TellLead are answered by an event; the others are not.


@dataclass(frozen=True)
class Survey:
    """Ask all Dask workers to describe themselves. checkpoint: look for the newest one too."""

    number: int
    checkpoint: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True)
class WorkerGroupRequest:
    """A worker group to form. server_group: that it uses."""

    plan: GroupPlan
    where: tuple[str, ...]
    server_group: int


@dataclass(frozen=True)
class ServerGroupRequest:
    """A server group to make. groups: the worker groups that will use it; accounts: the generations, left and right of
    each border, of neighbours that begin with the same parameters."""

    number: int
    where: tuple[str, ...]
    generation: int
    groups: tuple[int, ...]
    accounts: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class FormRequest:
    """Form these together. fresh: no server has parameters yet."""

    number: int
    worker_groups: tuple[WorkerGroupRequest, ...]
    server_groups: tuple[ServerGroupRequest, ...]
    fresh: bool


@dataclass(frozen=True)
class Close:
    """End the ranks of these worker groups, and let these server groups go."""

    worker_groups: tuple[int, ...]
    server_groups: tuple[int, ...]


@dataclass(frozen=True)
class TellLead:
    """Tell the lead whether all others have ended, after these server groups have exchanged, in this order."""

    ended: bool
    flush: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kill:
    """Have nannies replace these processes, pid by address."""

    pids: Mapping[str, int]


@dataclass(frozen=True)
class Stop:
    """Ask a worker group to end after its step."""

    group: int


@dataclass(frozen=True)
class Dismiss:
    """Have a server group wait no more for a worker group."""

    server_group: int
    group: int
    generation: int


@dataclass(frozen=True)
class Rewind:
    """These worker groups go back to a step (None: the start); their later metrics are void."""

    groups: tuple[int, ...]
    step: int | None


@dataclass(frozen=True)
class Note:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class Reply:
    """Answer a request to join or leave."""

    asker: Callable[[str], None]
    text: str


@dataclass(frozen=True)
class End:
    """The run is over. error: why it failed."""

    error: BaseException | None = None


Command = Survey | FormRequest | Close | TellLead | Kill | Stop | Dismiss | Rewind | Note | Reply | End
