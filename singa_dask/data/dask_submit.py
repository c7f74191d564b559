"""Loading as Dask tasks on the very worker process that trains."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client, Worker
    from distributed import Future as _ClientFuture

    from singa_dask.data.loader import Submit

EXECUTOR = "loader"


def dask_submit(client: Client, worker: Worker, threads: int = 1) -> Submit:
    """A `submit` whose tasks run in `worker`'s own process, in a second thread pool named "loader".

    Call it inside a task that has seceded (a task that has not holds the worker's slot, and its loading tasks would
    wait for it), with `client = get_client()` and `worker = get_worker()`. Results stay in the worker's memory: they
    are handed over as they are, neither serialised nor copied.
    """
    import dask
    from distributed.threadpoolexecutor import ThreadPoolExecutor

    if EXECUTOR not in worker.executors:
        prefix = f"Dask-Loader-Threads-{worker.name}"
        worker.executors[EXECUTOR] = ThreadPoolExecutor(threads, thread_name_prefix=prefix)

    def submit(function: Callable[..., Any], *args: Any) -> _LocalFuture:
        with dask.annotate(executor=EXECUTOR):
            future = client.submit(
                function,
                *args,
                key=f"{function.__name__}-{uuid.uuid4().hex}",
                workers=[worker.address],
                allow_other_workers=False,
                pure=False,
            )
        return _LocalFuture(future, worker)

    return submit


class _LocalFuture:
    """A Dask future whose result lies in this process.

    `Future.result` would send the result through a socket to the process that it is already in.
    """

    def __init__(self, future: _ClientFuture, worker: Worker):
        self._future = future
        self._worker = worker

    def result(self, timeout: float | None = None) -> Any:
        """The task's result, or its exception raised. Raises TimeoutError."""
        from distributed import wait

        if not self._future.done():
            wait(self._future, timeout)
        try:
            return self._worker.data[self._future.key]
        except KeyError:
            # The task failed, or Dask moved its result elsewhere.
            return self._future.result(timeout)

    def cancel(self) -> None:
        """Give the task up; unlike Dask's own `cancel` this does not wait for the scheduler's answer."""
        self._future.release()
