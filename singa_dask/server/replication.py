"""A second place for what a server saves, on another machine, and the replies that wait for it. No IO.

A reply is given once the replica has the image that was saved before it. So if the server is lost with its host, the
replica has everything that was acknowledged. One message brings the newest images of all slices that have changed
meanwhile, so a server whose replica is slow sends fewer of them.

A server may stop waiting for its replica only once its driver knows: a successor would go on from an outdated one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from singa_dask.memory.owner import Saved
from singa_dask.memory.region import Key, Piece, Regions
from singa_dask.server.kept import SIDES, SLICE, slices_of

T = TypeVar("T")
# Bytes of a message: they are copied while the server waits.
MESSAGE_NBYTES = 16 << 20


class Replication(Generic[T]):
    """What the replica of a server lacks, and the replies that wait for it.

    number: of the replica, 0 before the first. waits: whether replies wait. Not thread-safe.
    """

    def __init__(self, regions: Regions) -> None:
        self._regions, self.number, self.waits = regions, 0, False
        self._has: dict[Key, int] = {}
        self._waiting: list[tuple[int, int, Sequence[T]]] = []  # slice, number of its image, replies
        self._last = -1  # slice that was sent

    def begin(self) -> int:
        """A new replica, which has nothing yet, and for which nobody waits; returns its number."""
        assert not self._waiting
        self.number, self.waits, self._has = self.number + 1, False, {}
        return self.number

    def lacking(self) -> list[Piece]:
        """What is sent next: with a slice come its accounts, before it. Of a slice that it has never had, both images
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
            self._has[piece.key] = max(piece.number, self._has.get(piece.key, -1))
        ready = [self._has.get((index, SLICE), -1) >= number for index, number, _ in self._waiting]
        given = [reply for go, (_, _, of) in zip(ready, self._waiting, strict=True) if go for reply in of]
        self._waiting = [each for go, each in zip(ready, self._waiting, strict=True) if not go]
        return given

    def after(self, index: int, replies: Sequence[T]) -> Sequence[T]:
        """These replies, if the replica has the slice as it is; none if they wait."""
        number = self._regions[index, SLICE].number
        if not self.waits or self._has.get((index, SLICE), -1) >= number:
            return replies
        self._waiting.append((index, number, replies))
        return ()

    def drop(self) -> list[T]:
        """Nobody waits for the replica any more; returns the replies that did."""
        waiting, self._waiting, self.waits = self._waiting, [], False
        return [reply for _, _, of in waiting for reply in of]

    def _in_turn(self) -> Sequence[int]:
        indices = list(slices_of(self._regions))
        later = [index for index in indices if index > self._last]
        return later + [index for index in indices if index <= self._last]

    def _of_slice(self, index: int) -> Iterator[Piece]:
        for key in ((index, part) for part in (*SIDES, SLICE) if (index, part) in self._regions):
            if self._regions[key].number > self._has.get(key, -1):
                images = self._regions[key].images
                for image in images if key not in self._has else images[-1:]:
                    yield image.piece(key)


def nbytes_of(pieces: Sequence[Piece]) -> int:
    """Bytes of all arrays."""
    return sum(piece.nbytes for piece in pieces)


def make_replica(saved: Saved, room: Callable[[int], bool]) -> Regions | None:
    """Regions as those of a server, without images, for its replica; None if there is no memory for them."""
    return Regions.create(saved.regions[0].layouts, room)
