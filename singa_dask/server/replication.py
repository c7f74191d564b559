"""A second place for what a server saves, on another machine, and the replies that wait for it.

A reply is given once the replica has the image that was saved before it. So if the server is lost with its host, the
replica has everything that was acknowledged. One message brings the newest images of all slices that have changed
meanwhile, so a server whose replica is slow sends fewer of them.

A server may stop waiting for its replica only once its driver knows: a successor would resume from an outdated one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from singa_dask.memory.owner import Saved
from singa_dask.memory.region import Image, Key, Piece, Region
from singa_dask.memory.store import PutResult, Store
from singa_dask.server.kept import SIDES, SLICE
from singa_dask.server.messages import Reply

if TYPE_CHECKING:
    from singa_dask.server.server import Server

logger = logging.getLogger(__name__)

Given: TypeAlias = tuple[Future[Reply], Reply]
# Bytes of a message: they are copied while the server waits.
MESSAGE_NBYTES = 16 << 20
# Assumed rate of the slowest network for one of several groups: a tenth of 1 Gbit/s is 12.5 MB/s.
LEAST_RATE = 8e6
# A replica that is silent for longer is lost, or its host is. The first message loads this package there.
SILENT_S, OPEN_S = 2.0, 10.0
# A replica is told that its server lives, so that it is kept.
ALIVE_S = 5.0
# How often the driver is told that the replica is lost: while replies wait for its answer, and while none do.
TELL_S, AGAIN_S = 0.5, 10.0
RETRY_S = 0.2


class Replication:
    """What the replica of a server lacks, and the replies that wait for it. No IO.

    lock: of the server. number: of the replica, 0 before the first. waits: whether replies wait: from when it has had
    every slice once, until it is lost.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self.number, self.waits = lock, 0, False
        self._regions: dict[Key, Region] = {}
        self._has: dict[Key, int] = {}
        self._waiting: list[tuple[int, int, Sequence[Given]]] = []  # slice, number of its image, replies
        self._last = -1  # slice that was sent

    def begin(self, regions: dict[Key, Region]) -> int:
        """A new replica of what is saved in these regions, which has nothing yet; returns its number."""
        self.drop()
        self._regions, self.number, self._has = regions, self.number + 1, {}
        return self.number

    def lacking(self) -> list[Piece]:
        """What is sent next: with a slice come its accounts, before it. Of a slice that it has never had, both images
        are sent: its worker group may go back a step."""
        with self._lock:
            pieces: list[Piece] = []
            indices = sorted((i for i, part in self._regions if part == SLICE), key=lambda i: (i <= self._last, i))
            self.waits = self.waits or not any(self._newer((i, SLICE)) for i in indices if (i, SLICE) not in self._has)
            for index in indices:
                keys = [key for side in (*SIDES, SLICE) if (key := (index, side)) in self._regions]
                of_slice = [image.piece() for key in keys for image in self._newer(key)]
                if pieces and nbytes_of([*pieces, *of_slice]) > MESSAGE_NBYTES:
                    break
                pieces += of_slice
                self._last = index
            return pieces

    def sent(self, pieces: Sequence[Piece]) -> None:
        """The replica has these: give the replies that waited for them."""
        with self._lock:
            for piece in pieces:
                key = piece.layout.key
                self._has[key] = max(piece.number, self._has.get(key, -1))
            has = {index: number for (index, part), number in self._has.items() if part == SLICE}
            given = [reply for index, number, of in self._waiting if has.get(index, -1) >= number for reply in of]
            self._waiting = [each for each in self._waiting if has.get(each[0], -1) < each[1]]
        give(given)

    def after(self, index: int, replies: Sequence[Given]) -> Sequence[Given]:
        """These replies, if the replica has the slice as it is; none if they wait. With the lock."""
        if not self.waits or self._has.get((index, SLICE), -1) >= self._regions[index, SLICE].number:
            return replies
        self._waiting.append((index, self._regions[index, SLICE].number, replies))
        return ()

    def dropped(self) -> list[Given]:
        """Nobody waits for the replica any more; returns the replies that did. With the lock."""
        waiting, self._waiting, self.waits = self._waiting, [], False
        return [reply for _, _, of in waiting for reply in of]

    def drop(self) -> None:
        """Nobody waits for the replica any more: give the replies that did."""
        with self._lock:
            given = self.dropped()
        give(given)

    def _newer(self, key: Key) -> list[Image]:
        images = [image for image in self._regions[key].images if image.number > self._has.get(key, -1)]
        return images[-1:] if key in self._has else images


class Replicator:
    """Keeps the replica of a server: sends what it lacks, one message at a time, as long as it answers.

    saved: what the server saves, in these regions. there: whether the server is still wanted. tell_lost: tells the
    driver that the replica with this number is lost, and whether replies wait for it: they do until the driver has
    answered, by `lost`.
    """

    def __init__(
        self,
        server: Server,
        store: Store,
        saved: Saved,
        regions: dict[Key, Region],
        *,
        there: Callable[[], bool],
        tell_lost: Callable[[int, bool], None],
    ) -> None:
        self._server, self._store, self._saved, self._regions, self._there = server, store, saved, regions, there
        self._replication, self._tell_lost = server.replication, tell_lost
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        server.on_change = partial(asyncio.get_running_loop().call_soon_threadsafe, self._due.set)

    async def lost(self, number: int, nanny: str) -> None:
        """Wait no more for this replica, unless it is another one by now, as the driver knows that it is lost. Begin
        with another one at a nanny, if there is one."""
        if number == self._replication.number:
            self._replication.drop()
            if nanny:
                await self.begin(nanny)

    async def begin(self, nanny: str) -> None:
        """Have a nanny keep a replica from now on. Returns once it is whole, or lost."""
        self.end()
        version = replace(self._saved.version, number=self._replication.begin(self._regions))
        filled = asyncio.Event()
        self._task = asyncio.create_task(self._keep(nanny, replace(self._saved, version=version), filled))
        await filled.wait()

    def end(self) -> None:
        """Send nothing any more."""
        if self._task is not None:
            self._task.cancel()

    async def _keep(self, nanny: str, saved: Saved, filled: asyncio.Event) -> None:
        try:
            kept = await self._follow(nanny, saved, filled)
        finally:
            filled.set()
        if kept is PutResult.SUPERSEDED:
            self._server.retire()
        while self._wanted:
            waits = self._replication.waits
            self._tell_lost(saved.version.number, waits)
            await asyncio.sleep(TELL_S if waits else AGAIN_S)

    async def _follow(self, nanny: str, saved: Saved, filled: asyncio.Event) -> PutResult:
        """Make the replica whole, and keep it so; returns why no more."""
        try:
            async with asyncio.timeout(OPEN_S):  # wait_for swallows a cancellation that comes with the result
                kept = PutResult.KEPT if await self._store.open(nanny, saved) else PutResult.GONE
        except (OSError, TimeoutError):
            return PutResult.GONE
        whole = silent = False
        while kept is PutResult.KEPT and self._wanted:
            pieces = await asyncio.to_thread(self._replication.lacking)
            if pieces or silent or not whole:
                whole = whole or (not pieces and self._replication.waits)
                kept, silent = await self._send(nanny, saved, pieces, whole), False
                if whole:
                    filled.set()
            else:
                silent = not await self._changed()
        return kept

    async def _changed(self) -> bool:
        """Wait until the replica may lack something; False if it does not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_S):
                await self._due.wait()
        changed = self._due.is_set()
        self._due.clear()
        return changed

    async def _send(self, nanny: str, saved: Saved, pieces: Sequence[Piece], whole: bool) -> PutResult:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SILENT_S + nbytes_of(pieces) / LEAST_RATE
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    kept = await self._store.put(nanny, saved, pieces, whole=whole)
            except TimeoutError:
                return PutResult.GONE
            except OSError:
                await asyncio.sleep(RETRY_S)
            except Exception:
                logger.exception("a message to a replica failed")
                return PutResult.GONE
            else:
                if kept is PutResult.KEPT:
                    self._replication.sent(pieces)
                return kept

    @property
    def _wanted(self) -> bool:
        return not self._server.retired and self._there()


def nbytes_of(pieces: Sequence[Piece]) -> int:
    """Bytes of all arrays."""
    return sum(piece.nbytes for piece in pieces)


def give(given: Sequence[Given]) -> None:
    """Answer who waits."""
    for waiting, reply in given:
        with suppress(InvalidStateError):  # the sender no longer waits
            waiting.set_result(reply)
