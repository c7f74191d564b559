"""What the state of a run says: codes, with whom they are about, causes and figures. words.py has the sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeAlias


class Code(Enum):
    """What happened."""

    # Causes of losses, and errors that end a run
    SERVERS_DIED = auto()
    SERVERS_GONE = auto()
    NOT_TAKEN_IN = auto()
    NOT_SHRUNK = auto()
    RESIZED_IN_VAIN = auto()
    DRIVER_LOST = auto()
    NO_REPLACEMENT = auto()
    GIVEN_UP = auto()
    # Losses
    RESTARTED = auto()
    WITH_EVERYTHING = auto()
    FROM_SERVERS = auto()
    FROM_NEIGHBOUR = auto()
    FROM_RANKS = auto()
    FROM_CHECKPOINT = auto()
    FROM_CHECKPOINT_IN_MEMORY = auto()
    ENDS_HERE = auto()
    NOT_JOINED = auto()
    LEFT = auto()
    LEFT_OUT = auto()
    NOT_BACK = auto()
    EXCHANGE_FAILED = auto()
    REPLICA_LOST = auto()
    STANDS_STILL = auto()
    STOOD_STILL = auto()
    # Places and memory
    SHRUNK = auto()
    COMPLETE = auto()
    COLOCATED = auto()
    OWN_PROCESSES = auto()
    UNKEPT = auto()
    REPLICATED = auto()
    BEGINS_IN_MEMORY = auto()
    TAKEN_OVER = auto()
    NOT_TAKEN_OVER = auto()
    MISFIT = auto()
    TORN = auto()
    GONE = auto()
    FEWER = auto()
    # Where a run begins
    ONLY_IN_MEMORY = auto()
    PASSED_OVER = auto()
    DEALT_ANEW = auto()
    OTHER_CLUSTER = auto()
    OTHER_CODE = auto()
    OTHER_EVALUATED = auto()
    # Requests
    STOPPING = auto()
    JOINS = auto()
    LEAVES = auto()
    SYNCHRONOUS = auto()
    ENDING = auto()
    TOO_FEW_FREE = auto()
    NOT_AT_WORK = auto()
    LEAD_STAYS = auto()
    BEING_FORMED = auto()


@dataclass(frozen=True)
class Fact:
    """Something that happened.

    whom: the members that it is about. cause: why it happened. figures: by the names that they have in words.py.
    """

    code: Code
    whom: tuple[str, ...] = ()
    cause: Cause = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


# The words of others, such as the error of a rank, are passed on.
Cause: TypeAlias = Fact | BaseException | str


def fact(code: Code, *whom: Any, cause: Cause = "", **figures: Any) -> Fact:
    """A Fact about these members."""
    return Fact(code, tuple(map(str, whom)), cause, figures)
