"""What stubs, servers and neighbouring servers say to each other. A message concerns one slice, and is idempotent:
whoever gets no answer says the same again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from singa_dask.comm.codecs import codec
from singa_dask.ops.arrays import Array


@dataclass(frozen=True)
class Origin:
    """Who asks.

    generation: grows whenever the worker group is formed anew, so that what a former one left under way is refused.
    first: step of the first update of this generation. clock: the greatest that Fresh told any worker of the group
    when this generation began, of any slice; one for all slices, as two that disagree about who is ahead would let two
    groups wait for each other.
    """

    group: int
    generation: int = 0
    first: int = 0
    clock: int = 0


@dataclass(frozen=True)
class Put:
    """Here are the initial parameters: answered by Done. Ignored where the slice has values already.

    state: of the updater; version: updates made so far; step: where the worker groups stand.
    """

    slice: int
    values: Array
    state: Mapping[str, Array] = field(default_factory=dict)
    version: int = 0
    step: int = 0


@dataclass(frozen=True)
class Get:
    """Send the parameters, as soon as they have this version: answered by Fresh. Makes the group a member."""

    slice: int
    origin: Origin
    version: int = 0


@dataclass(frozen=True)
class Coded:
    """An array on its way through a codec: `size` values of `dtype`. settings: of `codecs.codec`, with `name`."""

    size: int
    dtype: str
    settings: Mapping[str, Any]
    payload: Array

    @property
    def nbytes(self) -> int:
        return int(self.payload.nbytes)

    def decoded(self) -> Array:
        """The values."""
        values = np.empty(self.size, self.dtype)
        codec(**self.settings).decode(self.payload, values)
        return values


@dataclass(frozen=True)
class Update:
    """Apply the gradient of the origin's step `step`, and send the parameters: answered by Fresh.

    gradient: an array, or Coded where it travels. based_on: version of the parameters that it is of.
    """

    slice: int
    origin: Origin
    step: int
    gradient: Array
    based_on: int = 0


@dataclass(frozen=True)
class Leave:
    """The group makes no more updates: nobody waits for it. Answered by Done."""

    slice: int
    origin: Origin


@dataclass(frozen=True)
class Inspect:
    """Send all that the slice holds, for a checkpoint: answered by State."""

    slice: int


@dataclass(frozen=True)
class Sync:
    """From the left neighbour: what the receiver does not know yet. Answered by Delta, what the sender does not know.

    account: both servers' generations; sequence: grows with every exchange between the two.
    """

    slice: int
    account: tuple[int, int]
    sequence: int
    delta: Array


@dataclass(frozen=True)
class OpenAccount:
    """From a neighbour that has been made anew: begin a new account. Answered by State.

    values: what the receiver must take over, adding only what its neighbour never heard of; None: the neighbour
    takes over what the receiver has.
    """

    slice: int
    side: str  # the sender's, as the receiver sees it: "left" or "right"
    account: tuple[int, int]
    values: Array | None = None


Request: TypeAlias = Put | Get | Update | Leave | Inspect | Sync | OpenAccount


@dataclass(frozen=True)
class Done:
    """Nothing more to say."""


@dataclass(frozen=True)
class Fresh:
    """Parameters. version: updates that they contain; next_step: the first step of the group that they do not contain;
    clock: next_step and the steps that the group is excused from, as it came late; staleness: updates between
    `based_on` and the update that this answers, one of the same group that was under way included."""

    values: Array
    version: int
    next_step: int = 0
    clock: int = 0
    staleness: int = 0


@dataclass(frozen=True)
class State:
    """All that a slice holds."""

    values: Array
    state: Mapping[str, Array]
    version: int


@dataclass(frozen=True)
class Delta:
    """What the left neighbour did not know."""

    delta: Array


@dataclass(frozen=True)
class NotYet:
    """Still waiting, and alive: ask again."""


@dataclass(frozen=True)
class Refused:
    """The request is from the past, or about something that is not here."""

    reason: str


Reply: TypeAlias = Done | Fresh | State | Delta | NotYet | Refused
