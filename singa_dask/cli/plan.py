"""The command that predicts what ways to train a job will cost."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import OUTPUT, PATH, job_options, load, reports_errors
from singa_dask.cli.quantities import BANDWIDTH, LATENCY, SIZE, Counts, Names
from singa_dask.cli.scheduler import Scheduler, scheduler_options
from singa_dask.files import read_text, write_whole

_STDOUT = Path("-")
STRATEGIES = ("sandblaster", "allreduce", "downpour", "hogwild", "hybrid")


@click.command(
    cls=Documented,
    examples=[
        ("Predict for this machine:", "singa-dask plan job.conf"),
        (
            "Predict for a cluster that need not be there:",
            "singa-dask plan job.conf --workers 1,...,64 --cores 16 --bandwidth 25Gbit --latency 20us",
        ),
    ],
)
@job_options
@scheduler_options
@click.option(
    "--workers",
    metavar="NUMBERS",
    type=Counts(),
    help="Numbers of workers to try: 1,2,4,8 or 1,...,1024 (doubling) [default: up to what the cluster has].",
)
@click.option(
    "--bandwidth", metavar="RATE", type=BANDWIDTH, help="Bandwidth of the network of each host, for example 1Gbit."
)
@click.option(
    "--latency", metavar="TIME", type=LATENCY, help="With --bandwidth: latency of that network, for example 50us."
)
@click.option("--cores", metavar="NUMBER", type=click.IntRange(1), help="Number of cores of each host.")
@click.option(
    "--workers-per-host",
    metavar="NUMBER",
    type=click.IntRange(1),
    help="Most workers on a host [default: 1 with --bandwidth].",
)
@click.option(
    "--memory",
    metavar="SIZE",
    type=SIZE,
    help="Memory of each host, for example 8GB [default: what is free; no limit with --cores or --bandwidth].",
)
@click.option(
    "--allow",
    metavar="KINDS",
    type=Names(("asynchronous", "codec")),
    default=(),
    help="What else it may recommend: asynchronous, codec, or both with a comma.",
)
@click.option(
    "--strategies",
    metavar="NAMES",
    type=Names(STRATEGIES),
    default=STRATEGIES,
    show_default=False,
    help=f"Strategies to try, separated by commas [default: {','.join(STRATEGIES)}].",
)
@click.option(
    "--profile",
    "file",
    metavar="FILE",
    type=PATH,
    help="Profile that `singa-dask profile --json` wrote [default: the kept one, or measure].",
)
@click.option("--no-data", is_flag=True, help="Open no data file; the job must state the shapes of its samples.")
@click.option("--all", "every", is_flag=True, help="Show all candidates.")
@click.option(
    "--json", "as_json", metavar="FILE", type=OUTPUT, help="Also write the plan as JSON; - prints only that."
)
@click.option("--out", metavar="FOLDER", type=PATH, help="Folder in which to draw plan.png and plan.svg.")
@reports_errors
def plan(
    job: Path,
    cluster: Path | None,
    overrides: tuple[str, ...],
    scheduler: Scheduler,
    file: Path | None,
    no_data: bool,
    every: bool,
    as_json: Path | None,
    out: Path | None,
    **wanted: Any,
) -> None:
    """Predict the speed of each way to train a job.

    Each strategy, topology, partition and codec is predicted from a profile of the machines, which is measured first
    if there is none (up to a minute), and the best one is recommended. --bandwidth, --latency, --cores,
    --workers-per-host and --memory describe a cluster that need not be there.
    """
    loaded = load(job, overrides, cluster)
    with ExitStack() as stack:
        if file is None:
            scheduler.fork_workers(stack)
        from singa_dask.supervision.plan import plan as make_plan

        client = scheduler.connect(stack)
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
