"""Runs a rank's collectives in order, beside the computing where that is faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np

from singa_dask.comm.communicator import Communicator
from singa_dask.exchange.overlap import OverlapTuner

# Between two polls of what is under way while there is nothing else to do.
_POLL_S = 2e-4


class CollectiveExecutor:
    """Runs a rank's collectives in the order in which they are submitted, which must be the same on all ranks.

        executor.begin_step()
        future = executor.submit(call, ...)     during the computing if `overlaps`, else after it
        executor.wait(future)
        executor.end_step()

    threaded: whether a thread can run them beside the computing. tuner: decides in which steps it does; without one in
    all. initializer: called in that thread first. wait_s: seconds so far in which the caller could do nothing but wait
    for the group. An operation that fails aborts the communicator, so that those behind it fail too.
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        threaded: bool,
        tuner: OverlapTuner | None = None,
        initializer: Callable[[], None] | None = None,
    ) -> None:
        self.comm = comm
        self._comms = [comm]
        self._pool = ThreadPoolExecutor(1, "exchange", initializer=initializer) if threaded else None
        self._tuner = tuner if threaded else None
        self._under_way: list[Future[Any]] = []
        self._submitted = 0
        self.wait_s = 0.0

    def overlap(self) -> None:
        """Run the operations of all later steps in a thread, beside the computing."""
        self._pool, self._tuner = self._pool or ThreadPoolExecutor(1, "exchange"), None

    def include(self, comm: Communicator) -> None:
        """Let calls use another communicator of the same ranks, whose operations an abort of `self.comm` ends."""
        if comm not in self._comms:
            self._comms.append(comm)

    @property
    def overlaps(self) -> bool:
        """Whether collectives run beside the computing in this step; the same on all ranks."""
        return self._pool is not None and (self._tuner is None or self._tuner.first)

    def begin_step(self) -> None:
        """Call before the computing of a step, on every rank."""
        if self._tuner is not None:
            self._tuner.begin()

    def end_step(self) -> None:
        """Call when everything that the step has submitted is complete, on every rank."""
        if self._tuner is not None and self._tuner.end():
            seconds = self._tuner.seconds
            self.run(self.comm.all_reduce, seconds)
            self._tuner.choose(seconds)

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run a call after those that are under way."""
        self._under_way = [future for future in self._under_way if not future.done()]
        if self._pool is None or not (self.overlaps or self._under_way):
            done: Future[Any] = Future()
            waited = self._waited
            done.set_result(self._run(call, *args))
            self.wait_s += self._waited - waited
            return done
        self._hurry(False)
        self._submitted += 1
        future = self._pool.submit(copy_context().run, self._run_beside, self._submitted, call, *args)
        self._under_way.append(future)
        return future

    def wait(self, future: Future[Any]) -> Any:
        """What a call returned, once it has. Each operation in it has a deadline."""
        self._hurry(True)
        began, waited = time.perf_counter(), self._waited
        result = future.result()
        # Of what the thread did meanwhile, only waiting for other ranks counts.
        self.wait_s += min(time.perf_counter() - began, self._waited - waited)
        return result

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """What `call(*args)` returns, run after what was submitted before."""
        return self.wait(self.submit(call, *args))

    def all_reduce(self, array: np.ndarray) -> np.ndarray:
        """The array, of any shape; it has become the sum over the group."""
        self.run(self.comm.all_reduce, array.reshape(-1))
        return array

    def close(self) -> None:
        """End the thread. Operations that are under way, because the worker failed elsewhere, are aborted."""
        if self._pool is None:
            return
        if any(not future.done() for future in self._under_way):
            self.comm.abort("the worker's step was broken off")
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def _waited(self) -> float:
        return sum(comm.wait_s for comm in self._comms)

    def _hurry(self, hurried: bool) -> None:
        for comm in self._comms:
            comm.hurried = hurried

    def _run_beside(self, number: int, call: Callable[..., Any], *args: Any) -> Any:
        """Run a call; then drive what it has started until there is another call, or the caller waits."""
        result = self._run(call, *args)
        deadline = time.monotonic() + self.comm.timeout_s
        while self._submitted == number and not self.comm.hurried and self._run(self.comm.progress):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return result

    def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except BaseException as error:
            self.comm.abort(f"{type(error).__name__}: {error}")
            raise
