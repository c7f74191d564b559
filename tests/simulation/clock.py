"""Simulated time: an event loop whose clock jumps to the next event, and threads of which one runs at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty
from typing import Any


class Stuck(Exception):
    """Nothing will ever happen again, and somebody waits."""


class Killed(BaseException):
    """The process of this thread is gone."""


class Loop(asyncio.BaseEventLoop):
    """An event loop on simulated time. fiber: the thread that runs now, None for the loop itself."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.fiber: Fiber | None = None
        self.fibers: set[Fiber] = set()
        self.handed_back = threading.Lock()
        self.handed_back.acquire()
        self._selector = self  # of BaseEventLoop

    def time(self) -> float:
        return self.now

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck
        self.now += timeout
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def end(self) -> None:
        """End all threads. What they still do in passing reaches nobody."""
        for fiber in list(self.fibers):
            fiber.killed = True
            while fiber in self.fibers:
                fiber.go_on()
        self._ready.clear()
        self._scheduled.clear()
        self.call_soon = lambda *_, **__: None  # type: ignore[method-assign,assignment]  # as collected coroutines do
        self.close()


class Fiber:
    """A thread that runs blocking code on simulated time, only while the loop waits for it. process: that it is in, if
    it stays in one."""

    def __init__(self, loop: Loop, function: Callable[[], Any]) -> None:
        self.loop, self.function, self.killed = loop, function, False
        self._turn = threading.Lock()
        self._turn.acquire()
        self._waits = 0
        self.process: Any = None
        self._begun = False
        loop.fibers.add(self)
        loop.call_soon(self._wake, 0)

    def kill(self) -> None:
        """Raise Killed wherever it waits, now and from now on."""
        self.killed = True
        self.loop.call_soon(self._wake, self._waits)

    def wait(self, seconds: float | None = None, future: Future[Any] | None = None) -> None:
        """Let time pass: so many seconds, or until the future is done. Called in this thread."""
        if self.killed:
            raise Killed
        self._waits += 1
        number = self._waits
        timer = None if seconds is None else self.loop.call_later(max(0.0, seconds), self._wake, number)
        if future is not None:
            future.add_done_callback(lambda _: self.loop.call_soon(self._wake, number))
        self.loop.handed_back.release()
        self._turn.acquire()
        if timer is not None:
            timer.cancel()
        if self.killed:
            raise Killed

    def go_on(self) -> None:
        """Run it until it waits or ends."""
        self.loop.fiber = self
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._run, daemon=True, name="simulated").start()
        else:
            self._turn.release()
        self.loop.handed_back.acquire()
        self.loop.fiber = None

    def _wake(self, number: int) -> None:
        if number == self._waits and self in self.loop.fibers:
            self.go_on()

    def _run(self) -> None:
        try:
            if not self.killed:
                self.function()
        except Killed:
            pass
        except BaseException as error:
            self.loop.call_exception_handler({"message": "a simulated thread failed", "exception": error})
        finally:
            self.loop.fibers.discard(self)
            self.loop.handed_back.release()


class Clock:
    """The module `time`, for code that runs on simulated time."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return 1000.0 + self._loop.now  # the product takes 0 for long ago

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        assert self._loop.fiber is not None
        self._loop.fiber.wait(seconds)


class SimulatedFuture(Future[Any]):
    """A future whose result is waited for on simulated time. loop: of the history that runs now."""

    loop: Loop

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            assert self.loop.fiber is not None
            self.loop.fiber.wait(timeout, self)
        return super().result(0)

    def settle(self, result: Any = None, error: BaseException | None = None) -> None:
        """Set the result or the error, unless there is one already."""
        if not self.done():
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(result)


class SimulatedAsyncio:
    """The module `asyncio`, whose run_coroutine_threadsafe returns a SimulatedFuture."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def run_coroutine_threadsafe(self, coroutine: Any, loop: Loop) -> SimulatedFuture:
        future = SimulatedFuture()
        loop.call_soon(lambda: loop.create_task(coroutine).add_done_callback(lambda task: _pass_on(task, future)))
        return future


def _pass_on(task: asyncio.Task[Any], future: SimulatedFuture) -> None:
    if task.cancelled():
        future.cancel()
    else:
        future.settle(task.exception() is None and task.result(), task.exception())


class Mailbox:
    """A SimpleQueue on simulated time."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._arrival: SimulatedFuture | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._arrival is not None:
            self._arrival.settle()

    def get(self, timeout: float) -> Any:
        if not self._items:
            self._arrival = SimulatedFuture()
            assert self._arrival.loop.fiber is not None
            self._arrival.loop.fiber.wait(timeout, self._arrival)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()


class Pool:
    """A ThreadPoolExecutor with one thread, on simulated time. start: makes a Fiber of the process that it is in."""

    def __init__(self, start: Callable[[Callable[[], Any]], Fiber]) -> None:
        self._start, self._work, self._runs = start, deque[tuple[SimulatedFuture, Callable[[], Any]]](), False
        self._idle = SimulatedFuture()

    def submit(self, function: Callable[..., Any], *args: Any) -> SimulatedFuture:
        future = SimulatedFuture()
        self._work.append((future, lambda: function(*args)))
        if not self._runs:
            self._runs, self._idle = True, SimulatedFuture()
            self._start(self._run)
        return future

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        if cancel_futures:
            while self._work:
                self._work.pop()[0].cancel()
        if wait and self._runs:
            self._idle.result()

    def _run(self) -> None:
        while self._work:
            future, work = self._work.popleft()
            try:
                future.settle(work())
            except Exception as error:
                future.settle(error=error)
        self._runs = False
        self._idle.settle()


class AtOnce:
    """An executor that runs what it is given at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: Any) -> SimulatedFuture:
        future = SimulatedFuture()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True) -> None:
        pass
