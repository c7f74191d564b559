"""The way of a worker's operations to its group: one after another, beside the computing where that pays."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator


class Lane:
    """Runs operations of a communicator in the order in which they are given, which must be that of all ranks.

    threaded: in a thread of its own; else at once. initializer: called in that thread first. wait_s: seconds so far in
    which the caller could not go on for waiting for the group. An operation that fails breaks the communicator, so
    that those behind it fail too.
    """

    def __init__(self, comm: Communicator, *, threaded: bool, initializer: Callable[[], None] | None = None) -> None:
        self._comm = comm
        self._pool = ThreadPoolExecutor(1, "exchange", initializer=initializer) if threaded else None
        self._under_way: list[Future[Any]] = []
        self._blocked_s = 0.0

    @property
    def threaded(self) -> bool:
        return self._pool is not None

    @property
    def wait_s(self) -> float:
        return self._comm.wait_s if self._pool is None else self._blocked_s

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run an operation after those that are under way."""
        if self._pool is None:
            done: Future[Any] = Future()
            done.set_result(call(*args))
            return done
        self._under_way = [future for future in self._under_way if not future.done()]
        future = self._pool.submit(copy_context().run, self._run, call, *args)
        self._under_way.append(future)
        return future

    def wait(self, future: Future[Any]) -> Any:
        """What an operation returned, once it is done; each of them has a deadline of its own."""
        began, waited = time.perf_counter(), self._comm.wait_s
        result = future.result()
        # Of what the thread did in the meantime only the waiting for others counts.
        self._blocked_s += min(time.perf_counter() - began, self._comm.wait_s - waited)
        return result

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """What `call(*args)` returns, after what was submitted before."""
        return self.wait(self.submit(call, *args))

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """The array, of any shape, which has become the sum of the group's."""
        self.run(self._comm.all_reduce, array.reshape(-1))
        return array

    def close(self) -> None:
        """End the thread; what is under way, because the worker failed elsewhere, is broken off."""
        if self._pool is None:
            return
        if any(not future.done() for future in self._under_way):
            self._comm.abort("the worker's step was broken off")
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except BaseException as error:
            self._comm.abort(f"{type(error).__name__}: {error}")
            raise
