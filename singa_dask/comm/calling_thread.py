"""A thread that makes calls which may never return."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class CallingThread(threading.Thread):
    """Makes calls one after another. Nothing waits for it, not even the end of the process."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self.start()

    def call(self, fn: Callable[[], None]) -> Callable[[], bool]:
        """Queue a call. Returns a test of whether it has returned, which raises what the call raised."""
        call = _Call(fn)
        self._calls.put(call)
        return call.done

    def end(self) -> None:
        """End the thread after the calls so far."""
        self._calls.put(None)

    def run(self) -> None:
        for call in iter(self._calls.get, None):
            call.run()


class _Call:
    def __init__(self, fn: Callable[[], None]) -> None:
        self._fn = fn
        self._error: BaseException | None = None
        self._returned = threading.Event()

    def run(self) -> None:
        try:
            self._fn()
        except BaseException as error:
            self._error = error
        finally:
            self._returned.set()

    def done(self) -> bool:
        if not self._returned.is_set():
            return False
        if self._error is not None:
            raise self._error
        return True
