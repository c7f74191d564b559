"""The command that compiles what a job needs before its first run."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import job_options, load, reports_errors
from singa_dask.cli.scheduler import Scheduler, scheduler_options
from singa_dask.cli.strategy import StrategyOptions, strategy_options


@click.command(
    cls=Documented,
    examples=[
        ("Compile for this machine:", "singa-dask warm job.conf --workers 3"),
        ("Compile on all machines of a Dask cluster:", "singa-dask warm job.conf --scheduler tcp://host:8786"),
    ],
)
@job_options
@strategy_options
@scheduler_options
@reports_errors
def warm(
    job: Path,
    cluster: Path | None,
    overrides: tuple[str, ...],
    wanted: StrategyOptions,
    scheduler: Scheduler,
) -> None:
    """Compile what a job needs, before its first run.

    The first run of a net on a machine compiles its kernels, which takes seconds. This command trains and evaluates
    two steps on every free worker of the Dask cluster, and discards the result. Later runs load the compiled kernels.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        scheduler.fork_workers(stack)
        loaded = load(job, wanted.overrides(cluster, overrides), cluster)
        client = scheduler.connect(stack)
        from singa_dask.supervision.warm import warm as warmed

        took_part, free = warmed(loaded, client, Path("runs"))
    seconds = time.monotonic() - began
    click.echo(f"{took_part} of {free} free workers have compiled the kernels of the job ({seconds:.0f} s).")
    if took_part < free:
        click.echo("Machines whose workers took no part compile in their first run.")
