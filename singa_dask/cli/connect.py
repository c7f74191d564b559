"""Where a command finds its Dask cluster: local, running, or inside an MPI job."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

CONNECT_S = 10.0


def fork_workers(stack: ExitStack) -> None:
    """Fork local workers from a process that already imports what they need, which starts them seconds earlier.

    For the command only: a program may have chosen another start method for its own Dask clusters.
    """
    from singa_dask.cluster.fork_server import fork_server

    stack.enter_context(fork_server())
    import dask  # slow to import: the fork server imports at the same time

    stack.enter_context(dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}))


def connect(stack: ExitStack, scheduler: str | None, scheduler_file: Path | None) -> Any:
    """A client of the given cluster, None for a local one. Raises ClusterError if no scheduler answers."""
    if scheduler is None and scheduler_file is None:
        return None
    from distributed import Client

    from singa_dask.errors import ClusterError

    if scheduler and scheduler_file:
        raise click.UsageError("--scheduler and --scheduler-file exclude each other: give one of them.")
    # Dask waits for the file without a deadline. A scheduler that has just started may not have written it yet.
    deadline = time.monotonic() + CONNECT_S
    while scheduler_file and not scheduler_file.exists():
        if time.monotonic() > deadline:
            raise ClusterError(f"{scheduler_file}: no scheduler wrote this file within {CONNECT_S:g} s.")
        time.sleep(0.1)
    try:
        client = Client(scheduler, scheduler_file=scheduler_file and str(scheduler_file), timeout=CONNECT_S)
    except (OSError, TimeoutError, ValueError, AssertionError) as error:  # the last: a file without an address
        where = scheduler or scheduler_file
        raise ClusterError(f"No Dask scheduler answers at {where} ({error}). Is it running and reachable?") from error
    return stack.enter_context(client)


def join_mpi(stack: ExitStack, needed: Callable[[], int], interface: str | None, other: object) -> Any:
    """On rank 0 a client of the Dask cluster inside this MPI job; on other ranks None, when the job has ended."""
    from singa_dask.cluster.mpi_world import mpi_world

    def checked() -> int:
        if other:
            raise click.UsageError("--mpi starts its own Dask cluster: leave out --scheduler and --scheduler-file.")
        return needed()

    return stack.enter_context(mpi_world(checked, interface=interface))
