"""A lock between the processes that share a cache of compiled kernels: one compiles, the others load the result."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from singa_dask.files import open_lock

# Longer than any kernel takes to compile: a process that is stopped while it holds the lock must not block the others.
PATIENCE_S = 30.0
_POLL_S = 0.01


_listeners: list[Callable[[Path], None]] = []


@contextmanager
def told_of_compiling(listener: Callable[[Path], None]) -> Iterator[None]:
    """Inside, the listener is called with the folder of the cache when a kernel is compiled for the first time, by
    this process or by another one for which it waits."""

    def once(folder: Path) -> None:
        _listeners.remove(once)
        listener(folder)

    _listeners.append(once)
    try:
        yield
    finally:
        if once in _listeners:
            _listeners.remove(once)


class CompileLock:
    """Reentrant: a kernel may need others, which are compiled under the same lock. For one thread at a time."""

    def __init__(self) -> None:
        self._depth = 0
        self._file: int | None = None

    @property
    def depth(self) -> int:
        """The number of kernels under compilation, each needed by the one before."""
        return self._depth

    def acquire(self, folder: Path) -> None:
        """Wait until no other process compiles for the cache in `folder`, at most PATIENCE_S."""
        self._depth += 1
        if self._depth > 1:
            return
        for listener in [*_listeners]:
            listener(folder)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._file = open_lock(folder / "compiling", 0o600)
        except OSError:  # something else is there: compiling twice is better than not at all
            return
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_S)
            except OSError:  # the file system has no locks
                return
            else:
                return

    def release(self, depth: int) -> None:
        """Return to an earlier depth; 0 frees the lock."""
        self._depth = depth
        if depth == 0 and self._file is not None:
            os.close(self._file)
            self._file = None
