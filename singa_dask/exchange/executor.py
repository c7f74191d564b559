"""The way of a worker's operations to its group: one after another, beside the computing where that pays."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.overlap import OverlapTuner

# Between looks at what is under way while there is nothing else to do.
_LOOK_S = 2e-4


class CollectiveExecutor:
    """Runs operations of a communicator in the order in which they are given, which must be that of all ranks.

        lane.begin_step()
        future = lane.submit(call, ...)     as soon as there is something to send, if `beside`; else after computing
        lane.wait(future)
        lane.end_step()

    threaded: whether there is a thread in which operations can go on beside the computing. trial: in which steps they
    do; in all where there is none. initializer: called in that thread first. wait_s: seconds so far in which the
    caller could not go on for waiting for the group. An operation that fails breaks the communicator, so that those
    behind it fail too.
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        threaded: bool,
        trial: OverlapTuner | None = None,
        initializer: Callable[[], None] | None = None,
    ) -> None:
        self._comm = comm
        self._pool = ThreadPoolExecutor(1, "exchange", initializer=initializer) if threaded else None
        self._trial = trial if threaded else None
        self._under_way: list[Future[Any]] = []
        self._submitted = 0
        self.wait_s = 0.0

    @property
    def beside(self) -> bool:
        """Whether operations of this step go on beside the computing, the same on all ranks."""
        return self._pool is not None and (self._trial is None or self._trial.first)

    def begin_step(self) -> None:
        """Before the computing of a step, on every rank."""
        if self._trial is not None:
            self._trial.begin()

    def end_step(self) -> None:
        """When all that the step has submitted is done, on every rank."""
        if self._trial is not None and self._trial.end():
            seconds = self._trial.seconds
            self.run(self._comm.all_reduce, seconds)
            self._trial.settle(seconds)

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run an operation after those that are under way."""
        self._under_way = [future for future in self._under_way if not future.done()]
        if self._pool is None or not (self.beside or self._under_way):
            done: Future[Any] = Future()
            waited = self._comm.wait_s
            done.set_result(self._run(call, *args))
            self.wait_s += self._comm.wait_s - waited
            return done
        self._comm.hurried = False
        self._submitted += 1
        future = self._pool.submit(copy_context().run, self._run_beside, self._submitted, call, *args)
        self._under_way.append(future)
        return future

    def wait(self, future: Future[Any]) -> Any:
        """What an operation returned, once it is done; each of them has a deadline of its own."""
        self._comm.hurried = True
        began, waited = time.perf_counter(), self._comm.wait_s
        result = future.result()
        # Of what the thread did in the meantime only the waiting for others counts.
        self.wait_s += min(time.perf_counter() - began, self._comm.wait_s - waited)
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

    def _run_beside(self, number: int, call: Callable[..., Any], *args: Any) -> Any:
        """Run an operation; what it has started goes on until there is another to run, or somebody waits for it."""
        result = self._run(call, *args)
        deadline = time.monotonic() + self._comm.timeout_s
        while self._submitted == number and not self._comm.hurried and self._run(self._comm.nudge):
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_S)
        return result

    def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except BaseException as error:
            self._comm.abort(f"{type(error).__name__}: {error}")
            raise
