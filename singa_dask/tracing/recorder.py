"""What a rank or a server records of the steps that are traced: spans, by the thread that made them."""

from __future__ import annotations

import pickle
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple, Protocol

EVENT = "trace"  # the kind of the events that recorders send
LIMIT = 200_000  # spans of a recorder
_CHUNK = 10_000  # of an event
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine


class Origin(Protocol):
    """Whose gradient an update has: a worker group, in one of its generations."""

    @property
    def group(self) -> int: ...

    @property
    def generation(self) -> int: ...


class Record(NamedTuple):
    """A span. thread: that made it, by number. began, ended: ns since 1970, by the clock of the host.

    step, steps: the first step that it belongs to, and how many. bucket, slice: by number, -1 for none. group,
    generation: of the worker group whose gradient this is, -1 for none: push, update and take of the same step and
    slice are connected by an arrow.
    """

    name: str
    thread: int
    began: int
    ended: int
    step: int
    steps: int = 1
    bucket: int = -1
    slice: int = -1
    group: int = -1
    generation: int = -1


def machine() -> str:
    """The same for all processes with one clock."""
    return _BOOT.read_text(encoding="utf-8").strip() if _BOOT.exists() else socket.gethostname()


class Recorder:
    """The spans of one rank or server. Thread-safe.

    steps: that are traced, from, to. emit: sends an event to the driver. who: "worker" or "server", the number of its
    group, its own in the group, and the generation of the group. address: of its Dask worker. track: of all spans,
    where no two are at the same time; "" for one for each thread.

    The first span is told at once, so that the driver knows whose are missing if the process is lost. The others are
    sent once all worker groups that were seen have gone beyond the steps, and at the end.
    """

    def __init__(
        self,
        steps: tuple[int, int],
        emit: Callable[[dict[str, Any]], None],
        who: tuple[str, int, int, int],
        address: str = "",
        *,
        track: str = "",
    ) -> None:
        self.steps, self._emit, self._track = range(*steps), emit, track
        self.on = False  # whether a traced step is being made
        self.step = steps[0]
        self._about = {"who": who, "address": address, "host": socket.gethostname(), "machine": machine()}
        self._lock = threading.Lock()
        self._records: list[tuple[Any, ...]] = []  # fields of Records
        self._threads = {0: track}
        self._reached: dict[int, int] = {}
        self._count = self._left_out = 0

    @contextmanager
    def here(self, thread: str = "") -> Iterator[None]:
        """Inside, `span` records here. thread: names the track of this thread."""
        if thread:
            with self._lock:
                self._threads[threading.get_ident()] = thread
        token = _recorder.set(self)
        try:
            yield
        finally:
            _recorder.reset(token)

    def reach(self, step: int, group: int = 0) -> None:
        """A worker group begins a step, or has made it."""
        self.step, self.on = step, step in self.steps
        self._reached[group] = step
        # One step later: with `one_behind`, the values of the last step are taken in the next one.
        if self._records and min(self._reached.values()) > self.steps.stop:
            self.send()

    def wants(self, step: int | None, steps: int, origin: Origin | None) -> bool:
        """Whether to record a span. Both ends of an arrow belong to its step, whenever they are."""
        if self.on and origin is None:
            return True
        return step is not None and step < self.steps.stop and self.steps.start < step + steps

    def add(self, name: str, began: int, ended: int, *about: int) -> None:
        """Add a span. about: the fields of a Record from `step` on."""
        thread = 0 if self._track else threading.get_ident()
        with self._lock:
            if self._count == LIMIT:
                self._left_out += 1
                return
            if thread not in self._threads:
                self._threads[thread] = threading.current_thread().name
            self._count += 1
            self._records.append((name, thread, began, ended, *about))
            first = len(self._records) == 1
        if first:
            self._tell([], over=False)

    def send(self) -> None:
        """Send what was recorded since the last time."""
        with self._lock:
            records, self._records = self._records, []
        for start in range(0, max(len(records), bool(self._left_out)), _CHUNK):
            self._tell(records[start : start + _CHUNK], over=start + _CHUNK >= len(records))

    def _tell(self, records: list[tuple[Any, ...]], *, over: bool) -> None:
        event = {"kind": EVENT, **self._about, "over": over, "left_out": self._left_out}
        with self._lock:
            threads = dict(self._threads)
        self._emit({**event, "spans": zlib.compress(pickle.dumps((threads, records)), 1)})


_recorder: ContextVar[Recorder | None] = ContextVar("singa_dask_recorder", default=None)


class _Nothing:
    """Of a block that is not recorded. It costs half of nullcontext."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


_NOTHING = _Nothing()


class _Span:
    __slots__ = ("_about", "_began", "_name", "_recorder")

    def __init__(self, recorder: Recorder, name: str, *about: int) -> None:
        self._recorder, self._name, self._about = recorder, name, about

    def __enter__(self) -> None:
        self._began = time_ns()

    def __exit__(self, *exc: object) -> None:
        self._recorder.add(self._name, self._began, time_ns(), *self._about)


def span(
    name: str,
    step: int | None = None,
    *,
    steps: int = 1,
    bucket: int = -1,
    slice: int = -1,
    origin: Origin | None = None,
) -> _Nothing | _Span:
    """Record the block as a span of the process, if it is traced. step: the one that is being made, if None; the rest:
    as in Record."""
    recorder = _recorder.get()
    if recorder is None or not recorder.wants(step, steps, origin):
        return _NOTHING
    whose = (-1, -1) if origin is None else (origin.group, origin.generation)
    return _Span(recorder, name, recorder.step if step is None else step, steps, bucket, slice, *whose)


def carried(function: Callable[..., Any], thread: str, name: str, step: int | None, steps: int) -> Callable[..., Any]:
    """The function, whose calls are recorded as spans of this process, whichever thread makes them. thread: names its
    track; the rest: as in `span`."""
    recorder = _recorder.get()
    if recorder is None:
        return function

    @wraps(function)
    def call(*args: Any) -> Any:
        with recorder.here(thread), span(name, step, steps=steps):
            return function(*args)

    return call


def records_of(event: Mapping[str, Any]) -> tuple[dict[int, str], list[Record]]:
    """The names of threads, by number, and the spans of an event."""
    threads, records = pickle.loads(zlib.decompress(event["spans"]))
    return threads, [Record._make(fields) for fields in records]
