"""Commands that start a run or change an active one: train, join, leave."""

from __future__ import annotations

import gc
import signal
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import click

from singa_dask.cli.connect import connect, fork_workers, join_mpi
from singa_dask.cli.options import (
    CLUSTER,
    JOB,
    RUN,
    SCHEDULER,
    SCHEDULER_FILE,
    SET,
    interrupt,
    load,
    reports_errors,
)

_PYTHONS_THRESHOLD = gc.get_threshold()


@click.command()
@JOB
@CLUSTER
@SET
@click.option(
    "--workspace", type=click.Path(path_type=Path), help="Folder for the results [default: runs/<job>-<framework>]."
)
@click.option("--resume", is_flag=True, help="Resume from the newest valid checkpoint in the workspace.")
@SCHEDULER
@SCHEDULER_FILE
@click.option("--mpi", is_flag=True, help="Run inside mpiexec or srun: rank 0 is the driver, the others are workers.")
@click.option(
    "--interface",
    metavar="NAME",
    help="With --mpi: the network interface for Dask, for example ib0 [default: the default route].",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="How many times a group that lost a worker is restarted.",
)
@reports_errors
def train(
    job: Path,
    cluster: Path | None,
    overrides: tuple[str, ...],
    workspace: Path | None,
    resume: bool,
    scheduler: str | None,
    scheduler_file: Path | None,
    mpi: bool,
    interface: str | None,
    max_restarts: int,
) -> None:
    """Train the net of JOB, a job file.

    By default, workers run on a local Dask cluster. --scheduler and --scheduler-file select a running Dask cluster.
    --mpi starts one inside an MPI job.
    """
    # Batch systems stop jobs with SIGTERM: save as after Ctrl-C. Open MPI's mpiexec forwards only SIGUSR1 without
    # killing the job.
    for number in (signal.SIGTERM, signal.SIGUSR1)[: 2 if mpi else 1]:
        signal.signal(number, interrupt)
    loaded = cache(lambda: load(job, overrides, cluster))
    with ExitStack() as stack:
        if mpi:
            gc.set_threshold(*_PYTHONS_THRESHOLD)  # ranks train in this process
            client = join_mpi(stack, lambda: loaded().topology.nprocesses, interface, scheduler or scheduler_file)
            if client is None:
                return  # this rank was a worker
        elif interface:
            raise click.UsageError(
                "--interface needs --mpi; otherwise give --interface to Dask's own scheduler and workers."
            )
        else:
            if scheduler is None and scheduler_file is None:
                fork_workers(stack)
            loaded()
            client = connect(stack, scheduler, scheduler_file)
        from singa_dask.monitor.progress import LineDisplay
        from singa_dask.supervision import driver

        # MPI launchers may give their ranks a terminal that nobody watches.
        display = LineDisplay() if mpi else None
        result = driver.train(
            loaded(), client, workspace=workspace, resume=resume, max_restarts=max_restarts, display=display
        )
    click.echo(str(result))
    if result.interrupted:
        sys.exit(130)


@click.command()
@SCHEDULER
@SCHEDULER_FILE
@RUN
@reports_errors
def join(scheduler: str | None, scheduler_file: Path | None, run: str | None) -> None:
    """Add a worker group to an active asynchronous run.

    The group starts on free workers of the run's Dask cluster.
    """
    _ask_run(scheduler, scheduler_file, "join", run)


@click.command()
@click.argument("group", type=click.IntRange(0))
@SCHEDULER
@SCHEDULER_FILE
@RUN
@reports_errors
def leave(group: int, scheduler: str | None, scheduler_file: Path | None, run: str | None) -> None:
    """Remove a worker group from an active asynchronous run.

    Worker group GROUP finishes its current step and leaves. The other groups continue.
    """
    _ask_run(scheduler, scheduler_file, "leave", run, group=group)


def _ask_run(scheduler: str | None, scheduler_file: Path | None, op: str, run: str | None, **more: Any) -> None:
    from singa_dask.supervision.control import ask_run

    if scheduler is None and scheduler_file is None:
        raise click.UsageError("Give the run's Dask cluster: --scheduler ADDRESS or --scheduler-file FILE.")
    with ExitStack() as stack:
        click.echo(ask_run(connect(stack, scheduler, scheduler_file), op, run, **more))
