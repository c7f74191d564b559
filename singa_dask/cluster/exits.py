"""How the processes of Dask workers ended, which only their nannies are told."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from distributed.nanny import WorkerProcess

from singa_dask.cluster.remote import ask_nannies, ask_scheduler
from singa_dask.errors import SchedulerLost

# Exit codes of this nanny's processes that did not end by themselves, by pid: negative ones are signals.
_codes: dict[int, int] = {}
# The nanny may hear of the end after the scheduler does.
_HEARS_WITHIN_S = 0.2
_ANSWER_S = 0.5
_RECENT_S = 60.0
_KILLERS = {"SIGKILL": " (by kill -9, or because memory ran out)"}


def record_exits() -> Mapping[int, int]:
    """Have this nanny's process remember how its workers' processes end. Returns their exit codes, by pid."""
    tell = WorkerProcess._death_message
    if tell.__module__ == __name__:
        return _codes

    def death_message(process: Any, pid: int, exitcode: int) -> str:
        _codes[pid] = exitcode
        return str(tell(process, pid, exitcode))

    WorkerProcess._death_message = death_message  # type: ignore[method-assign]
    return _codes


async def _code_of(pid: int, dask_worker: Any = None) -> int | None:
    deadline = time.monotonic() + _HEARS_WITHIN_S
    while pid not in _codes and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return _codes.get(pid)


def ending_of(client: Any, nanny: str, pid: int, address: str) -> str:
    """What became of a nanny's worker process that is gone: "was killed by SIGKILL", for example, or why Dask has
    ended it; "died" if nobody says more."""
    if reason := _ended_by_dask(client, pid, address):
        return reason
    code = ask_nannies(client, _code_of, {nanny: (pid,)}, _ANSWER_S)[nanny] if nanny else None
    return in_words(code) if isinstance(code, int) else "died"


def _ended_by_dask(client: Any, pid: int, address: str) -> str:
    """What the scheduler's events of the last minute say of this process."""

    def events(topic: str) -> list[dict[str, Any]]:
        found = ask_scheduler(client, lambda: client.scheduler.events(topic=topic), _ANSWER_S)
        return [event for at, event in found if isinstance(event, dict) and at > time.time() - _RECENT_S]

    with suppress(SchedulerLost):
        if any((event["worker"], event["pid"]) == (address, pid) for event in events("worker-restart-memory")):
            return "exceeded its memory limit and was ended by its nanny"
        for event in events("scheduler"):
            if event.get("action") == "worker-ttl-timed-out" and address in event["workers"]:
                where = "suspended, cut off, or on an overloaded machine"
                return f"sent no heartbeat for {event['ttl']:g} s and was replaced by Dask ({where})"
    return ""


def in_words(code: int) -> str:
    """What an exit code says of a process.

    >>> in_words(3), in_words(-11)
    ('ended with exit code 3', 'was killed by SIGSEGV')
    """
    if code == 255:  # of a signal that is not known
        return "died"
    if code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return f"was killed by {name}{_KILLERS.get(name, '')}"
