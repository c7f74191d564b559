"""Links to servers: direct in the same process, else through Dask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from singa_dask.errors import ClusterError
from singa_dask.ops.arrays import Array
from singa_dask.server.messages import Inspect, NotYet, Refused, Reply, Request, TakenOver
from singa_dask.server.server import LEAST_RATE, Server, server_here

ATTEMPT_S = 10.0
RETRY_S = 0.2
_LOOK_S = 0.2


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
    """A link to a server in this process."""

    local = True

    def __init__(self, server: Server) -> None:
        self._server = server

    def send(self, request: Request, out: Array | None = None) -> Future[Reply]:
        return self._server.call(request, out)


class DaskLink:
    """A link to a server on another Dask worker. locate: returns its address, which changes when another process takes
    its place. timeout_s: maximum silence."""

    local = False

    def __init__(self, locate: Callable[[], Address], worker: Any, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._locate, self._worker = locate, worker
        self._largest: dict[int, int] = {}  # bytes of an array, by slice

    def send(self, request: Request, out: Array | None = None) -> Future[Reply]:
        known = self._largest.get(request.slice, 0)
        self._largest[request.slice] = max(known, nbytes_of(request), 0 if out is None else out.nbytes)
        arrays = 4 if isinstance(request, Inspect) else 2  # there and back; Inspect also returns the updater's
        coroutine = ask(self._worker, self._locate, request, self.timeout_s, lambda: arrays * self._all_s())
        return asyncio.run_coroutine_threadsafe(coroutine, self._worker.loop.asyncio_loop)

    def _all_s(self) -> float:
        """Transfer time of one array per slice, in seconds: they are sent together."""
        return sum(list(self._largest.values())) / LEAST_RATE


def link_to(locate: Callable[[], Address], worker: Any, timeout_s: float) -> Link:
    """The fastest link from this process, a Dask worker, to the server whose address `locate` returns."""
    here = server_here(locate().key)
    return LocalLink(here) if here is not None else DaskLink(locate, worker, timeout_s)


def nbytes_of(message: Request) -> int:
    """Bytes of all arrays of a message."""
    values = vars(message).values()
    parts = [part for value in values for part in (value.values() if isinstance(value, Mapping) else [value])]
    return sum(int(getattr(part, "nbytes", 0)) for part in parts)


async def _attempt(
    call: Coroutine[Any, Any, Any], limit_s: float, where: Address, locate: Callable[[], Address]
) -> Any:
    """What a call returns. Raises TimeoutError where it takes longer, or the server is no longer located there.

    Dask tries to connect to a process that has died for longer than another one needs to take its place.
    """
    task, deadline = asyncio.ensure_future(call), time.monotonic() + limit_s
    try:
        while locate() == where:
            left_s = deadline - time.monotonic()
            done, _ = await asyncio.wait([task], timeout=max(0.0, min(_LOOK_S, left_s)))
            if done:
                return task.result()
            if left_s <= _LOOK_S:
                break
    except asyncio.CancelledError:
        task.cancel()
        raise
    task.cancel()
    raise TimeoutError


async def ask(
    worker: Any,
    locate: Callable[[], Address],
    request: Request,
    timeout_s: float,
    transfer_s: Callable[[], float] = lambda: 0.0,
) -> Reply:
    """The server's reply to a request, in a Dask worker's event loop. Repeats the request if the connection breaks,
    while the server is away, and while it replies NotYet. locate: returns its address now. transfer_s: estimated time
    of the transfers under way.

    Raises ClusterError if the server is silent for `timeout_s + transfer_s()` seconds or refuses the request.
    """
    from distributed.protocol import to_serialize

    heard = time.monotonic()
    message = to_serialize(request)
    while True:
        fault: object = None
        where = locate()
        try:
            # As distributed.Actor, but without a client and without waiting for a lost actor.
            call = worker.rpc(where.worker).actor_execute(actor=where.key, function="call", args=[message], kwargs={})
            answer = await _attempt(call, min(ATTEMPT_S, timeout_s) + transfer_s(), where, locate)
        except (OSError, TimeoutError) as error:
            fault = error
        except KeyError:
            fault = f"the server {where.key} is no longer there"
        else:
            if answer["status"] != "OK":
                raise answer["exception"]
            reply = answer["result"]
            if isinstance(reply, Refused):
                raise ClusterError(f"the server at {where.worker} refused {type(request).__name__}: {reply.reason}")
            if isinstance(reply, TakenOver):
                fault = f"another one has taken over from {where.key}"
            elif not isinstance(reply, NotYet):
                return reply
            else:
                heard = time.monotonic()
        silence_s = timeout_s + transfer_s()
        if time.monotonic() - heard > silence_s:
            raise ClusterError(
                f"the server at {where.worker} has not answered {type(request).__name__} for {silence_s:.3g} s "
                f"({fault if isinstance(fault, str) else repr(fault)}); its process is lost, stopped or disconnected"
            )
        if fault is not None:
            await asyncio.sleep(RETRY_S)
