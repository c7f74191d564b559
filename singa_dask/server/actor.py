"""A server as a Dask actor, and its exchange with neighbours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from singa_dask.errors import ClusterError
from singa_dask.server.link import ATTEMPT_S, RETRY_S, Address, ask
from singa_dask.server.messages import (
    Coded,
    Leave,
    Moved,
    NotYet,
    OpenAccount,
    Origin,
    Put,
    Reply,
    Request,
    State,
    Sync,
    Update,
)
from singa_dask.server.server import Server, ServerPlan, server_here

T = TypeVar("T")

# A waiting request is answered with NotYet after this time, so that silence always means a lost server.
HOLD_S = 2.0
# Applying a gradient up to this size is faster than waking a thread.
SMALL_NBYTES = 64 * 1024


class ServerActor:
    """One server of a server group, on a Dask worker. ServerProtocol defines its replies."""

    def __init__(self, plan: ServerPlan) -> None:
        self.server = Server(plan.protocol())
        from distributed import get_worker  # keeps Dask out of programs that only read jobs

        self._key, self._worker = plan.key, get_worker()
        self.closed = False
        self._asked_at = time.monotonic()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="server")
        # Runs while the workers start. If it fails, the first update raises the same error for its sender.
        self._warm = self._pool.submit(plan.warm_up)
        self._right: Address | None = None
        self._due = asyncio.Event()
        self._exchanging: asyncio.Task[None] | None = None
        self._slices = tuple(self.server.protocol.slices)
        self._transfer_s = plan.transfer_s
        # One exchange at a time: a repeated message could otherwise arrive after the next one.
        self._turns = {index: asyncio.Lock() for index in self._slices}

    async def call(self, request: Request) -> Reply:
        """The reply to a request, or NotYet if it has to wait for long."""
        self._asked_at = time.monotonic()
        array = getattr(request, "gradient", None)
        small = array is None or (array.nbytes <= SMALL_NBYTES and not isinstance(array, Coded))
        if array is None or (small and self._warm.done()):
            future = self.server.call(request)
        else:
            future = await self._compute(self._decoded_call, request)
        if future.done():
            return future.result()
        waiting = asyncio.wrap_future(future)
        done, _ = await asyncio.wait([waiting], timeout=HOLD_S)
        # Withdraw large requests: they are as large as the slice, and every repetition would wait here.
        if not done and (not isinstance(request, Update | Sync) or self.server.withdraw(future, request.slice)):
            return NotYet()
        return await waiting

    def _decoded_call(self, request: Request) -> Future[Reply]:
        if isinstance(request, Update) and isinstance(request.gradient, Coded):
            request = replace(request, gradient=request.gradient.decoded())
        return self.server.call(request)

    async def dismiss(self, origin: Origin) -> None:
        """Record that a worker group has left, whether or not this generation has sent anything."""
        for index in self._slices:
            await self.call(Leave(index, origin))

    # Neighbours

    async def meet(self, right: Address | None) -> None:
        """Start to exchange with this right neighbour."""
        loop = asyncio.get_running_loop()
        if self._exchanging is not None and right != self._right:
            self._exchanging.cancel()  # it may wait for a lost neighbour
            self._exchanging = None
        self._right = right
        self.server.on_update = partial(_wake, loop, self._due)
        self._due.set()
        if self._exchanging is None or self._exchanging.done():
            self._exchanging = asyncio.create_task(self._exchange_while_there())

    async def take_over(self, neighbour: Address, side: str, account: tuple[int, int]) -> None:
        """Start as a copy of the neighbour on this side."""
        for index in self._slices:
            state = await self._ask(neighbour, OpenAccount(index, _opposite(side), account))
            if not isinstance(state, State):
                raise ClusterError(f"the server at {neighbour.worker} did not send its parameters: {state}")
            put = Put(index, state.values, state.state, state.version, 0, state.reductions, state.ledger)
            await asyncio.wrap_future(self.server.call(put))
            await self._compute(self.server.open_account, index, side, account)

    async def hand_on(self, neighbour: Address, side: str, account: tuple[int, int]) -> None:
        """Let the restarted neighbour on this side take over this server's values and unexchanged updates."""
        for index in self._slices:
            known, ledger = await self._compute(self.server.open_account, index, side, account)
            await self._ask(neighbour, OpenAccount(index, _opposite(side), account, known, ledger))

    async def flush(self) -> None:
        """Exchange everything with the right neighbour now."""
        for _ in range(2):  # the first may repeat an exchange under way
            await asyncio.gather(*(self._exchange(index, force=True) for index in self._slices))

    def is_deserted(self, quiet_s: float) -> bool:
        """Whether all worker groups have left, and nobody has asked for so many seconds; or Dask has released it."""
        slices = self.server.protocol.slices.values()
        left = not any(member.active for state in slices for member in state.members.values())
        return not self.there() or (left and time.monotonic() - self._asked_at > quiet_s)

    def there(self) -> bool:
        """Whether Dask has the actor. It releases it without notice when its client is gone."""
        return self._key in self._worker.state.actors

    async def close(self) -> None:
        """Stop answering and exchanging. The worker may then be reserved again."""
        self.closed = True
        self.server.retire()
        if self._exchanging is not None:
            self._exchanging.cancel()
        self._pool.shutdown(wait=False)

    async def _exchange_while_there(self) -> None:
        """Exchange until Dask releases the actor."""
        while not self.server.retired and self.there():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), HOLD_S)
            if not self._due.is_set():
                continue
            self._due.clear()
            try:
                await asyncio.gather(*(self._exchange(index) for index in self._slices))
            except (ClusterError, ValueError, OSError):
                # The neighbour is lost or restarting. The message is repeated, or the driver has both open a new
                # account.
                await asyncio.sleep(RETRY_S)
                self._due.set()
        self._pool.shutdown(wait=False)

    async def _exchange(self, index: int, *, force: bool = False) -> None:
        right = self._right
        if right is None:
            return
        async with self._turns[index]:
            sync = await self._compute(lambda: self.server.begin_sync(index, force=force))
            if sync is not None:
                kept = await asyncio.wrap_future(self.server.kept(index))
                if isinstance(kept, Moved):  # the successor sends it
                    return
                reply = await self._ask(right, sync)
                await self._compute(self.server.finish_sync, sync, reply)

    async def _ask(self, neighbour: Address, request: Request) -> Reply:
        here = server_here(self._worker, neighbour.key)
        if here is not None:
            future: Future[Reply] = await self._compute(here.call, request)
            return await asyncio.wait_for(asyncio.wrap_future(future), ATTEMPT_S)
        return await ask(self._worker, neighbour, request, ATTEMPT_S, lambda: self._transfer_s)

    def _compute(self, function: Callable[..., T], *args: Any) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *args)


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)


def _opposite(side: str) -> str:
    return "left" if side == "right" else "right"
