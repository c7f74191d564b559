"""--scheduler and --scheduler-file: the Dask cluster that a command uses; without them, one of this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import click

from singa_dask.errors import ClusterError
from singa_dask.files import FILE, kind_of

CONNECT_S = 10.0


class Scheduler(NamedTuple):
    """What these options say; None where one is not given."""

    address: str | None = None
    file: Path | None = None

    @property
    def given(self) -> bool:
        return self != Scheduler()

    def fork_workers(self, stack: ExitStack) -> None:
        """Without a running cluster: fork local workers from a process that already imports what they need, which
        starts them seconds earlier.

        For commands only: a program may have chosen another start method for its own Dask clusters.
        """
        if self.given:
            return
        from singa_dask.cluster.fork_server import fork_server

        stack.enter_context(fork_server())
        import dask  # slow to import: the fork server imports at the same time

        stack.enter_context(dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}))

    def connect(self, stack: ExitStack) -> Any:
        """A client of the running cluster; None without one. Raises ClusterError if no scheduler answers."""
        if not self.given:
            return None
        from distributed import Client

        if self.address and self.file:
            raise click.UsageError("--scheduler and --scheduler-file exclude each other: give one of them.")
        # Dask waits for the file without a deadline. A scheduler that has just started may not have written it yet.
        deadline = time.monotonic() + CONNECT_S
        while self.file and not self.file.exists():
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.file}: no scheduler wrote this file within {CONNECT_S:g} s.")
            time.sleep(0.1)
        if self.file and (kind := kind_of(self.file)) != FILE:
            raise ClusterError(f"{self.file}: is {kind}, not a file that a scheduler wrote.")
        try:
            client = Client(self.address, scheduler_file=self.file and str(self.file), timeout=CONNECT_S)
        except (OSError, TimeoutError, ValueError, AssertionError) as error:  # the last: a file without an address
            where = self.address or self.file
            raise ClusterError(
                f"No Dask scheduler answers at {where} ({error}). Is it running and reachable?"
            ) from error
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # our own error tells of a lost scheduler
        return stack.enter_context(client)


def scheduler_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--scheduler and --scheduler-file, which the command gets as `scheduler`."""

    @wraps(command)
    def wrapped(*args: Any, scheduler: str | None, scheduler_file: Path | None, **kwargs: Any) -> Any:
        return command(*args, scheduler=Scheduler(scheduler, scheduler_file), **kwargs)

    file = click.option(
        "--scheduler-file", type=click.Path(path_type=Path), help="Scheduler file of a running Dask cluster."
    )
    return click.option("--scheduler", metavar="ADDRESS", help="Address of a running Dask scheduler.")(file(wrapped))
