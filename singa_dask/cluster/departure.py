"""What a Dask worker waits for before it closes, as when its scheduler is lost: its rank or its server saves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from distributed import WorkerPlugin

# For so long a Dask worker that closes waits.
CLOSING_S = 20.0
# Of these, how long the first worker group waits for the others to end.
OTHERS_S = 5.0


class Departure(WorkerPlugin):
    """Has a Dask worker that closes wait until it may, for at most CLOSING_S.

    may_close: is asked again and again, with the seconds since it began to close.
    """

    def __init__(self, name: str, worker: Any, may_close: Callable[[float], bool]) -> None:
        self.name, self._worker, self._may_close = f"singa-departure-{name}", worker, may_close
        self._left = threading.Event()
        worker.loop.add_callback(worker.plugin_add, self, self.name)

    def done(self) -> None:
        """It need not wait any more. From any thread."""
        self._left.set()
        with suppress(RuntimeError):  # the loop is closed
            self._worker.loop.add_callback(self._remove)

    async def remove(self) -> None:
        """The same, in Dask's thread."""
        self._left.set()
        if (removal := self._remove()) is not None:
            await removal

    def _remove(self) -> Any:
        return self._worker.plugin_remove(self.name) if self.name in self._worker.plugins else None

    async def teardown(self, worker: Any) -> None:
        """Called by Dask."""
        began = time.monotonic()
        while not self._left.is_set() and (waited_s := time.monotonic() - began) < CLOSING_S:
            if self._may_close(waited_s):
                return
            await asyncio.sleep(0.05)
