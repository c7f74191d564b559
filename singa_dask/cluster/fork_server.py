"""The process that workers of a local cluster are forked from. It imports while the command still reads its job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process, forkserver
from typing import Any

from singa_dask.cluster.cores import THREAD_VARIABLES, added_variables
from singa_dask.cluster.stop_signals import FOR_THE_DRIVER
from singa_dask.temporary import private_folder

# What workers need.
IMPORTED = ["singa_dask.training.forked"]
# Dask has freed memory given back to the system at once: every large temporary array would be new pages at every step.
# So would a message of several MB that a thread receives: only the first arena keeps what is freed, so it is the only
# one. The C library reads these when a process starts, and forked ones have what it read.
MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": "134217728",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_ARENA_MAX": "1",
}
# How many cores a worker has is not known yet: it is told when it begins (worker_setup). One thread until then, as
# threads don't survive a fork. Strings have Dask's hashes, those of workers that it starts in any other way.
_ENVIRONMENT = MALLOC | dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONHASHSEED": "6640"}


@contextmanager
def fork_server() -> Iterator[None]:
    """Start the process that Dask's multiprocessing-method "forkserver" forks workers from; it is gone afterwards.

    For the main thread of a process that is ours. Variables that the environment has already stay.
    """
    forkserver.set_forkserver_preload(IMPORTED)
    with private_files():
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in FOR_THE_DRIVER}  # as in its workers
        try:
            try:
                with added_variables(_ENVIRONMENT):
                    forkserver.ensure_running()
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
            yield
        finally:
            _end()


@contextmanager
def private_files() -> Iterator[None]:
    """Inside, multiprocessing has its files in a private folder: its own stays in /tmp if this process is killed."""
    settings = current_process()._config  # type: ignore[attr-defined]
    before = settings.get("tempdir")
    with private_folder() as folder:
        settings["tempdir"] = str(folder)
        try:
            yield
        finally:
            settings["tempdir"] = before


def own_fork_servers() -> Iterator[Any]:
    """The fork servers that this process has started, as psutil knows them."""
    import psutil  # type: ignore[import-untyped]

    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any("multiprocessing.forkserver" in word for word in child.cmdline()):
                yield child


def _end() -> None:
    """It would end when it has imported everything, and hold the command's output open until then."""
    import psutil

    for server in own_fork_servers():
        with suppress(psutil.Error, ChildProcessError):
            server.kill()
            # Until it has ended, and no more: multiprocessing itself asks for its status before it starts another.
            os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
