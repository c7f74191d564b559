"""The command that examines a cluster."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import PATH, reports_errors
from singa_dask.cli.scheduler import Scheduler, scheduler_options

_WORKERS = 2


@click.command(
    cls=Documented,
    examples=[
        ("Examine this machine:", "singa-dask doctor"),
        ("Examine a running Dask cluster:", "singa-dask doctor --scheduler tcp://host:8786 --workspace /scratch/runs"),
    ],
)
@scheduler_options
@click.option(
    "--workspace",
    type=PATH,
    default=Path("runs"),
    help="Folder for runs, which all workers must see and can write to.",
)
@reports_errors
def doctor(scheduler: Scheduler, workspace: Path) -> None:
    """Examine whether a Dask cluster is fit to train.

    Examined are the workers, versions, MPI, cores and BLAS, shared memory, HDF5 and folders, GPUs with CuPy and NCCL,
    clocks, and the speed of an all-reduce. Each line says what was found, and the way out of what is wrong. Workers
    that a run uses are left alone. Exits with 1 if there is an error. Without --scheduler, two workers of a local
    Dask cluster are examined.
    """
    with ExitStack() as stack:
        scheduler.fork_workers(stack)
        from singa_dask.cluster import local_cluster
        from singa_dask.supervision.doctor import Level, checks, examine

        client = scheduler.connect(stack) or stack.enter_context(local_cluster(_WORKERS))
        found = checks(examine(client, workspace, lambda text: click.echo(f"examining {text}", err=True)))
    for check in found:
        click.echo(f"{check.level.value:<9}{check.subject:<15}{check.found}{'' if check.found.endswith('.') else '.'}")
        if check.way_out:
            click.echo(f"{'':24}{check.way_out}")
    count = {level: sum(check.level is level for check in found) for level in Level}
    click.echo(f"errors: {count[Level.ERROR]}, warnings: {count[Level.WARNING]}")
    if count[Level.ERROR]:
        sys.exit(1)
