"""What an update to a server and its reply take, and an exchange between neighbouring servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any
from uuid import uuid4

import numpy as np

from singa_dask.cluster import current_task, form_group
from singa_dask.cluster.leases import server_key
from singa_dask.comm.communicator import Communicator
from singa_dask.errors import ClusterError
from singa_dask.planning.profile import Curve, Point
from singa_dask.profiling.processors import Computing
from singa_dask.server import ActorLink, Address, Link, ParameterSlice, ServerActor, ServerPlan, Stub
from singa_dask.server.link import ATTEMPT_S
from singa_dask.server.messages import Put
from singa_dask.updaters import SGD

# Bytes of an update, and as many of its reply.
SIZES = tuple(1 << power for power in (12, 15, 18, 21, 23, 24))
# A size is left out if one round trip takes longer than this, seconds.
LONGEST_S = 0.5
# Each size is measured so often, with all others in between.
ROUNDS = 2
_WARM_S, _SERIES_S, _MOST_CALLS, _FEWEST_CALLS = 0.2, 0.2, 50, 3
_MOST_WARM_CALLS = 7  # until memory for large messages comes from earlier ones
_START_S = 30.0
_ELEMENTS = [nbytes // 4 for nbytes in SIZES]
_BOUNDS = list(accumulate(_ELEMENTS, initial=0))
_SLICES = tuple(ParameterSlice(i, start, stop, 0, 0) for i, (start, stop) in enumerate(pairwise(_BOUNDS)))


@dataclass(frozen=True)
class RoundTripsPlan:
    """What clients measure. where: "machine" or "network". seconds: after which no further size is begun."""

    where: str
    seconds: float


class MeasuredServer(ServerActor):
    """A server that tells what it takes. Its updates leave the parameters as they are, and so take no time."""

    async def compute(self, where: str) -> None:
        """Compute until `taken`."""
        self._computing = Computing(where)
        self._computing.__enter__()

    async def taken(self) -> float:
        """Seconds of a core that all else took since `compute`."""
        self._computing.__exit__()
        return self._computing.taken

    async def set(self) -> None:
        """Set parameters."""
        for part in _SLICES:
            await asyncio.wrap_future(self.server.call(Put(part.index, np.ones(part.size, np.float32))))

    async def exchange(self, right: Address, index: int, calls: int) -> list[float]:
        """Seconds of exchanges of one slice with the right neighbour."""
        self._right = right
        stamps = [time.perf_counter()]
        for _ in range(calls):
            await self._exchange(index, force=True)
            stamps.append(time.perf_counter())
        return [after - before for before, after in pairwise(stamps)]


def measure_round_trips(comm: Communicator, plan: RoundTripsPlan) -> dict[str, Curve]:
    """The curves "round_trip" and "serve" of as many clients as there are ranks, the same on every rank. Collective.

    Every rank is a worker group of its own. The driver tells the server's address as "servers".
    """
    from distributed import get_worker

    (address,) = current_task().wait_told("servers", _START_S)
    worker = get_worker()
    clients = _Clients(comm, worker, address, ActorLink(address, worker, comm.timeout_s), plan)
    return clients.curves()


class _Clients:
    """The clients of one server. Every decision rests on numbers that all ranks have."""

    def __init__(self, comm: Communicator, worker: Any, address: Address, link: Link, plan: RoundTripsPlan) -> None:
        self._comm, self._worker, self._address, self._plan = comm, worker, address, plan
        waiting: dict[str, Any] = {"patience_s": comm.timeout_s, "aborted": lambda: comm.aborted}
        self._stubs = [Stub([part], {0: link}, group=comm.rank, **waiting) for part in _SLICES]
        self._values, self._gradient = (np.ones(_BOUNDS[-1], np.float32) for _ in range(2))
        self._step = 0  # of the slice

    def curves(self) -> dict[str, Curve]:
        began = time.monotonic()
        round_trips: list[Point] = []
        served: list[Point] = []
        for stub, size in zip(self._stubs * ROUNDS, SIZES * ROUNDS, strict=True):
            left = self._plan.seconds - self._of_all(time.monotonic() - began).max()
            expected = Curve.medians(round_trips).seconds(size) if round_trips else 0.0
            if round_trips and (expected > LONGEST_S or 2 * _FEWEST_CALLS * expected > left):
                continue
            trip, serve = self._points(stub, size)
            round_trips.append(trip)
            served.append(serve)
        return {"round_trip": Curve.medians(round_trips), "serve": Curve.medians(served)}

    def _points(self, stub: Stub, size: int) -> tuple[Point, Point]:
        """Of the worker, and of the server."""
        self._step = stub.get(self._values, 0)
        once = self._of_all(self._trip(stub)).max()
        for _ in range(int(np.clip(_WARM_S / once, 1, _MOST_WARM_CALLS))):
            once = self._of_all(self._trip(stub)).max()
        calls = int(np.clip(_SERIES_S / once, _FEWEST_CALLS, _MOST_CALLS))
        seconds = np.median([self._trip(stub) for _ in range(calls)])
        self._asked("compute", self._plan.where)
        with Computing(self._plan.where) as computing:
            for _ in range(calls):
                self._trip(stub)
        served = self._asked("taken") / (calls * self._comm.size)
        cpu = np.mean(self._of_all(computing.taken)) / calls
        return Point(size, float(np.median(self._of_all(seconds))), float(cpu)), Point(size, served, served)

    def _trip(self, stub: Stub) -> float:
        """Seconds of an update and its reply."""
        began = time.perf_counter()
        stub.push(self._step, self._gradient, self._values)
        stub.pull(self._values)
        self._step += 1
        return time.perf_counter() - began

    def _asked(self, function: str, *args: Any) -> float:
        """What a method of the server returns, while no client asks it for anything else. Collective."""
        self._comm.barrier()
        found = np.zeros(1)
        if self._comm.rank == 0:
            asking = self._ask(function, list(args))
            loop = self._worker.loop.asyncio_loop
            found[0] = asyncio.run_coroutine_threadsafe(asking, loop).result(2 * ATTEMPT_S) or 0.0
        self._comm.broadcast(found)
        return float(found[0])

    async def _ask(self, function: str, args: list[Any]) -> float | None:
        call = self._worker.rpc(self._address.worker).actor_execute(
            actor=self._address.key, function=function, args=args, kwargs={}
        )
        answer = await asyncio.wait_for(call, ATTEMPT_S)
        if answer["status"] != "OK":
            raise answer["exception"]
        result: float | None = answer["result"]
        return result

    def _of_all(self, number: float) -> np.ndarray:
        """Every rank's number, by rank."""
        numbers = np.zeros(self._comm.size)
        numbers[self._comm.rank] = number
        self._comm.all_gather(numbers, [1] * self._comm.size)
        return numbers


def round_trips(client: Any, server: str, clients: Sequence[str], where: str, seconds: float) -> dict[str, Curve]:
    """The curves of a server on one Dask worker and its clients on others, by name: "round_trip machine 1".

    Raises ClusterError.
    """
    with _servers(client, [server], [_plan(range(len(clients)))]) as (addresses, actors):
        actors[0].set().result(timeout=_START_S)
        plan = RoundTripsPlan(where, seconds)
        with form_group(client, clients, measure_round_trips, plan, name="profile") as group:
            group.tell("servers", addresses)
            curves = group.results(seconds + _START_S)[0]
    return {f"{name} {where} {len(clients)}": curve for name, curve in curves.items()}


def exchange_neighbours(client: Any, left: str, right: str, where: str, seconds: float) -> dict[str, Curve]:
    """The curve of two neighbouring servers on two Dask workers: seconds, and those of a core on each side.

    Raises ClusterError.
    """
    plans = [replace(_plan([0]), accounts={side: (0, 0)}) for side in ("right", "left")]
    ends = time.monotonic() + seconds
    points: list[Point] = []
    with _servers(client, [left, right], plans) as (addresses, actors):
        for actor in actors:
            actor.set().result(timeout=_START_S)

        def exchanged(index: int, calls: int) -> list[float]:
            found: list[float] = actors[0].exchange(addresses[1], index, calls).result(timeout=_START_S)
            return found

        def compute() -> None:
            for actor in actors:
                actor.compute(where).result(timeout=_START_S)

        def taken() -> float:
            found: float = sum(actor.taken().result(timeout=_START_S) for actor in actors)
            return found

        for part, size in zip(_SLICES * ROUNDS, SIZES * ROUNDS, strict=True):
            expected = Curve.medians(points).seconds(size) if points else 0.0
            if points and (expected > LONGEST_S or time.monotonic() + 2 * _FEWEST_CALLS * expected > ends):
                continue
            once = exchanged(part.index, 2)[-1]
            calls = int(np.clip(_SERIES_S / once, _FEWEST_CALLS, _MOST_CALLS))
            seconds = float(np.median(exchanged(part.index, calls)))
            compute()
            exchanged(part.index, calls)
            points.append(Point(size, seconds, taken() / calls / 2))
    return {f"exchange_neighbours {where} 2": Curve.medians(points)}


def _plan(groups: Iterable[int]) -> ServerPlan:
    """Of a server whose updates do nothing: it has no parameters that a rule applies to."""
    return ServerPlan(SGD(lr=0.1).proto.SerializeToString(), (), _SLICES, groups=tuple(groups))


@contextmanager
def _servers(
    client: Any, where: Sequence[str], plans: Sequence[ServerPlan]
) -> Iterator[tuple[tuple[Address, ...], list[Any]]]:
    """A server of each plan, on the Dask worker beside it in `where`: addresses and Dask actors."""
    run = uuid4().hex[:8]
    named = [replace(plan, key=server_key(f"{i}-of-profile", run)) for i, plan in enumerate(plans)]
    futures = [
        client.submit(
            MeasuredServer, plan, actor=True, key=plan.key, workers=[address], pure=False, allow_other_workers=False
        )
        for plan, address in zip(named, where, strict=True)
    ]
    actors: list[Any] = []
    try:
        for future, address in zip(futures, where, strict=True):
            try:
                actors.append(future.result(timeout=_START_S))
            except Exception as error:
                raise ClusterError(f"a server could not be made on {address}: {error!r}") from error
        yield tuple(Address(address, plan.key) for plan, address in zip(named, where, strict=True)), actors
    finally:
        for actor in actors:
            with suppress(Exception):  # lost
                actor.close().result(timeout=2.0)
        for future in futures:
            future.release()
