"""Simulated time: an event loop whose clock jumps to the next event, and threads that take turns, as greenlets."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import Empty
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent, greenlet


class Stuck(Exception):
    """Nothing will ever happen again, and somebody waits."""


class Killed(BaseException):
    """The process of this fiber is gone."""


class _Timer(list[Any]):
    """When to call what with which arguments, and how many timers were set before: the order of a heap."""

    __slots__ = ()

    def cancel(self) -> None:
        self[2] = None


class Loop(asyncio.AbstractEventLoop):
    """An event loop on simulated time: if nothing is left to do now, its clock jumps to the next timer.

    fiber: the one that runs now, None for the loop itself. stack: of the loop.
    """

    def __init__(self, on_error: Callable[[dict[str, Any]], object]) -> None:
        self.call_exception_handler = on_error  # type: ignore[method-assign]
        self.now = 0.0
        self.fiber: Fiber | None = None
        self.stack = getcurrent()
        self.fibers: set[Fiber] = set()
        self._ready = deque[tuple[Callable[..., Any], tuple[Any, ...]]]()
        self._timers: list[_Timer] = []
        self._set = count()
        self._runs = self._ended = False

    def time(self) -> float:
        return self.now

    def is_closed(self) -> bool:
        return self._ended

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        if not self._ended:  # collected coroutines still call
            self._ready.append((callback, args))

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        timer = _Timer((when, next(self._set), callback, args))
        heappush(self._timers, timer)
        return timer

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return self.call_at(self.now + delay, callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **_: Any) -> Any:
        return asyncio.Task(coro, loop=self)

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def run_forever(self) -> None:
        """Do what there is to do until it is stopped. Raises Stuck where nothing is left."""
        self._runs = True
        asyncio._set_running_loop(self)
        try:
            while self._runs:
                function, args = self._ready.popleft() if self._ready else self._jump()
                try:
                    function(*args)
                except Exception as error:
                    self.call_exception_handler({"message": "a callback failed", "exception": error})
        finally:
            asyncio._set_running_loop(None)

    def stop(self) -> None:
        self._runs = False

    def _jump(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Go to the next timer."""
        while self._timers:
            when, _, function, args = heappop(self._timers)
            if function is not None:
                self.now = max(self.now, when)
                return function, args
        raise Stuck

    def end(self) -> None:
        """End all fibers. What they still do in passing reaches nobody."""
        for fiber in list(self.fibers):
            fiber.killed = True
            while fiber in self.fibers:
                fiber.go_on()
        self._ended = True
        self._ready.clear()
        self._timers.clear()


class Fiber:
    """Blocking code on simulated time, which runs only while the loop waits for it. process: that it is in, if it
    stays in one."""

    def __init__(self, loop: Loop, function: Callable[[], Any]) -> None:
        self.loop, self.function, self.killed = loop, function, False
        self._switch = greenlet(self._run, loop.stack).switch
        self._waits = 0
        self.process: Any = None
        loop.fibers.add(self)
        loop.call_soon(self._wake, 0)

    def kill(self) -> None:
        """Raise Killed wherever it waits, now and from now on."""
        self.killed = True
        self.loop.call_soon(self._wake, self._waits)

    def wait(self, seconds: float | None = None, future: Future[Any] | None = None) -> None:
        """Let time pass: so many seconds, or until the future is done. Called in this fiber."""
        if self.killed:
            raise Killed
        self._waits += 1
        number = self._waits
        timer = None if seconds is None else self.loop.call_later(max(0.0, seconds), self._wake, number)
        if future is not None:
            future.add_done_callback(lambda _: self.loop.call_soon(self._wake, number))
        self.loop.stack.switch()
        if timer is not None:
            timer.cancel()
        if self.killed:
            raise Killed

    def go_on(self) -> None:
        """Run it until it waits or ends."""
        self.loop.fiber = self
        self._switch()
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


class Clock:
    """The module `time`, for code that runs on simulated time."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return 1000.0 + self._loop.now  # the product takes 0 for long ago

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self._loop.fiber.wait(seconds)


class SimulatedFuture(Future[Any]):
    """A future whose result is waited for on simulated time. loop: of the history that runs now.

    Nothing runs beside it, so it has none of the locks of other futures.
    """

    loop: Loop

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._is_done = self._is_cancelled = False
        self._callbacks: list[Callable[[Any], Any]] = []

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> bool:
        if not self._is_done:
            self._is_cancelled = True
            self.settle(error=CancelledError())
        return self._is_cancelled

    def result(self, timeout: float | None = None) -> Any:
        if not self._is_done:
            self.loop.fiber.wait(timeout, self)
        if not self._is_done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._is_cancelled or not self._is_done:
            raise CancelledError if self._is_cancelled else TimeoutError
        return self._error

    def add_done_callback(self, function: Callable[[Any], Any]) -> None:
        if self._is_done:
            function(self)
        else:
            self._callbacks.append(function)

    def set_exception(self, exception: BaseException | None) -> None:
        self.settle(error=exception)

    def settle(self, result: Any = None, error: BaseException | None = None) -> None:
        """Set the result or the error, unless there is one already."""
        if not self._is_done:
            self._is_done, self._value, self._error = True, result, error
            callbacks, self._callbacks = self._callbacks, []
            for function in callbacks:
                function(self)

    set_result = settle


def _run_coroutine_threadsafe(coroutine: Any, loop: Loop) -> SimulatedFuture:
    future = SimulatedFuture()
    asyncio.ensure_future(coroutine, loop=loop).add_done_callback(partial(_pass_on, future))
    return future


def _pass_on(future: SimulatedFuture, task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        future.cancel()
    else:
        error = task.exception()
        future.settle(task.result() if error is None else None, error)


# The module `asyncio`, whose run_coroutine_threadsafe returns a SimulatedFuture.
SIMULATED_ASYNCIO = SimpleNamespace(**vars(asyncio) | {"run_coroutine_threadsafe": _run_coroutine_threadsafe})


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


def at_once(*_: Any, **__: Any) -> Any:
    """A ThreadPoolExecutor for those who only give it to their loop, which runs at once what is to run there."""
    done = SimulatedFuture()
    done.settle()
    return SimpleNamespace(submit=lambda function: done, shutdown=lambda wait: None)
