"""How server groups exchange with their neighbours without losing an update.

Server groups stand in a line. Between two neighbours there is, per slice, an account: the values that both know.

    delta = values - known;  known += delta         what is told to the neighbour
    values += delta';        known += delta'        what the neighbour tells

Everything told is added exactly once, and passed on to the other neighbour, who does not know it. A line has no
cycles, so nothing comes back: after enough exchanges every copy holds the initial values plus the sum of everybody's
updates. One message carries all that has happened, whoever did it; its size does not grow with the number of groups.

SINGA 0.3 has a star around one master group, where updates made during the exchange get lost. Rounding is not lost
either: `known` grows by what was told, not by what was meant.
"""

from __future__ import annotations

from singa_dask.ops.arrays import Array
from singa_dask.server.messages import Delta, Refused, Sync


class Account:
    """What one slice and its counterpart at a neighbour both know.

    The left one of the two begins every exchange, so both sides add the same numbers in the same order.
    """

    def __init__(self, values: Array, generations: tuple[int, int] = (0, 0)) -> None:
        self.known = values.copy()
        self._opening: Array | None = self.known
        self.generations = generations
        self.sequence = 0  # of the last exchange that was begun (left) or answered (right)
        self._said: Sync | None = None
        self._answer: Delta | None = None

    @property
    def opening(self) -> Array:
        """What both knew at first, for a neighbour that asks for it again; what is known once it has begun with it."""
        return self.known if self._opening is None else self._opening

    @property
    def waiting(self) -> bool:
        """Whether an exchange has been begun and not been answered."""
        return self._said is not None

    def begin(self, slice_: int, values: Array) -> Sync:
        """The left side's next message; the same one again until it has been answered."""
        if self._said is None:
            self.sequence += 1
            self._said = Sync(slice_, self.generations, self.sequence, self._tell(values))
        return self._said

    def finish(self, values: Array, said: Sync, answer: Delta) -> None:
        """The right side has answered. Ignored where that was said in an earlier account, or answered before."""
        if said is self._said:
            self._said = None
            self._settle()
            self._hear(values, answer.delta)

    def answer(self, values: Array, message: Sync) -> Delta | Refused:
        """The right side's answer to a message; a repeated one gets the answer that it got before."""
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
        """What the neighbour has not been told."""
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
        """The neighbour exchanges, so it has begun with the opening values."""
        self._opening = None
