"""The proof that nothing of a block of code is left running."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_MARK = "SINGA_DASK_TEST_MARK"
_PATIENCE_S = 5.0


def _processes(mark: str) -> list[str]:
    """Processes that inherited our mark, orphans included; multiprocessing's tracker lives as long as its parent."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.environ().get(_MARK) != mark:
                continue
            if process.status() == psutil.STATUS_ZOMBIE and process.ppid() != os.getpid():
                continue  # its parent is not ours to reap
            command = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if "resource_tracker" not in command:
            found.append(f"{process.pid}: {command[:200]}")
    return found


def _segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("mpich_shm_", "ucx_"))}


@contextmanager
def leaks_forbidden() -> Iterator[None]:
    """Fail when a process or a shared-memory segment that began inside the block outlives it by 5 s."""
    mark, outer = uuid.uuid4().hex, os.environ.get(_MARK)
    os.environ[_MARK] = mark
    segments = _segments()
    try:
        yield
    finally:
        os.environ.pop(_MARK)
        if outer is not None:
            os.environ[_MARK] = outer
    deadline = time.monotonic() + _PATIENCE_S
    while (_processes(mark) or _segments() - segments) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes(mark), "processes are left"
    assert not _segments() - segments, "shared-memory segments are left"
