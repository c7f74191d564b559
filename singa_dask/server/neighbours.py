"""The exchange of server groups with their neighbours, which loses no update.

Server groups form a line. Two neighbours keep an account per slice: the values that both know.

    delta = values - known;  known += delta         sent to the neighbour
    values += delta';        known += delta'        received from the neighbour

Each delta is added exactly once and passed on to the other neighbour. A line has no cycles, so no delta comes back:
after enough exchanges every copy holds the initial values plus the sum of all updates. One message carries all
changes, so its size does not depend on the number of groups. With each delta comes its ledger, which is subtracted and
added like values.

An updater of the user's own may mix the deltas in another way (`Updater.mix`). The right side asks it, and sends the
answer with its delta. Both sides first add up, then correct values and known by the same numbers, so that the account
stays true. The ledger then says which mini-batches took part, whatever their weights.

SINGA 0.3 uses a star around one master group and loses updates made during an exchange. Rounding errors are not lost
either: `known` grows by the values that were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple
from itertools import count
from typing import Any

from singa_dask.ops.arrays import Array
from singa_dask.server.ledger import Ledger
from singa_dask.server.messages import Delta, Refused, Sync
from singa_dask.updaters import Changes, Mixing

_CHANGES = count(1)
Mix = Callable[[int, Changes, Changes], Mixing]


class Account:
    """The values that one slice and its counterpart at a neighbour both know, and their ledger.

    The left neighbour starts every exchange, so both sides add the same numbers in the same order. change: the number
    of its last change, which no other change in this process has.
    """

    def __init__(self, values: Array, ledger: Ledger, generations: tuple[int, int] = (0, 0)) -> None:
        self.known, self.ledger = values.copy(), ledger.copy()
        self._opening: tuple[Array, Ledger] | None = self.known, self.ledger
        self.generations = generations
        self.sequence = 0  # of the last exchange started (left) or answered (right)
        self._said: Sync | None = None
        self._answer: Delta | None = None
        self.change = next(_CHANGES)

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
            self.sequence, self.change = self.sequence + 1, next(_CHANGES)
            delta, added = self.untold(values, ledger)
            self._add(delta, added)
            self._said = Sync(slice_, self.generations, self.sequence, delta, reductions, added)
        return self._said

    def finish(self, values: Array, ledger: Ledger, said: Sync, answer: Delta) -> None:
        """Take the right side's answer. Ignored if it belongs to an earlier account or was taken before."""
        if said is self._said:
            self._said, self.change = None, next(_CHANGES)
            self._settle()
            self._hear(values, ledger, answer)
            self._correct(values, answer.mixing, said.delta, said.delta, answer.delta)

    def answer(self, values: Array, ledger: Ledger, message: Sync, mix: Mix) -> Delta | Refused:
        """The right side's answer to a message. A repeated message gets the same answer again. mix: Updater.mix."""
        if message.account != self.generations:
            return Refused(f"an exchange of the account {message.account}, this one is {self.generations}")
        if message.sequence == self.sequence and self._answer is not None:
            return self._answer
        if message.sequence != self.sequence + 1:
            return Refused(f"exchange {message.sequence} after {self.sequence}")
        delta, added = self.untold(values, ledger)
        changes = Changes(message.delta, message.ledger.updates), Changes(delta, added.updates)
        mixing = mix(message.sequence, *changes)
        if not isinstance(mixing, Mixing):
            raise TypeError(f"mix must return a Mixing, not {mixing!r}")
        self.sequence, self.change = message.sequence, next(_CHANGES)
        self._settle()
        self._hear(values, ledger, message)
        self._add(delta, added)
        self._correct(values, mixing, delta, message.delta, delta)
        self._answer = Delta(delta, ledger=added, mixing=mixing)
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
        if isinstance(message, Delta):
            note["mixing"] = astuple(message.mixing)
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
                account._answer = Delta(delta, reductions, told, Mixing(*note["mixing"]))
        return account

    def _hear(self, values: Array, ledger: Ledger, message: Sync | Delta) -> None:
        values += message.delta
        ledger.merge(message.ledger)
        self._add(message.delta, message.ledger)

    def _correct(self, values: Array, mixing: Mixing, own: Array, left: Array, right: Array) -> None:
        """Turn the sum of both sides' deltas into what `mixing` makes of them."""
        if mixing == Mixing():
            return
        share = mixing.share
        change = (share * mixing.left - 1) * left + (share * mixing.right - 1) * right
        self.known += change
        values += change + (1 - share) * own

    def _add(self, delta: Array, added: Ledger) -> None:
        self.ledger = self.ledger.plus(added)
        if self._opening is not None and self.known is self._opening[0]:
            self.known = self.known + delta
        else:
            self.known += delta

    def _settle(self) -> None:
        """Drop the opening values: the neighbour exchanges, so it has them."""
        self._opening = None
