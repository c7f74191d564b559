"""Loading as Dask tasks on the very worker process that trains."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from distributed import Client, Worker
    from distributed import Future as _Task

    from singa_dask.data.loader import Submit

EXECUTOR = "loader"
# How often a waiting thread asks whether Dask has given a task up.
LOOK_S = 0.5


def dask_submit(client: Client, worker: Worker, threads: int = 1) -> Submit:
    """A `submit` whose work is done by tasks in `worker`'s own process, in a second thread pool named "loader".

    Call it inside a task that has seceded (a task that has not holds the worker's slot, and its loading tasks would
    wait for it), with `client = get_client()` and `worker = get_worker()`. A task goes on for as long as there is more
    to do, since Dask spends milliseconds on each; at most `threads` of them run at once. What is to be done and what
    comes of it do not travel: they are handed over inside the process as they are, and as soon as they are there.
    """
    from distributed.threadpoolexecutor import ThreadPoolExecutor

    if EXECUTOR not in worker.executors:
        prefix = f"Dask-Loader-Threads-{worker.name}"
        worker.executors[EXECUTOR] = ThreadPoolExecutor(threads, thread_name_prefix=prefix)
    return _Errands(client, worker, threads).submit


class _Errands:
    """What one training task has asked to be loaded and nobody has begun with."""

    def __init__(self, client: Client, worker: Worker, threads: int):
        self._client = client
        self._worker = worker
        self._threads = threads
        self._number = next(_numbers)
        self._waiting: deque[tuple[Future, Callable[..., Any], tuple]] = deque()
        self._running = 0  # tasks that will look into `_waiting` again
        self._tasks: list[_Task] = []  # Dask gives up what nobody holds
        self._lock = threading.Lock()
        _errands[self._number] = self

    def submit(self, function: Callable[..., Any], *args: Any) -> _LocalFuture:
        """function(*args) in a task: in one that runs, or in a new one."""
        arrival: Future = Future()
        with self._lock:
            self._waiting.append((arrival, function, args))
            start = self._running < self._threads
            self._running += start
        if start:
            self._start(function.__name__)
        return _LocalFuture(arrival, self)

    def _start(self, name: str) -> None:
        import dask

        with dask.annotate(executor=EXECUTOR):
            task = self._client.submit(
                _run_errands,
                self._number,
                key=f"{name}-{uuid.uuid4().hex}",
                workers=[self._worker.address],
                allow_other_workers=False,
                pure=False,
            )
        self._tasks = [*(other for other in self._tasks if not other.done()), task]

    def run(self) -> None:
        """The task: all that waits, one after the other."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                arrival, function, args = self._waiting.popleft()
            if arrival.set_running_or_notify_cancel():
                _fulfil(arrival, function, args)
            # What was loaded is the training loop's: a name for it here would keep its memory.
            del arrival, function, args

    def check(self) -> None:
        """Raise what Dask has to say where it gave a task up."""
        for task in self._tasks:
            if task.status in ("error", "cancelled", "lost"):
                task.result(LOOK_S)


def _fulfil(arrival: Future, function: Callable[..., Any], args: tuple) -> None:
    try:
        result = function(*args)
    except BaseException as error:
        arrival.set_exception(error)
    else:
        arrival.set_result(result)


_numbers = count()
_errands: WeakValueDictionary[int, _Errands] = WeakValueDictionary()


def _run_errands(number: int) -> None:
    errands = _errands.get(number)
    if errands is not None:
        errands.run()


class _LocalFuture:
    """What a loading task of this process will have loaded."""

    def __init__(self, arrival: Future, errands: _Errands):
        self._arrival = arrival
        self._errands = errands

    def result(self, timeout: float | None = None) -> Any:
        """What the function returned, or its exception raised. Raises TimeoutError."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self._arrival.result(max(0.0, min(end - time.monotonic(), LOOK_S)))
            except TimeoutError:
                if self._arrival.done() or time.monotonic() >= end:
                    raise
            self._errands.check()

    def cancel(self) -> None:
        """Give it up, if nobody has begun with it."""
        self._arrival.cancel()
