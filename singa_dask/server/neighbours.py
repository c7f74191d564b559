"""The exchange of server groups with their neighbours, which loses no update.

Server groups form a line. Two neighbours keep an account per slice: the values that both know.

    delta = values - known;  known += delta         sent to the neighbour
    values += delta';        known += delta'        received from the neighbour

Each delta is added exactly once and passed on to the other neighbour. A line has no cycles, so no delta comes back:
after enough exchanges every copy holds the initial values plus the sum of all updates. One message carries all
changes, so its size does not depend on the number of groups. With each delta comes its ledger, which is subtracted and
added like values.

SINGA 0.3 uses a star around one master group and loses updates made during an exchange. Rounding errors are not lost
either: `known` grows by the values that were sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singa_dask.ops.arrays import Array
from singa_dask.server.ledger import Ledger
from singa_dask.server.messages import Delta, Refused, Sync


class Account:
    """The values that one slice and its counterpart at a neighbour both know, and their ledger.

    The left neighbour starts every exchange, so both sides add the same numbers in the same order. changes: how often
    it has changed.
    """

    def __init__(self, values: Array, ledger: Ledger, generations: tuple[int, int] = (0, 0)) -> None:
        self.known, self.ledger = values.copy(), ledger.copy()
        self._opening: tuple[Array, Ledger] | None = self.known, self.ledger
        self.generations = generations
        self.sequence = 0  # of the last exchange started (left) or answered (right)
        self._said: Sync | None = None
        self._answer: Delta | None = None
        self.changes = 0

    @property
    def opening(self) -> tuple[Array, Ledger]:
        """The initial values, for a neighbour that repeats its request; the known values after the first exchange."""
        return (self.known, self.ledger) if self._opening is None else self._opening

    @property
    def waiting(self) -> bool:
        """Whether an exchange is unanswered."""
        return self._said is not None

    def begin(self, slice_: int, values: Array, ledger: Ledger, reductions: int = 0) -> Sync:
        """The left side's next message; the same one until it is answered."""
        if self._said is None:
            self.sequence, self.changes = self.sequence + 1, self.changes + 1
            delta, added = self._tell(values, ledger)
            self._said = Sync(slice_, self.generations, self.sequence, delta, reductions, added)
        return self._said

    def finish(self, values: Array, ledger: Ledger, said: Sync, answer: Delta) -> None:
        """Take the right side's answer. Ignored if it belongs to an earlier account or was taken before."""
        if said is self._said:
            self._said, self.changes = None, self.changes + 1
            self._settle()
            self._hear(values, ledger, answer)

    def answer(self, values: Array, ledger: Ledger, message: Sync) -> Delta | Refused:
        """The right side's answer to a message. A repeated message gets the same answer again."""
        if message.account != self.generations:
            return Refused(f"an exchange of the account {message.account}, this one is {self.generations}")
        if message.sequence == self.sequence and self._answer is not None:
            return self._answer
        if message.sequence != self.sequence + 1:
            return Refused(f"exchange {message.sequence} after {self.sequence}")
        self.sequence, self.changes = message.sequence, self.changes + 1
        self._settle()
        self._hear(values, ledger, message)
        delta, added = self._tell(values, ledger)
        self._answer = Delta(delta, ledger=added)
        return self._answer

    def untold(self, values: Array, ledger: Ledger) -> tuple[Array, Ledger]:
        """The changes not yet sent to the neighbour."""
        return values - self.known, ledger.minus(self.ledger)

    def saved(self) -> tuple[Array, Array | None, dict[str, Any]]:
        """What a successor needs to go on with this account: the known values, or the opening ones while they are
        kept; the delta of the message that is repeated, if there is one; and the rest, for JSON."""
        (known, ledger), message = self.opening, self._said or self._answer
        note: dict[str, Any] = {"generations": self.generations, "sequence": self.sequence, "ledger": ledger.encode()}
        note |= {"opened": self._opening is not None, "said": self._said is not None}
        if message is None:
            return known, None, note
        return known, message.delta, note | {"reductions": message.reductions, "told": message.ledger.encode()}

    @classmethod
    def restored(cls, slice_: int, known: Array, delta: Array, note: Mapping[str, Any]) -> Account:
        """The inverse of `saved`. delta: of any values where there was none."""
        account = cls(known, Ledger.decode(note["ledger"]), tuple(note["generations"]))
        account.sequence = note["sequence"]
        if not note["opened"]:
            account._settle()
        if "told" in note:
            told, reductions = Ledger.decode(note["told"]), note["reductions"]
            if note["said"]:
                account._said = Sync(slice_, account.generations, account.sequence, delta, reductions, told)
                if note["opened"]:
                    account._add(delta, told)
            else:
                account._answer = Delta(delta, reductions, told)
        return account

    def _tell(self, values: Array, ledger: Ledger) -> tuple[Array, Ledger]:
        delta, added = self.untold(values, ledger)
        self._add(delta, added)
        return delta, added

    def _hear(self, values: Array, ledger: Ledger, message: Sync | Delta) -> None:
        values += message.delta
        ledger.merge(message.ledger)
        self._add(message.delta, message.ledger)

    def _add(self, delta: Array, added: Ledger) -> None:
        self.ledger = self.ledger.plus(added)
        if self._opening is not None and self.known is self._opening[0]:
            self.known = self.known + delta
        else:
            self.known += delta

    def _settle(self) -> None:
        """Drop the opening values: the neighbour exchanges, so it has them."""
        self._opening = None
