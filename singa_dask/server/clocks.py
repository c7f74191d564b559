"""How far each worker group is for one slice, and what an image of the slice says of it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from singa_dask.server.ledger import Ledger


@dataclass
class GroupClock:
    """The clock of a worker group for one slice.

    next: step of its next update. excused: steps for which nobody waits, because the group came late. begun: whether
    an update of this generation has arrived. clock: the measure that groups are compared by. A group that joins with
    step 40 when the slowest is at clock 100 is excused 60 steps, so its clock is 100.
    """

    generation: int
    next: int
    excused: int = 0
    active: bool = True
    begun: bool = False

    @property
    def clock(self) -> int:
        return self.next + self.excused


@dataclass(frozen=True)
class SliceNote:
    """What a server knows of a slice besides its values and its updater's state.

    members, reductions, untold, heard: as in SliceProtocol. accounts: numbers of the images of its accounts, by side.
    """

    ledger: Ledger
    members: dict[int, GroupClock]
    reductions: int
    untold: int
    heard: bool
    accounts: dict[str, int]

    def encode(self) -> bytes:
        """JSON, about 40 bytes for each worker group and 25 for each gap of the ledger."""
        members = [[group, *vars(member).values()] for group, member in self.members.items()]
        return json.dumps(vars(self) | {"ledger": self.ledger.encode(), "members": members}).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> SliceNote:
        """The inverse of `encode`."""
        told = json.loads(encoded)
        members = {group: GroupClock(*clock) for group, *clock in told["members"]}
        return cls(**told | {"ledger": Ledger.decode(told["ledger"]), "members": members})
