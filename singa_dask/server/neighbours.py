"""The exchange of server groups with their neighbours, which loses no update.

Server groups form a line. Two neighbours keep an account per slice: the values that both know.

    delta = values - known;  known += delta         sent to the neighbour
    values += delta';        known += delta'        received from the neighbour

Each delta is added exactly once and passed on to the other neighbour. A line has no cycles, so no delta comes back:
after enough exchanges every copy holds the initial values plus the sum of all updates. One message carries all
changes, so its size does not depend on the number of groups.

SINGA 0.3 uses a star around one master group and loses updates made during an exchange. Rounding errors are not lost
either: `known` grows by the values that were sent.
"""

from __future__ import annotations

from singa_dask.ops.arrays import Array
from singa_dask.server.messages import Delta, Refused, Sync


class Account:
    """The values that one slice and its counterpart at a neighbour both know.

    The left neighbour starts every exchange, so both sides add the same numbers in the same order.
    """

    def __init__(self, values: Array, generations: tuple[int, int] = (0, 0)) -> None:
        self.known = values.copy()
        self._opening: Array | None = self.known
        self.generations = generations
        self.sequence = 0  # of the last exchange started (left) or answered (right)
        self._said: Sync | None = None
        self._answer: Delta | None = None

    @property
    def opening(self) -> Array:
        """The initial values, for a neighbour that repeats its request; the known values after the first exchange."""
        return self.known if self._opening is None else self._opening

    @property
    def waiting(self) -> bool:
        """Whether an exchange is unanswered."""
        return self._said is not None

    def begin(self, slice_: int, values: Array, reductions: int = 0) -> Sync:
        """The left side's next message; the same one until it is answered."""
        if self._said is None:
            self.sequence += 1
            self._said = Sync(slice_, self.generations, self.sequence, self._tell(values), reductions)
        return self._said

    def finish(self, values: Array, said: Sync, answer: Delta) -> None:
        """Take the right side's answer. Ignored if it belongs to an earlier account or was taken before."""
        if said is self._said:
            self._said = None
            self._settle()
            self._hear(values, answer.delta)

    def answer(self, values: Array, message: Sync) -> Delta | Refused:
        """The right side's answer to a message. A repeated message gets the same answer again."""
        if message.account != self.generations:
            return Refused(f"an exchange of the account {message.account}, this one is {self.generations}")
        if message.sequence == self.sequence and self._answer is not None:
            return self._answer
        if message.sequence != self.sequence + 1:
            return Refused(f"exchange {message.sequence} after {self.sequence}")
        self.sequence = message.sequence
        self._settle()
        self._hear(values, message.delta)
        self._answer = Delta(self._tell(values))
        return self._answer

    def untold(self, values: Array) -> Array:
        """The changes not yet sent to the neighbour."""
        return values - self.known

    def _tell(self, values: Array) -> Array:
        delta = self.untold(values)
        self._add(delta)
        return delta

    def _hear(self, values: Array, delta: Array) -> None:
        values += delta
        self._add(delta)

    def _add(self, delta: Array) -> None:
        if self.known is self._opening:
            self.known = self.known + delta
        else:
            self.known += delta

    def _settle(self) -> None:
        """Drop the opening values: the neighbour exchanges, so it has them."""
        self._opening = None
