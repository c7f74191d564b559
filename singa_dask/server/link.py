"""Links to servers: direct in the same process, else through Dask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from singa_dask.errors import ClusterError
from singa_dask.ops.arrays import Array
from singa_dask.server.messages import Inspect, Moved, NotYet, Refused, Reply, Request
from singa_dask.server.server import LEAST_RATE, Server, server_here

ATTEMPT_S = 10.0
RETRY_S = 0.2


@dataclass(frozen=True)
class Address:
    """The address of a server: its Dask worker, and the actor's key there."""

    worker: str
    key: str


class Link(Protocol):
    """A link to one server. local: whether the server is in this process."""

    local: bool

    def send(self, request: Request, out: Array | None = None) -> Future[Reply]:
        """The future of the reply. out: an array for its parameters."""


class LocalLink:
    """A link to a server in this process, for this process alone."""

    local = True

    def __init__(self, server: Server) -> None:
        self._server = server

    def send(self, request: Request, out: Array | None = None) -> Future[Reply]:
        return self._server.call(request, out)


class ActorLink:
    """A link to a server that is an actor, on this Dask worker or another one.

    where, timeout_s: see `ask`.
    """

    def __init__(self, where: Address | Callable[[], Address], worker: Any, timeout_s: float) -> None:
        self.where, self.timeout_s = where, timeout_s
        self.local = server_here(worker, _located(where).key) is not None
        self._worker = worker
        self._largest: dict[int, int] = {}  # bytes of an array, by slice

    def send(self, request: Request, out: Array | None = None) -> Future[Reply]:
        here = server_here(self._worker, _located(self.where).key) if self.local else None
        if here is None:
            return self._ask(request, out)
        reply = _unless_moved(here.call(request, out), lambda: self._ask(request, out))
        if not reply.done():
            self._watch(here, reply)
        return reply

    def _watch(self, here: Server, reply: Future[Reply]) -> None:
        """Have a server of this process retire if it goes, or has a successor, while it owes a reply: its driver may
        not have reached it."""
        key, loop = _located(self.where).key, self._worker.loop.asyncio_loop

        def look() -> None:
            if reply.done() or here.retired:
                return
            if server_here(self._worker, key) is not here or _located(self.where).key != key:
                here.retire()
            else:
                loop.call_later(RETRY_S, look)

        loop.call_soon_threadsafe(loop.call_later, RETRY_S, look)

    def _ask(self, request: Request, out: Array | None) -> Future[Reply]:
        known = self._largest.get(request.slice, 0)
        self._largest[request.slice] = max(known, nbytes_of(request), 0 if out is None else out.nbytes)
        arrays = 4 if isinstance(request, Inspect) else 2  # there and back; Inspect also returns the updater's
        coroutine = ask(self._worker, self.where, request, self.timeout_s, lambda: arrays * self._all_s())
        return asyncio.run_coroutine_threadsafe(coroutine, self._worker.loop.asyncio_loop)

    def _all_s(self) -> float:
        """Transfer time of one array per slice, in seconds: they are sent together."""
        return sum(list(self._largest.values())) / LEAST_RATE


def _unless_moved(reply: Future[Reply], again: Callable[[], Future[Reply]]) -> Future[Reply]:
    """The reply, or if it is Moved, that to another attempt."""
    result: Future[Reply] = Future()

    def take(done: Future[Reply]) -> None:
        if isinstance(done.result(), Moved):
            again().add_done_callback(pass_on)
        else:
            pass_on(done)

    def pass_on(done: Future[Reply]) -> None:
        if (error := done.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(done.result())

    reply.add_done_callback(take)
    return result


def nbytes_of(message: Request) -> int:
    """Bytes of all arrays of a message."""
    values = vars(message).values()
    parts = [part for value in values for part in (value.values() if isinstance(value, Mapping) else [value])]
    return sum(int(getattr(part, "nbytes", 0)) for part in parts)


async def ask(
    worker: Any,
    where: Address | Callable[[], Address],
    request: Request,
    timeout_s: float,
    transfer_s: Callable[[], float] = lambda: 0.0,
) -> Reply:
    """The server's reply to a request, in a Dask worker's event loop. Repeats the request if the connection breaks and
    while the server replies NotYet.

    where: an address, or tells the one that the server has now. Then a request is also repeated when the server is
    gone, until its successor replies. transfer_s: estimated time of the transfers under way.

    Raises ClusterError if the server is silent for `timeout_s + transfer_s()` seconds or refuses the request.
    """
    heard, last, message = time.monotonic(), _located(where), _serialized(request)
    while True:
        fault: BaseException | None = None
        now = _located(where)
        if now != last:
            heard, last = time.monotonic(), now
        try:
            reply = await _attempt(worker, now, where, message, min(ATTEMPT_S, timeout_s) + transfer_s())
        except (OSError, TimeoutError) as error:
            fault = error
        except KeyError as error:
            fault = ClusterError(f"the server {now.key} is no longer at {now.worker}")
            if not callable(where):
                raise fault from error
        else:
            if isinstance(reply, Refused):
                raise ClusterError(f"the server at {now.worker} refused {type(request).__name__}: {reply.reason}")
            if isinstance(reply, Moved):
                fault = ClusterError(f"the server at {now.worker} has been replaced")
                if not callable(where):
                    raise fault
            elif not isinstance(reply, NotYet):
                return reply
            else:
                heard = time.monotonic()
        silence_s = timeout_s + transfer_s()
        if time.monotonic() - heard > silence_s:
            raise ClusterError(
                f"the server at {now.worker} has not answered {type(request).__name__} for {silence_s:.3g} s "
                f"({fault!r}); its process is lost, stopped or disconnected"
            )
        if fault is not None:
            await asyncio.sleep(RETRY_S)


async def _attempt(
    worker: Any, at: Address, where: Address | Callable[[], Address], message: Any, attempt_s: float
) -> Reply:
    """One attempt to get a reply. Raises TimeoutError after so many seconds, or when the server is elsewhere."""
    # As distributed.Actor, but without a client and without waiting for a lost actor.
    call = worker.rpc(at.worker).actor_execute(actor=at.key, function="call", args=[message], kwargs={})
    task, deadline = asyncio.ensure_future(call), time.monotonic() + attempt_s
    try:
        while not task.done():
            left_s = deadline - time.monotonic()
            if left_s <= 0 or _located(where) != at:
                raise TimeoutError
            await asyncio.wait([task], timeout=min(left_s, RETRY_S))
    except (TimeoutError, asyncio.CancelledError):
        task.cancel()
        raise
    answer = task.result()
    if answer["status"] != "OK":
        raise answer["exception"]
    reply: Reply = answer["result"]
    return reply


def _serialized(request: Request) -> Any:
    """The request as Dask sends arrays."""
    from distributed.protocol import to_serialize  # keeps Dask out of programs that only read jobs

    return to_serialize(request)


def _located(where: Address | Callable[[], Address]) -> Address:
    return where() if callable(where) else where
