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
from singa_dask.server.messages import Inspect, NotYet, Refused, Reply, Request
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
    """A link to a server in this process."""

    local = True

    def __init__(self, server: Server) -> None:
        self._server = server

    def send(self, request: Request, out: Array | None = None) -> Future[Reply]:
        return self._server.call(request, out)


class DaskLink:
    """A link to a server on another Dask worker. timeout_s: maximum silence."""

    local = False

    def __init__(self, address: Address, worker: Any, timeout_s: float) -> None:
        self.address, self.timeout_s = address, timeout_s
        self._worker = worker
        self._largest: dict[int, int] = {}  # bytes of an array, by slice

    def send(self, request: Request, out: Array | None = None) -> Future[Reply]:
        known = self._largest.get(request.slice, 0)
        self._largest[request.slice] = max(known, nbytes_of(request), 0 if out is None else out.nbytes)
        arrays = 4 if isinstance(request, Inspect) else 2  # there and back; Inspect also returns the updater's
        coroutine = ask(self._worker, self.address, request, self.timeout_s, lambda: arrays * self._all_s())
        return asyncio.run_coroutine_threadsafe(coroutine, self._worker.loop.asyncio_loop)

    def _all_s(self) -> float:
        """Transfer time of one array per slice, in seconds: they are sent together."""
        return sum(list(self._largest.values())) / LEAST_RATE


def link_to(address: Address, worker: Any, timeout_s: float) -> Link:
    """The fastest link from this process, a Dask worker, to the server at `address`."""
    here = server_here(address.key)
    return LocalLink(here) if here is not None else DaskLink(address, worker, timeout_s)


def nbytes_of(message: Request) -> int:
    """Bytes of all arrays of a message."""
    values = vars(message).values()
    parts = [part for value in values for part in (value.values() if isinstance(value, Mapping) else [value])]
    return sum(int(getattr(part, "nbytes", 0)) for part in parts)


async def ask(
    worker: Any, where: Address, request: Request, timeout_s: float, transfer_s: Callable[[], float] = lambda: 0.0
) -> Reply:
    """The server's reply to a request, in a Dask worker's event loop. Repeats the request if the connection breaks and
    while the server replies NotYet. transfer_s: estimated time of the transfers under way.

    Raises ClusterError if the server is silent for `timeout_s + transfer_s()` seconds or refuses the request.
    """
    from distributed.protocol import to_serialize

    heard = time.monotonic()
    message = to_serialize(request)
    while True:
        fault: BaseException | None = None
        try:
            # As distributed.Actor, but without a client and without waiting for a lost actor.
            call = worker.rpc(where.worker).actor_execute(actor=where.key, function="call", args=[message], kwargs={})
            answer = await asyncio.wait_for(call, min(ATTEMPT_S, timeout_s) + transfer_s())
        except (OSError, TimeoutError) as error:
            fault = error
        except KeyError as error:
            raise ClusterError(f"the server {where.key} is no longer at {where.worker}") from error
        else:
            if answer["status"] != "OK":
                raise answer["exception"]
            reply = answer["result"]
            if isinstance(reply, Refused):
                raise ClusterError(f"the server at {where.worker} refused {type(request).__name__}: {reply.reason}")
            if not isinstance(reply, NotYet):
                return reply
            heard = time.monotonic()
        silence_s = timeout_s + transfer_s()
        if time.monotonic() - heard > silence_s:
            raise ClusterError(
                f"the server at {where.worker} has not answered {type(request).__name__} for {silence_s:.3g} s "
                f"({fault!r}); its process is lost, stopped or disconnected"
            )
        if fault is not None:
            await asyncio.sleep(RETRY_S)
