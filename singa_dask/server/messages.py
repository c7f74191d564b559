"""Messages between stubs, servers and neighbouring servers.

A message concerns one slice and is idempotent: a sender without a reply repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from singa_dask.comm.codecs import codec
from singa_dask.ops.arrays import Array
from singa_dask.server.ledger import Ledger
from singa_dask.updaters import Mixing


@dataclass(frozen=True)
class Origin:
    """The sender of a request.

    generation: increases whenever the worker group is re-formed, so that late messages of former generations are
    refused. first: step of the first update of this generation. clock: the maximum that any worker of the group got in
    a Fresh reply for any slice when the generation began. It is common to all slices: slices with different orders of
    the groups could make two groups wait for each other.
    """

    group: int
    generation: int = 0
    first: int = 0
    clock: int = 0


@dataclass(frozen=True)
class Put:
    """Set the initial parameters. Answered by Done. Ignored if the slice has values already.

    state: of the updater; version: updates made so far; reductions: see Update; ledger: of the values; step: with
    which the worker groups begin where the ledger is of another assignment.
    """

    slice: int
    values: Array
    state: Mapping[str, Array] = field(default_factory=dict)
    version: int = 0
    step: int = 0
    reductions: int = 0
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True)
class Get:
    """Request the parameters once they have this version. Answered by Fresh. Makes the group a member."""

    slice: int
    origin: Origin
    version: int = 0


@dataclass(frozen=True)
class Coded:
    """A coded array: `size` values of `dtype`. settings: of `codecs.codec`, with `name`."""

    size: int
    dtype: str
    settings: Mapping[str, Any]
    payload: Array

    @property
    def nbytes(self) -> int:
        return int(self.payload.nbytes)

    def decoded(self) -> Array:
        """The decoded array."""
        values = np.empty(self.size, self.dtype)
        codec(**self.settings).decode(self.payload, values)
        return values


@dataclass(frozen=True)
class Update:
    """Apply the gradient of the origin's step `step` and return the parameters. Answered by Fresh.

    gradient: an array, or Coded. based_on: version of the parameters for which it was computed. reductions: how often
    the learning rate of this step was reduced, the same for all slices. Servers tell the maximum that they know to
    everybody, so all groups reduce after the one that evaluates.
    """

    slice: int
    origin: Origin
    step: int
    gradient: Array
    based_on: int = 0
    reductions: int = 0


@dataclass(frozen=True)
class Leave:
    """The group makes no more updates, so nobody waits for it. Answered by Done."""

    slice: int
    origin: Origin


@dataclass(frozen=True)
class GoBack:
    """Go back to the state before the only worker group's step `step`, if there is an image of it. Answered by Fresh,
    whose `next_step` says where the slice is now."""

    slice: int
    origin: Origin
    step: int


@dataclass(frozen=True)
class Inspect:
    """Request the whole slice for a checkpoint. Answered by State."""

    slice: int


@dataclass(frozen=True)
class Sync:
    """From the left neighbour: changes that the receiver does not know. Answered by Delta with those of the receiver.

    account: both servers' generations; sequence: number of the exchange between the two; reductions: see Update;
    ledger: of the delta.
    """

    slice: int
    account: tuple[int, int]
    sequence: int
    delta: Array
    reductions: int = 0
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True)
class OpenAccount:
    """Open a new account with a restarted neighbour. Answered by State.

    values: the receiver takes over these values and adds its changes that the sender does not know. None: the sender
    takes over the receiver's values. ledger: of the values.
    """

    slice: int
    side: str  # the sender's, as the receiver sees it: "left" or "right"
    account: tuple[int, int]
    values: Array | None = None
    ledger: Ledger = field(default_factory=Ledger)


Request: TypeAlias = Put | Get | Update | GoBack | Leave | Inspect | Sync | OpenAccount


@dataclass(frozen=True)
class Done:
    """The request is done."""


@dataclass(frozen=True)
class Fresh:
    """Current parameters.

    version: number of updates that they contain; next_step: the first step of the group that they do not contain;
    clock: next_step plus the steps that a late group is excused from; staleness: updates between `based_on` and the
    answered update, including one of the same group under way; reductions: see Update; ledger: of the values.
    """

    values: Array
    version: int
    next_step: int = 0
    clock: int = 0
    staleness: int = 0
    reductions: int = 0
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True)
class State:
    """The whole slice. reductions: see Update; ledger: of the values."""

    values: Array
    state: Mapping[str, Array]
    version: int
    reductions: int = 0
    ledger: Ledger = field(default_factory=Ledger)


@dataclass(frozen=True)
class Delta:
    """Changes that the left neighbour did not know. reductions: see Update; ledger: of the delta; mixing: of these
    changes with those that the left neighbour has sent."""

    delta: Array
    reductions: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    mixing: Mixing = field(default_factory=Mixing)


@dataclass(frozen=True)
class NotYet:
    """The server is alive and the request still waits: repeat it."""


@dataclass(frozen=True)
class Moved:
    """The server has a successor, which goes on with everything that this one has acknowledged: repeat it there."""


@dataclass(frozen=True)
class Refused:
    """The request is outdated, or concerns something that is not here."""

    reason: str


Reply: TypeAlias = Done | Fresh | State | Delta | NotYet | Moved | Refused
