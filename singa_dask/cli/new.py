"""The command that writes a first job file."""

from __future__ import annotations

from pathlib import Path

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import PATH, reports_errors


@click.command(
    cls=Documented,
    examples=[
        ("From shards of your own:", "singa-dask new shards --out job.conf"),
        ("From a named data set:", "singa-dask new digits"),
    ],
)
@click.argument("shards")
@click.option(
    "--out",
    type=PATH,
    default=Path("job.conf"),
    show_default=True,
    help="The job file to write, which must not exist.",
)
@reports_errors
def new(shards: str, out: Path) -> None:
    """Write a first job file for a data set.

    The job has comments, and a net that suits the data. SHARDS is a folder of shards, a folder with train, validation
    and test in it, or a named data set such as digits.
    """
    from singa_dask.estimators.new import write_job

    job = write_job(shards, out, click.echo)
    click.echo(f"{out}: {job.proto.train_steps:,} steps. Look at it, then run `singa-dask train {out}`.")
