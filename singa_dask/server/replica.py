"""A second place for what a server saves, on another machine, and the replies that wait for it. No IO.

A reply is given once the replica has the copy that was saved before it. So if the server is lost with its host, the
replica has everything that was acknowledged. One message brings the newest copies of all slices that have changed
meanwhile, so a server whose replica is slow sends fewer of them.

A server may stop waiting for its replica only once its driver knows: a successor would go on from an outdated one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from singa_dask.comm.shared_memory import Memory
from singa_dask.server.kept import SIDES, KeptServer, ServerShadow, account_of
from singa_dask.server.shadow import Copy, Shadow, ShadowAddress
from singa_dask.server.slices import Slice

T = TypeVar("T")
Array = np.ndarray
_SLICES, _ACCOUNTS = 0, 1
# Bytes of a message: they are copied while the server waits.
MESSAGE_NBYTES = 16 << 20


@dataclass(frozen=True)
class Piece:
    """A copy of a slice or of an account, on its way to the replica. part: of which of the two shadows; number: of the
    copy at its server, growing; the rest: as in Copy."""

    part: int
    index: int
    number: int
    version: int
    values: Array
    states: Mapping[str, Array]
    note: bytes

    @classmethod
    def of(cls, part: int, index: int, copy: Copy) -> Piece:
        """A copy, whose memory may be written to afterwards."""
        states = {name: array.copy() for name, array in copy.states.items()}
        return cls(part, index, copy.number, copy.version, copy.values.copy(), states, copy.note)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return int(self.values.nbytes + sum(array.nbytes for array in self.states.values()))


class Replica:
    """The shadows that a server's copies are written to, in the process that keeps them."""

    def __init__(self, shadows: Sequence[Shadow]) -> None:
        self.shadows = tuple(shadows)
        self._written: dict[tuple[int, int], int] = {}

    @property
    def memories(self) -> tuple[Memory, ...]:
        """All memory that it takes."""
        return tuple(shadow.memory for shadow in self.shadows)

    @classmethod
    def create(cls, described: KeptServer, room: Callable[[int], bool]) -> Replica | None:
        """One without copies, of the shape of a server's shadows; None if there is no memory for it. room: as in
        Shadow.create."""
        shadows = []
        for address in (described.slices, described.accounts):
            if address is not None:
                shadow = _alike(address, room)
                if shadow is None:
                    return None
                shadows.append(shadow)
        return cls(shadows)

    def write(self, pieces: Sequence[Piece]) -> bool:
        """Take copies, unless a later one is here: messages may be late. False if a successor goes on from here."""
        if any(of.fenced for shadow in self.shadows for of in shadow.slices.values()):
            return False
        for piece in pieces:
            place = piece.part, piece.index
            if piece.number > self._written.get(place, -1):
                self._written[place] = piece.number
                self.shadows[piece.part].slices[piece.index].save(
                    piece.version, piece.values, piece.states, piece.note
                )
        return True


class Replication(Generic[T]):
    """What the replica of a server lacks, and the replies that wait for it.

    number: of the replica, 0 before the first. waits: whether replies wait. Not thread-safe.
    """

    def __init__(self, shadow: ServerShadow) -> None:
        self._shadows = [each for each in (shadow.slices, shadow.accounts) if each is not None]
        self.number, self.waits = 0, False
        self._has: dict[tuple[int, int], int] = {}
        self._waiting: list[tuple[int, int, Sequence[T]]] = []  # slice, number of its copy, replies
        self._last = -1  # slice that was sent

    def begin(self) -> int:
        """A new replica, which has nothing yet, and for which nobody waits; returns its number."""
        assert not self._waiting
        self.number, self.waits, self._has = self.number + 1, False, {}
        return self.number

    def lacking(self) -> list[Piece]:
        """What is sent next: with a slice come its accounts, before it. Of a slice that it has never had, both copies
        are sent: its worker group may go back a step."""
        pieces: list[Piece] = []
        for index in self._in_turn():
            of_slice = list(self._of_slice(index))
            if pieces and nbytes_of([*pieces, *of_slice]) > MESSAGE_NBYTES:
                break
            pieces += of_slice
            self._last = index
        return pieces

    def sent(self, pieces: Sequence[Piece]) -> list[T]:
        """The replica has these; returns the replies that may be given now."""
        for piece in pieces:
            place = piece.part, piece.index
            self._has[place] = max(piece.number, self._has.get(place, -1))
        ready = [self._has.get((_SLICES, index), -1) >= number for index, number, _ in self._waiting]
        given = [reply for go, (_, _, of) in zip(ready, self._waiting, strict=True) if go for reply in of]
        self._waiting = [each for go, each in zip(ready, self._waiting, strict=True) if not go]
        return given

    def after(self, index: int, replies: Sequence[T]) -> Sequence[T]:
        """These replies, if the replica has the slice as it is; none if they wait."""
        number = self._number(_SLICES, index)
        if not self.waits or self._has.get((_SLICES, index), -1) >= number:
            return replies
        self._waiting.append((index, number, replies))
        return ()

    def drop(self) -> list[T]:
        """Nobody waits for the replica any more; returns the replies that did."""
        waiting, self._waiting, self.waits = self._waiting, [], False
        return [reply for _, _, of in waiting for reply in of]

    def _in_turn(self) -> Sequence[int]:
        indices = list(self._shadows[_SLICES].slices)
        later = [index for index in indices if index > self._last]
        return later + [index for index in indices if index <= self._last]

    def _of_slice(self, index: int) -> Iterator[Piece]:
        of_accounts = [(_ACCOUNTS, account_of(index, side)) for side in SIDES] if len(self._shadows) > 1 else []
        for part, i in (*of_accounts, (_SLICES, index)):
            if i in self._shadows[part].slices and self._number(part, i) > self._has.get((part, i), -1):
                copies = self._shadows[part].slices[i].copies
                for copy in copies if (part, i) not in self._has else copies[-1:]:
                    yield Piece.of(part, i, copy)

    def _number(self, part: int, index: int) -> int:
        return self._shadows[part].slices[index].number


def _alike(address: ShadowAddress, room: Callable[[int], bool]) -> Shadow | None:
    slices = [Slice(index, start, stop, 0, 0) for index, start, stop in address.slices]
    return Shadow.create(slices, address.states, np.dtype(address.dtype), room)


def nbytes_of(pieces: Sequence[Piece]) -> int:
    """Bytes of all arrays."""
    return sum(piece.nbytes for piece in pieces)
