"""The command that predicts what ways to train a job will cost."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from singa_dask.cli.options import OUTPUT, PATH, connect, job_options, load, reports_errors, scheduler_options
from singa_dask.cli.quantities import BANDWIDTH, LATENCY, SIZE, Counts, Names
from singa_dask.cli.run import fork_workers
from singa_dask.files import read_text, write_whole

_STDOUT = Path("-")
STRATEGIES = ("sandblaster", "allreduce", "downpour", "hogwild", "hybrid")


@click.command()
@job_options
@scheduler_options
@click.option(
    "--workers",
    metavar="NUMBERS",
    type=Counts(),
    help="Numbers of workers: 1,2,4,8 or 1,...,1024 (doubling) [default: up to what the cluster has].",
)
@click.option("--bandwidth", metavar="RATE", type=BANDWIDTH, help="Predict for a host's network of, say, 1Gbit.")
@click.option(
    "--latency", metavar="TIME", type=LATENCY, help="Of a message on that network, say 50us; with --bandwidth."
)
@click.option("--cores", metavar="NUMBER", type=click.IntRange(1), help="Predict for hosts with so many cores.")
@click.option(
    "--workers-per-host", metavar="NUMBER", type=click.IntRange(1), help="At most [default: 1 with --bandwidth]."
)
@click.option(
    "--memory",
    metavar="SIZE",
    type=SIZE,
    help="Of a host, say 8GB [default: what is free; with --cores or --bandwidth any].",
)
@click.option(
    "--allow",
    metavar="KINDS",
    type=Names(("asynchronous", "codec")),
    default=(),
    help="Recommend these too: asynchronous,codec.",
)
@click.option(
    "--strategies",
    metavar="NAMES",
    type=Names(STRATEGIES),
    default=STRATEGIES,
    help=f"Only these of {','.join(STRATEGIES)}.",
)
@click.option(
    "--profile", "file", metavar="FILE", type=PATH, help="A profile [default: this cluster's, or measure it]."
)
@click.option("--no-data", is_flag=True, help="Open no data file: the job has the shapes of its samples.")
@click.option("--all", "every", is_flag=True, help="Show every candidate.")
@click.option(
    "--json", "as_json", metavar="FILE", type=OUTPUT, help="Write everything as JSON, to standard output with -."
)
@click.option("--out", metavar="FOLDER", type=PATH, help="Draw plan.png and plan.svg there.")
@reports_errors
def plan(
    job: Path,
    cluster: Path | None,
    overrides: tuple[str, ...],
    scheduler: str | None,
    scheduler_file: Path | None,
    file: Path | None,
    no_data: bool,
    every: bool,
    as_json: Path | None,
    out: Path | None,
    **wanted: Any,
) -> None:
    """Predict what ways to train JOB cost, and recommend one.

    Each strategy, topology, partition and codec is predicted from a profile of the machines, which is measured first
    if there is none (up to a minute). --bandwidth, --latency, --cores, --workers-per-host and --memory describe a
    cluster that need not be there.
    """
    loaded = load(job, overrides, cluster)
    with ExitStack() as stack:
        if scheduler is None and scheduler_file is None and file is None:
            fork_workers(stack)
        from singa_dask.supervision.plan import plan as make_plan

        client = connect(stack, scheduler, scheduler_file)
        made = make_plan(
            loaded,
            client,
            profile=None if file is None else _profile(file),
            with_data=not no_data,
            note=lambda text: click.echo(text, err=True),
            **wanted,
        )
    if as_json is not None:
        _write(as_json, made.to_json())
    if as_json != _STDOUT:
        _show(made, job, every)
    if out is not None:
        for picture in made.draw(out):
            click.echo(f"drawn: {picture}", err=as_json == _STDOUT)


def _show(made: Any, job: Path, every: bool) -> None:
    from singa_dask.monitor.plan_table import WIDTH, print_plan
    from singa_dask.output.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    print_plan(console, made.advice, made.given.name, every=every)
    click.echo(made.instructions(str(job)))


def _profile(file: Path) -> Any:
    from singa_dask.errors import ConfigError, Problem
    from singa_dask.planning.profile import Profile

    try:
        return Profile.from_json(read_text(file))
    except (OSError, UnicodeDecodeError) as error:
        hint, why = "`singa-dask profile` writes one.", getattr(error, "strerror", "it is not text")
        raise ConfigError(Problem("--profile", f"cannot be read ({why})", str(file), hint)) from error


def _write(where: Path, text: str) -> None:
    from singa_dask.errors import ConfigError, Problem

    if where == _STDOUT:
        click.echo(text)
        return
    try:
        write_whole(where, text + "\n")
    except OSError as error:
        raise ConfigError(Problem("--json", f"cannot be written ({error.strerror})", str(where))) from error
