"""The phases of a run and of its members, and every way from one to another. Nothing else changes a phase."""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, TypeVar


class Phase(Enum):
    """The phase of a worker group or a server group. Its processes are in use until it has ENDED."""

    DOWN = "down"  # waits for places
    FORMING = "forming"  # the launcher has it
    RUNNING = "running"  # is watched
    LOST = "lost"  # waits for a status request, which shows the extent of the loss
    CLOSING = "closing"  # its ranks or servers are being closed
    DROPPED = "dropped"  # the same, for good
    ENDED = "ended"


class Course(Enum):
    """Whether a run goes on."""

    GOING = "going"
    STOPPING = "stopping"  # it was asked to end early
    OVER = "over"  # no event changes anything any more


class Operation(Enum):
    """What is being done to processes. There is one operation at a time."""

    NONE = "none"
    FORMING = "forming"
    CLOSING = "closing"
    TELLING = "telling the lead"


class Status(Enum):
    """The question which processes answer, and what lost ones have left. There is one at a time."""

    NONE = "none"
    OPEN = "open"
    OUTDATED = "outdated"  # open, but something has happened since: its answer decides nothing


class CheckpointSearch(Enum):
    """The newest checkpoint. It is looked for where members may begin with it."""

    UNKNOWN = "unknown"
    WANTED = "wanted"  # a loss waits for it
    KNOWN = "known"


class Lead(Enum):
    """What worker group 0 believes of the others, which it waits for at its end."""

    UNAWARE = "unaware"  # that others work
    TOLD = "told"  # that all others have ended, after the last exchange of the servers
    MISTAKEN = "mistaken"  # it was told, and there was a restart since


TRANSITIONS: dict[tuple[Enum, str], Any] = {
    # Of members
    (Phase.DOWN, "form"): Phase.FORMING,
    (Phase.FORMING, "formed"): Phase.RUNNING,
    (Phase.FORMING, "not formed"): Phase.DOWN,
    (Phase.FORMING, "lost"): Phase.LOST,
    (Phase.RUNNING, "lost"): Phase.LOST,
    (Phase.RUNNING, "ended"): Phase.ENDED,
    (Phase.LOST, "take down"): Phase.CLOSING,
    (Phase.RUNNING, "take down"): Phase.CLOSING,
    (Phase.DOWN, "take down"): Phase.CLOSING,
    (Phase.CLOSING, "closed"): Phase.DOWN,
    (Phase.LOST, "drop"): Phase.DROPPED,
    (Phase.RUNNING, "drop"): Phase.DROPPED,
    (Phase.DOWN, "drop"): Phase.DROPPED,
    (Phase.DROPPED, "closed"): Phase.ENDED,
    # Of the run
    (Course.GOING, "stop"): Course.STOPPING,
    (Course.GOING, "end"): Course.OVER,
    (Course.STOPPING, "end"): Course.OVER,
    (Operation.NONE, "form"): Operation.FORMING,
    (Operation.FORMING, "answered"): Operation.NONE,
    (Operation.NONE, "close"): Operation.CLOSING,
    (Operation.CLOSING, "answered"): Operation.NONE,
    (Operation.NONE, "tell"): Operation.TELLING,
    (Operation.TELLING, "answered"): Operation.NONE,
    (Status.NONE, "ask"): Status.OPEN,
    (Status.NONE, "outdate"): Status.NONE,
    (Status.OPEN, "outdate"): Status.OUTDATED,
    (Status.OUTDATED, "outdate"): Status.OUTDATED,
    (Status.OPEN, "answered"): Status.NONE,
    (Status.OUTDATED, "answered"): Status.NONE,
    (CheckpointSearch.UNKNOWN, "want"): CheckpointSearch.WANTED,
    (CheckpointSearch.UNKNOWN, "look"): CheckpointSearch.KNOWN,
    (CheckpointSearch.WANTED, "look"): CheckpointSearch.KNOWN,
    (CheckpointSearch.UNKNOWN, "forget"): CheckpointSearch.UNKNOWN,
    (CheckpointSearch.WANTED, "forget"): CheckpointSearch.WANTED,
    (CheckpointSearch.KNOWN, "forget"): CheckpointSearch.UNKNOWN,
    (Lead.UNAWARE, "told"): Lead.TOLD,
    (Lead.MISTAKEN, "told"): Lead.TOLD,
    (Lead.TOLD, "told otherwise"): Lead.UNAWARE,
    (Lead.MISTAKEN, "told otherwise"): Lead.UNAWARE,
    (Lead.UNAWARE, "restart"): Lead.UNAWARE,
    (Lead.TOLD, "restart"): Lead.MISTAKEN,
    (Lead.MISTAKEN, "restart"): Lead.MISTAKEN,
    (Lead.UNAWARE, "formed"): Lead.UNAWARE,
    (Lead.MISTAKEN, "formed"): Lead.UNAWARE,
}

P = TypeVar("P", bound=Enum)


def moved(phase: P, what: str) -> P:
    """The phase after the transition that `what` means. Raises KeyError where TRANSITIONS has none."""
    after: P = TRANSITIONS[phase, what]
    return after


class Track(Generic[P]):
    """One of the things of a run that have phases."""

    def __init__(self, phase: P) -> None:
        self.phase = phase

    def move(self, what: str) -> None:
        """Make the transition that `what` means."""
        self.phase = moved(self.phase, what)
