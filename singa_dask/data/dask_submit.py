"""Loading in Dask tasks of the worker process that trains."""

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
# Interval at which a waiting thread checks whether Dask has dropped a task.
LOOK_S = 0.5


def dask_submit(client: Client, worker: Worker, threads: int = 1) -> Submit:
    """A `submit` whose calls run in tasks in `worker`'s process, in a second thread pool named "loader".

    Call it in a task that has seceded, with `client = get_client()` and `worker = get_worker()`. Otherwise the task
    would hold the worker's slot while its loading tasks wait for it. Dask takes milliseconds per task, so a task
    continues while calls are queued; at most `threads` tasks run at once. Arguments and results stay in the process.
    """
    from distributed.threadpoolexecutor import ThreadPoolExecutor

    if EXECUTOR not in worker.executors:
        prefix = f"Dask-Loader-Threads-{worker.name}"
        worker.executors[EXECUTOR] = ThreadPoolExecutor(threads, thread_name_prefix=prefix)
    return _TaskQueue(client, worker, threads).submit


class _TaskQueue:
    """Calls that one training task has submitted and no loading task has started."""

    def __init__(self, client: Client, worker: Worker, threads: int):
        self._client = client
        self._worker = worker
        self._threads = threads
        self._number = next(_numbers)
        self._waiting: deque[tuple[Future, Callable[..., Any], tuple]] = deque()
        self._running = 0  # tasks that will check `_waiting` again
        self._tasks: list[_Task] = []  # Dask drops tasks without references
        self._lock = threading.Lock()
        _queues[self._number] = self

    def submit(self, function: Callable[..., Any], *args: Any) -> _LocalFuture:
        """Call function(*args) in a running task or in a new one."""
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
                _run_queue,
                self._number,
                key=f"{name}-{uuid.uuid4().hex}",
                workers=[self._worker.address],
                allow_other_workers=False,
                pure=False,
            )
        self._tasks = [*(other for other in self._tasks if not other.done()), task]

    def run(self) -> None:
        """The task: run the queued calls one by one."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                arrival, function, args = self._waiting.popleft()
            if arrival.set_running_or_notify_cancel():
                _fulfil(arrival, function, args)
            # Drop the references: they would keep the memory of what the training loop has consumed.
            del arrival, function, args

    def look(self) -> None:
        """Make the calls in this thread if the worker is paused for its memory: then it starts no task. Raise Dask's
        error if it dropped a task."""
        if self._worker.status.name == "paused":
            with self._lock:
                self._running += 1
            self.run()
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
_queues: WeakValueDictionary[int, _TaskQueue] = WeakValueDictionary()


def _run_queue(number: int) -> None:
    queue = _queues.get(number)
    if queue is not None:
        queue.run()


class _LocalFuture:
    """The future of a call in a loading task of this process."""

    def __init__(self, arrival: Future, queue: _TaskQueue):
        self._arrival = arrival
        self._queue = queue

    def result(self, timeout: float | None = None) -> Any:
        """The result of the call. Raises its exception, or TimeoutError."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self._arrival.result(max(0.0, min(end - time.monotonic(), LOOK_S)))
            except TimeoutError:
                if self._arrival.done() or time.monotonic() >= end:
                    raise
            self._queue.look()

    def cancel(self) -> None:
        """Cancel the call if it has not started."""
        self._arrival.cancel()
