"""A thread that makes calls which may never return."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future


class CallingThread(threading.Thread):
    """Makes calls one after another. Nothing waits for it, not even the end of the process."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        self.start()

    def call(self, fn: Callable[[], None]) -> Callable[[], bool]:
        """Queue a call. Returns a test of whether it has returned, which raises what the call raised."""
        returned: Future[None] = Future()
        self._calls.put((fn, returned))
        return lambda: returned.done() and returned.result() is None

    def end(self) -> None:
        """End the thread after the calls so far."""
        self._calls.put(None)

    def run(self) -> None:
        for fn, returned in iter(self._calls.get, None):
            try:
                fn()
            except BaseException as error:
                returned.set_exception(error)
            else:
                returned.set_result(None)
