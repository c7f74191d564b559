"""Loading as Dask tasks on the very worker process that trains."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future as _Arrival
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client, Worker
    from distributed import Future as _ClientFuture

    from singa_dask.data.loader import Submit

EXECUTOR = "loader"
# How often a waiting thread asks whether Dask has given a task up.
LOOK_S = 0.5

# Results on their way from this process's loading tasks to its training loops.
_arrivals: dict[int, _Arrival] = {}
_numbers = count()


def dask_submit(client: Client, worker: Worker, threads: int = 1) -> Submit:
    """A `submit` whose tasks run in `worker`'s own process, in a second thread pool named "loader".

    Call it inside a task that has seceded (a task that has not holds the worker's slot, and its loading tasks would
    wait for it), with `client = get_client()` and `worker = get_worker()`. Results do not pass through Dask, which
    would keep their memory, and tell of them, only after a way to the scheduler and back: they are handed over inside
    the process as soon as they are there, as they are.
    """
    import dask
    from distributed.threadpoolexecutor import ThreadPoolExecutor

    if EXECUTOR not in worker.executors:
        prefix = f"Dask-Loader-Threads-{worker.name}"
        worker.executors[EXECUTOR] = ThreadPoolExecutor(threads, thread_name_prefix=prefix)

    def submit(function: Callable[..., Any], *args: Any) -> _LocalFuture:
        number = next(_numbers)
        arrival = _arrivals[number] = _Arrival()
        with dask.annotate(executor=EXECUTOR):
            task = client.submit(
                _hand_over,
                number,
                function,
                *args,
                key=f"{function.__name__}-{uuid.uuid4().hex}",
                workers=[worker.address],
                allow_other_workers=False,
                pure=False,
            )
        return _LocalFuture(task, number, arrival)

    return submit


def _hand_over(number: int, function: Callable[..., Any], *args: Any) -> None:
    """The task: function(*args), for the thread of this process that waits for it."""
    arrival = _arrivals.pop(number, None)
    if arrival is None or not arrival.set_running_or_notify_cancel():
        return  # given up
    try:
        result = function(*args)
    except BaseException as error:
        arrival.set_exception(error)
    else:
        arrival.set_result(result)


class _LocalFuture:
    """What a loading task of this process will have loaded."""

    def __init__(self, task: _ClientFuture, number: int, arrival: _Arrival):
        self._task = task
        self._number = number
        self._arrival = arrival

    def result(self, timeout: float | None = None) -> Any:
        """The task's result, or its exception raised. Raises TimeoutError."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self._arrival.result(max(0.0, min(end - time.monotonic(), LOOK_S)))
            except TimeoutError:
                if self._arrival.done() or time.monotonic() >= end:
                    raise
            if self._task.status in ("error", "cancelled", "lost"):
                self._task.result(timeout)

    def cancel(self) -> None:
        """Give the task up; unlike Dask's own `cancel` this does not wait for the scheduler's answer."""
        _arrivals.pop(self._number, None)
        self._arrival.cancel()
        self._task.release()
