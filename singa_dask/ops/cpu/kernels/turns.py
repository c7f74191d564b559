"""Processes that share a cache of compiled kernels compile by turns: what one has compiled the others find there."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

# Longer than any kernel takes to compile: a process that was stopped with its turn must not hold up all others.
PATIENCE_S = 30.0
_POLL_S = 0.01


class Turn:
    """A process's turn to compile. Kernels that one needs are compiled within its turn. For one thread at a time."""

    def __init__(self) -> None:
        self._taken = 0
        self._file: int | None = None

    @property
    def taken(self) -> int:
        """How many kernels are being compiled, each for the sake of the one before."""
        return self._taken

    def take(self, folder: Path) -> None:
        """Wait until no other process compiles for the cache in `folder`, at most PATIENCE_S."""
        self._taken += 1
        if self._taken > 1:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / "compiling", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_S)
            except OSError:  # file systems that have no locks
                return
            else:
                return

    def give_back(self, taken: int) -> None:
        """What was taken beyond `taken` is done."""
        self._taken = taken
        if taken == 0 and self._file is not None:
            os.close(self._file)
            self._file = None
