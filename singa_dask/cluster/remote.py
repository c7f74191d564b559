"""Calls to Dask workers that end in time, whatever state a worker is in."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import signal
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import psutil  # type: ignore[import-untyped]

from singa_dask.cluster.fork_server import own_fork_servers
from singa_dask.cluster.segments import unlink_segments
from singa_dask.data.dask_client import IMPORTING, check_synchronous
from singa_dask.errors import SchedulerLost

# How late the client's event loop may be on a busy machine.
_LATE_S = 30.0
# How long a scheduler may take to answer if it is busy, and if the connection to it is lost.
_BUSY_S, _LOST_S = 60.0, 10.0
_LOOK_S = 0.5
# Who has not answered by then may be gone.
_PROMPT_S = 0.1
# In which a nanny that lives says how its worker is.
_PROMPT_ANSWER_S = 1.0
# Between two looks at whether processes are stopped.
_STOPPED_EVERY_S = 0.25
# What each process adds to the time between two looks at all of them.
_LOOK_SHARE_S = 0.01
# How often a clock is asked, and in which time.
_ASKED, _CLOCK_S = 20, 5.0

# The workers, by client, that have imported this package.
_imported = WeakKeyDictionary[Any, set[str]]()


class StillImporting(TimeoutError):
    """A worker reacts, and cannot answer before it has imported this package."""


def run_each(
    client: Any, function: Callable[..., Any], args: Mapping[str, tuple], timeout_s: float
) -> dict[str, Any | Exception]:
    """What `function(*args[address])` returned on each worker, or the exception that it ended with.

    `Client.run` waits for all its workers together, and for a stopped one for ever. Here each has its own deadline:
    one that does not answer yields TimeoutError, and one that the scheduler misses meanwhile OSError, at once. The
    function runs on the event loop of the worker, and must not block: a worker imports this package in a thread first,
    and yields StillImporting if that takes longer.
    """
    importing, imported = set[str](), _imported.setdefault(client, set())

    async def call(address: str) -> Any:
        # Client._run is what Client.run awaits; the public call has no deadline.
        if address not in imported:
            await client._run(os.getpid, workers=[address])
            importing.add(address)
            await client._run(*IMPORTING, workers=[address])
            importing.remove(address)
            imported.add(address)
        return (await client._run(function, *args[address], workers=[address]))[address]

    look_s = max(_PROMPT_S, _LOOK_SHARE_S * len(args))

    async def one(address: str) -> Any:
        deadline, asked = time.monotonic() + timeout_s, asyncio.ensure_future(call(address))
        try:
            while not asked.done() and (left := deadline - time.monotonic()) > 0:
                await asyncio.wait({asked}, timeout=min(left, look_s))
                # The scheduler itself goes on connecting.
                if not (asked.done() or await _is_listed(client, address, left)):
                    raise OSError(f"the scheduler misses {address}")
            if not asked.done():
                raise StillImporting("it is importing singa_dask") if address in importing else TimeoutError
            return asked.result()
        finally:
            asked.cancel()

    return _each(client, one, args, timeout_s)


async def _is_listed(client: Any, address: str, timeout_s: float) -> bool:
    """Whether the scheduler knows a worker; true if it does not say."""
    with suppress(OSError, AttributeError):  # no answer in time, or the client has given up the scheduler
        return address in await asyncio.wait_for(client.scheduler.ncores(workers=[address]), timeout_s)
    return True


def ask_nannies(
    client: Any, function: Callable[..., Any], args: Mapping[str, tuple], timeout_s: float
) -> dict[str, Any | Exception]:
    """As run_each, on nannies, by the nanny's address: also those whose workers are just being restarted."""

    async def answer(address: str) -> Any:
        question = client.rpc(address).run(function=pickle.dumps(function), args=pickle.dumps(args[address]))
        asked = asyncio.ensure_future(question)
        try:
            await asyncio.wait({asked}, timeout=_PROMPT_S)
            if not asked.done():
                await check_listening(address)
            return await asked
        finally:
            asked.cancel()

    async def one(address: str) -> Any:
        answered = await asyncio.wait_for(answer(address), timeout_s)
        if answered["status"] != "OK":
            raise answered["exception"]
        return answered["result"]

    return _each(client, one, args, timeout_s)


def clock_offsets(client: Any, addresses: Iterable[str]) -> dict[str, tuple[float, float]]:
    """By how much the clock of each worker is ahead of this process's, and half the round trip that it was asked in,
    which bounds the error; seconds, by address. The fastest of several round trips counts, without the scheduler
    between. Workers that do not answer are left out."""

    async def ask(address: str) -> tuple[float, float]:
        question, found = pickle.dumps(_clock), (0.0, math.inf)
        for _ in range(_ASKED):
            sent = time.time()
            answered = await client.rpc(address).run(function=question, args=pickle.dumps(()))
            half = (time.time() - sent) / 2
            if half < found[1]:
                found = answered["result"] - sent - half, half
        return found

    async def one(address: str) -> tuple[float, float]:
        return await asyncio.wait_for(ask(address), _CLOCK_S)

    # One by one: they would slow each other down.
    answers = [_each(client, one, {address: ()}, _CLOCK_S) for address in addresses]
    return {address: found for each in answers for address, found in each.items() if isinstance(found, tuple)}


def _clock(dask_worker: Any = None) -> float:
    return time.time()


async def check_listening(address: str) -> None:
    """Raises OSError where nobody listens at an address: Dask would try to connect until the deadline."""
    place = urlsplit(address)
    if place.port is not None:
        _, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.close()


def _each(
    client: Any, one: Callable[[str], Coroutine[Any, Any, Any]], args: Mapping[str, tuple], timeout_s: float
) -> dict[str, Any | Exception]:
    async def every() -> list[Any]:
        return await asyncio.gather(*map(one, args), return_exceptions=True)

    try:
        return dict(zip(args, _within(client, every, timeout_s), strict=True))
    except TimeoutError as error:  # the client's own event loop is stuck
        return dict.fromkeys(args, error)


def kill_processes(client: Any, pids: Mapping[str, int]) -> None:
    """Have the nannies kill these workers (address -> pid) and start fresh processes, under other addresses.

    Dask's own restart closes workers politely first: 0.5 s longer, and 4 s where a worker is stopped or stuck. Nannies
    are asked by their own addresses: a scheduler that is to ask them fails, with tracebacks, if a worker has left.
    """
    if pids:
        workers = ask_scheduler(client, lambda: client.scheduler.identity())["workers"]
        nannies = {workers[address].get("nanny"): (pid,) for address, pid in pids.items() if address in workers}
        ask_nannies(client, _kill, {nanny: args for nanny, args in nannies.items() if nanny}, 2.0)


def _kill(pid: int, dask_worker: Any = None) -> None:
    if dask_worker.pid == pid:  # else the nanny has started another one already
        unlink_segments(process=pid)  # of an MPI that the process started by itself
        os.kill(pid, signal.SIGKILL)


def replace_stopped(client: Any, nannies: Iterable[str]) -> None:
    """Have these nannies replace their worker if its process is stopped (SIGSTOP), and continue their fork server if
    that is. Nobody else misses a process that is stopped while it starts, or without work."""
    ask_nannies(client, _replace_stopped, dict.fromkeys(nannies, ()), _PROMPT_ANSWER_S)


def _replace_stopped(dask_worker: Any = None) -> None:
    for server in own_fork_servers():
        if _is_stopped(server.pid):
            with suppress(psutil.Error):
                server.resume()
    if dask_worker.pid and _is_stopped(dask_worker.pid):
        _kill(dask_worker.pid, dask_worker)


class StoppedProcesses:
    """Watches for processes that are stopped (SIGSTOP). One that is stopped at two looks in a row is lost.

    found: the nannies, as of the last look, whose worker was stopped.
    """

    def __init__(self, client: Any) -> None:
        self.found: set[str] = set()
        self._client, self._looked_at = client, -math.inf

    def look(self, pids: Mapping[str, int]) -> set[str]:
        """The nannies, of those given (nanny -> pid of its worker), whose worker is lost. Looks if it is time to."""
        now = time.monotonic()
        if now - self._looked_at < max(_STOPPED_EVERY_S, _LOOK_SHARE_S * len(pids)):
            return set()
        self._looked_at = now
        before, self.found = self.found, stopped_processes(self._client, pids) if pids else set()
        return before & self.found


def stopped_processes(client: Any, pids: Mapping[str, int]) -> set[str]:
    """The nannies, of those given (nanny -> pid of its worker), whose worker's process is stopped (SIGSTOP)."""
    asked = {nanny: (pid,) for nanny, pid in pids.items()}
    answers = ask_nannies(client, _is_stopped, asked, _PROMPT_ANSWER_S)
    return {nanny for nanny, answer in answers.items() if answer is True}


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def alive(client: Any, addresses: Iterable[str] | None = None, timeout_s: float | None = None) -> set[str]:
    """The addresses, of those given or of all workers, that the scheduler knows at this moment.

    timeout_s: None waits longer for a scheduler that is busy than for one to which the connection is lost.
    Raises SchedulerLost when the scheduler does not answer.
    """
    wanted = None if addresses is None else list(addresses)

    return set(ask_scheduler(client, lambda: client.scheduler.ncores(workers=wanted), timeout_s))


def threads_of(client: Any) -> int:
    """The most threads that a worker has; 1 if there is none. Raises SchedulerLost as `alive` does."""
    return max(ask_scheduler(client, lambda: client.scheduler.ncores(workers=None)).values(), default=1)


def last_seen(client: Any) -> dict[str, float]:
    """When each worker last sent the scheduler a heartbeat, by the scheduler's clock.

    Raises SchedulerLost when the scheduler does not answer.
    """
    workers = ask_scheduler(client, lambda: client.scheduler.identity())["workers"]
    return {address: worker["last_seen"] for address, worker in workers.items()}


def unsubscribe(client: Any, topic: str) -> None:
    """Take no more events of a topic."""
    from distributed.client import ClosedClientError

    with suppress(ClosedClientError):  # it closes itself when the scheduler is lost
        client.unsubscribe_topic(topic)


def ask_scheduler(client: Any, question: Callable[[], Any], timeout_s: float | None = None) -> Any:
    """What the scheduler answers. timeout_s: as of `alive`. Raises SchedulerLost."""
    began, limit = time.monotonic(), timeout_s or _LOST_S

    async def answer() -> Any:
        nonlocal limit
        if client.scheduler is None:
            raise OSError("the client has given up the scheduler")
        asked = asyncio.ensure_future(question())
        try:
            while not asked.done() and time.monotonic() < began + limit:
                limit = timeout_s or (_BUSY_S if client.status == "running" else _LOST_S)
                await asyncio.wait({asked}, timeout=min(_LOOK_S, limit))
            if asked.done():
                return asked.result()
            raise TimeoutError
        finally:
            asked.cancel()

    try:
        return _within(client, answer, timeout_s or _BUSY_S)
    except OSError as error:
        where = f" ({client.scheduler.addr})" if client.scheduler else ""
        message = f"the Dask scheduler{where} did not answer within {limit:g} s; is it still running?"
        raise SchedulerLost(message) from error


def _within(client: Any, coroutine: Callable[[], Any], timeout_s: float) -> Any:
    check_synchronous(client)
    return client.sync(_Call, coroutine, callback_timeout=timeout_s + _LATE_S)


class _Call:
    """Becomes a coroutine when it is awaited: Ctrl-C makes Dask give up calls that it has not begun with, and of a
    coroutine Python would complain that it was never awaited."""

    def __init__(self, coroutine: Callable[[], Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, None, Any]:
        return self._coroutine().__await__()
