"""The proof that nothing of a block of code is left running."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_MARK = "SINGA_DASK_TEST_MARK"
_PATIENCE_S = 20.0


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
    return {str(path) for path in Path("/dev/shm").iterdir() if path.name.startswith(("mpich_shm_", "ucx_"))}


def _abandoned(segments: set[str], mark: str) -> set[str]:
    """Those that no process without our mark has mapped. None while a test beside this one has processes: those that
    it kills leave segments too, and it is that test which must see them go."""
    for process in psutil.process_iter() if segments else ():
        with suppress(psutil.Error):
            others = process.environ().get(_MARK)
            if others not in (None, mark):
                return set()
            if others is None:
                segments = segments - {region.path for region in process.memory_maps()}
    return segments


@contextmanager
def leaks_forbidden() -> Iterator[None]:
    """Fail when a process or a shared-memory segment that began inside the block outlives it by 20 s."""
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
    left = _segments() - segments
    while (_processes(mark) or _abandoned(left, mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
        left &= _segments()
    assert not _processes(mark), "processes are left"
    assert not _abandoned(left, mark), "shared-memory segments are left"
