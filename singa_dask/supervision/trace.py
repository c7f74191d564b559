"""The trace of a run: which steps it has, what ranks and servers have sent of it, and its file."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

from singa_dask.cluster.remote import clock_offsets
from singa_dask.errors import ConfigError, Problem
from singa_dask.files import replacing
from singa_dask.job import ClusterTopology
from singa_dask.supervision.members import GENERATIONS
from singa_dask.tracing import LIMIT, machine, records_of
from singa_dask.tracing.perfetto import Process, trace_of
from singa_dask.tracing.recorder import Record

logger = logging.getLogger(__name__)

WARM_UP = 10  # steps that are left out where the user says only how many
_LATE_S = 2.0  # for what is under way at the end of a run
_Key = tuple[bool, int, int, int]  # whether it is a server, group, rank, generation
_HINT = "Give 100:110 for the steps 100 to 109, or 20 for 20 steps after the first 10."


def steps_of(trace: str | int) -> tuple[int | None, int]:
    """The first step to trace (None: after the warm-up) and the one after the last; or their number. Raises
    ConfigError."""
    found = re.fullmatch(r"(?:(\d{1,18}):)?(\d{1,18})", str(trace).strip())
    first, last = (None, 0) if found is None else (None if found[1] is None else int(found[1]), int(found[2]))
    if last <= (first or 0):
        raise ConfigError(Problem("trace", "must be the steps from:to, or their number", repr(trace), _HINT))
    return first, last


def traced(asked: tuple[int | None, int], start: int, end: int) -> range:
    """The steps that a run traces which begins with step `start` and makes `end`. Raises ConfigError if it does not
    make them."""
    first, last = asked
    steps = range(start + WARM_UP, start + WARM_UP + last) if first is None else range(first, last)
    if steps.stop > end or steps.start < start:
        message = f"the run makes the steps {start} to {end - 1}, not {steps.start} to {steps.stop - 1}"
        received = str(last) if first is None else f"{first}:{last}"
        hint = f"Trace others, for example {start}:{min(end, start + 10)}, or raise train_steps."
        raise ConfigError(Problem("trace", message, received, hint))
    return steps


class Trace:
    """Takes the events of recorders, from any thread, and writes the file once all ranks and servers have sent theirs,
    and at the end.

    steps: from, to. say: tells the user where the file is, and what it lacks. client: of the Dask workers whose clocks
    are compared; None without Dask.
    """

    def __init__(self, steps: range, path: Path, say: Callable[[str], None], topology: ClusterTopology) -> None:
        self.steps, self._path, self._say = (steps.start, steps.stop), path, say
        servers = 0 if topology.in_process_servers else topology.nserver_groups * topology.nservers_per_group
        self._expected = topology.nworkers + servers
        self.client: Any = None
        self._events: list[Mapping[str, Any]] = []
        self._over: dict[_Key, bool] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="trace")
        self._written = 0  # events

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event of a recorder."""
        self._events.append(event)
        self._over[_key(event)] = event["over"]
        latest = self._latest
        if len(latest) >= self._expected and all(latest.values()):
            self._pool.submit(copy_context().run, self._write)

    def close(self) -> None:
        """The run is over: wait a moment for what is under way, and write the file."""
        deadline = time.monotonic() + _LATE_S
        while not all(self._latest.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._pool.submit(copy_context().run, self._write)
        self._pool.shutdown(wait=True)

    @property
    def _latest(self) -> dict[tuple[int, ...], bool]:
        """Of each rank and server, in its last generation, whether it has sent what it recorded."""
        return {key[:-1]: over for key, over in sorted(self._over.items())}

    def _write(self) -> None:
        """Write the file, and say so, unless it has everything. In the thread of the pool."""
        events = self._events[:]
        if not events:
            self._say(f"trace: none of the steps {self.steps[0]} to {self.steps[1] - 1} was made")
        if len(events) == self._written:
            return
        self._written = len(events)
        try:
            ahead_ns, unknown = self._clocks(events)
            with replacing(self._path) as temporary:
                temporary.write_bytes(trace_of(_processes(events, ahead_ns)))
            said = [f"trace: {self._path}, open it at ui.perfetto.dev", *unknown, *self._lacks(events)]
            self._say("; ".join(said))
        except Exception as fault:  # training does not need the trace
            logger.error("%s: the trace could not be written: %s: %s", self._path, type(fault).__name__, fault)

    def _lacks(self, events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        if missing := [_name(key) for key, over in sorted(self._over.items()) if not over]:
            yield f"it lacks what was recorded by {' and '.join(missing)}, which did not send it"
        if left_out := sum({_key(event): event["left_out"] for event in events}.values()):
            yield f"{left_out:,} spans are left out: a rank or server records at most {LIMIT:,}"

    def _clocks(self, events: Iterable[Mapping[str, Any]]) -> tuple[dict[str, int], list[str]]:
        """By how many ns the clock of each machine is ahead of this one's; and what to say of those that are not
        known."""
        there = {event["machine"]: event for event in events if event["machine"] != machine()}
        found: dict[str, tuple[float, float]] = {}
        if there:
            found = clock_offsets(self.client, [event["address"] for event in there.values()])
        known = {name: found[event["address"]][0] for name, event in there.items() if event["address"] in found}
        silent = [event["host"] for name, event in there.items() if name not in known]
        unknown = [f"the clock of {' and '.join(silent)} did not answer"] if silent else []
        return {name: round(1e9 * ahead_s) for name, ahead_s in known.items()}, unknown


@contextmanager
def tracing(trace: Trace | None, client: Any) -> Iterator[None]:
    """Inside, a run is under way; at its end, its trace is written if it has one."""
    if trace is not None:
        trace.client = client
    try:
        yield
    finally:
        if trace is not None:
            trace.close()


def _key(event: Mapping[str, Any]) -> _Key:
    of, *numbers = event["who"]
    return (of == "server", *numbers)


def _name(key: _Key) -> str:
    is_server, group, rank, generation = key
    who = f"server group {group}, server {rank}" if is_server else f"worker group {group}, rank {rank}"
    again = generation % GENERATIONS
    return who if again <= 1 else f"{who}, generation {again}"


def _processes(events: Iterable[Mapping[str, Any]], ahead_ns: Mapping[str, int]) -> Iterator[Process]:
    by_key: dict[_Key, list[Mapping[str, Any]]] = {}
    for event in events:
        by_key.setdefault(_key(event), []).append(event)
    for key, own in sorted(by_key.items()):
        threads: dict[int, str] = {}
        records: list[Record] = []
        for event in own:
            named, more = records_of(event)
            threads |= named
            records += more
        yield Process(f"{_name(key)} ({own[0]['host']})", threads, records, ahead_ns.get(own[0]["machine"], 0))
