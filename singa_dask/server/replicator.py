"""Sends what a server saves to its replica, one message at a time, as long as the replica answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from singa_dask.memory.region import Piece, Regions
from singa_dask.memory.store import Kept, Store
from singa_dask.server.kept import SLICE, slices_of
from singa_dask.server.replication import nbytes_of
from singa_dask.server.server import LEAST_RATE, Server

logger = logging.getLogger(__name__)

# A replica that is silent for longer is lost, or its host is. The first message loads this package there.
SILENT_S, OPEN_S = 2.0, 10.0
# A replica is told that its server lives, so that it is kept.
ALIVE_S = 5.0
# How often the driver is told that the replica is lost: while replies wait for its answer, and while none do.
TELL_S, AGAIN_S = 0.5, 10.0
RETRY_S = 0.2


class Replicator:
    """Keeps the replica of a server.

    there: whether the server is still wanted. aside: calls a function in another thread. tell_lost: tells the driver
    that the replica with this number is lost, and whether replies wait for it: they do until the driver has answered,
    by `lost`.
    """

    def __init__(
        self,
        server: Server,
        regions: Regions,
        *,
        there: Callable[[], bool],
        aside: Callable[..., Any],
        tell_lost: Callable[[int, bool], None],
    ) -> None:
        self._server, self._regions, self._there = server, regions, there
        self._aside, self._tell_lost = aside, tell_lost
        self._number = 0
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        server.on_change = lambda: _wake(loop, self._due)

    def lost(self, number: int) -> bool:
        """Wait no more for this replica, as the driver knows that it is lost. False if it is another one by now."""
        if number != self._number:
            return False
        self._server.replica_lost()
        return True

    async def begin(self, store: Store) -> None:
        """Keep a replica there from now on. Returns once it is whole, or lost."""
        self.end()
        self._server.replica_lost()
        number = self._number = self._server.replicate(self._regions)
        filled = asyncio.Event()
        self._task = asyncio.create_task(self._keep(number, store, filled))
        await filled.wait()

    def end(self) -> None:
        """Send nothing any more."""
        if self._task is not None:
            self._task.cancel()

    async def _keep(self, number: int, store: Store, filled: asyncio.Event) -> None:
        try:
            kept = await self._fill(number, store)
        finally:
            filled.set()
        while kept is Kept.KEPT and self._wanted:
            try:
                await asyncio.wait_for(self._due.wait(), ALIVE_S)
            except TimeoutError:
                kept = await self._send(store, [], whole=True)
            self._due.clear()
            while kept is Kept.KEPT and (pieces := await self._lacking(wait=True)):
                kept = await self._send(store, pieces, whole=True)
        if kept is Kept.SUPERSEDED:
            self._server.retire()
        while self._wanted:
            waits = self._server.replica_awaited
            self._tell_lost(number, waits)
            await asyncio.sleep(TELL_S if waits else AGAIN_S)

    async def _fill(self, number: int, store: Store) -> Kept:
        """Make the replica whole. Nobody waits before it has everything once."""
        try:
            if not await asyncio.wait_for(store.open(number), OPEN_S):
                return Kept.GONE
        except (OSError, TimeoutError):
            return Kept.GONE
        slices, wait = len(slices_of(self._regions)), False
        while True:
            pieces = await self._lacking(wait=wait)
            if pieces is None:  # it must not seem to be whole
                return Kept.SUPERSEDED
            whole = wait and not pieces
            kept = await self._send(store, pieces, whole=whole)
            if whole or kept is not Kept.KEPT:
                return kept
            slices -= sum(piece.key[1] == SLICE for piece in pieces)
            wait = wait or slices <= 0 or not pieces

    async def _send(self, store: Store, pieces: Sequence[Piece], *, whole: bool) -> Kept:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SILENT_S + nbytes_of(pieces) / LEAST_RATE
        while True:
            try:
                kept = await asyncio.wait_for(store.write(pieces, whole=whole), max(0.0, deadline - loop.time()))
            except TimeoutError:
                return Kept.GONE
            except OSError:
                await asyncio.sleep(RETRY_S)
            except Exception:
                logger.exception("a message to a replica failed")
                return Kept.GONE
            else:
                if kept is Kept.KEPT:
                    self._server.replicated(pieces)
                return kept

    async def _lacking(self, *, wait: bool) -> list[Piece] | None:
        if not self._wanted:
            return None
        pieces: list[Piece] | None = await self._aside(lambda: self._server.lacking(wait=wait))
        return pieces

    @property
    def _wanted(self) -> bool:
        return not self._server.retired and self._there()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)
