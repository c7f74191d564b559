"""The commands that look at the records of runs: runs, compare, why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import OUTPUT, PATH, RUN, RunFolder, reports_errors

if TYPE_CHECKING:
    from rich.table import Table

    from singa_dask.supervision.runs import RunRecord

_WIDTH = 160


@click.command(
    cls=Documented,
    examples=[
        ("List the runs in runs/:", "singa-dask runs"),
        ("List those in another folder:", "singa-dask runs /scratch/experiments"),
    ],
)
@click.argument("folder", type=PATH, default=Path("runs"))
@reports_errors
def runs(folder: Path) -> None:
    """List runs with their states and results.

    FOLDER holds the folders of runs [default: runs]. The oldest run comes first. A run is running, completed,
    interrupted, failed, or lost if its driver was killed: `attach` and `train --resume` continue a lost run.
    """
    from singa_dask.monitor.runs_table import runs_table
    from singa_dask.supervision.runs import runs_in

    found = runs_in(folder)
    if not found:
        click.echo(f"There are no runs in {folder}.")
        return
    _print(runs_table(found))
    _warn(found)


@click.command(
    cls=Documented,
    examples=[
        ("Compare two strategies:", "singa-dask compare digits-allreduce digits-downpour"),
        ("Compare three runs in an SVG picture:", "singa-dask compare first second third --out curves.svg"),
    ],
)
@click.argument("names", metavar="RUN RUN...", nargs=-1, required=True, type=RunFolder())
@click.option("--out", type=OUTPUT, default=Path("compare.png"), help="PNG or SVG picture of the curves.")
@reports_errors
def compare(names: tuple[str, ...], out: Path) -> None:
    """Compare the curves, jobs, data and results of runs.

    The curves of all runs are drawn in one picture. Printed are the values that differ: fields of the job, data,
    versions and results. RUN is the folder of a run, or its name in runs/.
    """
    from singa_dask.monitor.curves import draw_comparison
    from singa_dask.monitor.figures import check_format
    from singa_dask.monitor.runs_table import differences_table
    from singa_dask.supervision.runs import RunRecord, differences
    from singa_dask.training.workspace import Workspace

    if len(names) < 2:
        raise click.UsageError("Give two runs or more to compare.")
    check_format(out)
    found = [RunRecord(Workspace.of(name)) for name in names]
    rows = dict(zip(names, (run.rows for run in found), strict=True))
    if len(rows) < len(names):
        raise click.UsageError(f"A run is given twice: {', '.join(names)}.")
    differing = differences(found)
    if differing:
        _print(differences_table(names, differing))
    else:
        click.echo("These runs have the same job, data, versions and results.")
    drawn = draw_comparison(rows, out)
    click.echo(f"drawn: {out}" if drawn else "No curves are drawn: the runs have no metrics yet.")
    _warn(found)


@click.command(
    cls=Documented,
    examples=[("Ask what limits a run:", "singa-dask why digits-allreduce")],
)
@RUN
@reports_errors
def why(run: str) -> None:
    """Say what limits the speed of a run, and what to change.

    The record of the run tells where the time of its workers went: start-up, evaluations, checkpoints, loading, shared
    cores, a slow worker, the network, small steps, servers, staleness. RUN is the folder of the run, or its name in
    runs/. An active run is judged by its metrics so far.
    """
    from singa_dask.errors import ConfigError, Problem
    from singa_dask.supervision.runs import RunRecord
    from singa_dask.supervision.why import summary_so_far, verdict
    from singa_dask.training.workspace import Workspace

    record = RunRecord(Workspace.of(run))
    _warn([record])
    told = record.summary or summary_so_far(record.rows)
    if not told["groups"]:
        hint = "Wait until it has trained disp_freq steps."
        raise ConfigError(Problem("RUN", f"{record.workspace.folder} has no metrics of training yet", hint=hint))
    click.echo(verdict(told, record.job.proto))


def _print(table: Table) -> None:
    from singa_dask.output.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)


def _warn(found: list[RunRecord]) -> None:
    for run in found:
        for fault in run.faults:
            click.echo(f"{fault}.", err=True)
