"""The command that says which mini-batches' gradients the parameters of a run contain."""

from __future__ import annotations

import sys

import click

from singa_dask.cli.documented import Documented
from singa_dask.cli.options import RUN, reports_errors


@click.command(
    cls=Documented,
    examples=[("Audit a run in which workers were lost:", "singa-dask audit runs/digits-downpour")],
)
@RUN
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON.")
@reports_errors
def audit(run: str, as_json: bool) -> None:
    """Verify that each gradient of a run was applied once.

    After workers or servers were lost, it tells whether the newest parameters contain the gradient of each mini-batch
    that was trained: which are contained, applied twice, or missing, and why. RUN is the folder of the run, or its
    name in runs/. Exits with 1 if a gradient was applied twice, or is missing without a reason.
    """
    from singa_dask.supervision.audit import audit as make_audit

    made = make_audit(run)
    if as_json:
        click.echo(made.to_json())
    else:
        from singa_dask.monitor.audit_table import print_audit
        from singa_dask.output.console import Console

        console = Console()
        print_audit(console if console.is_terminal else Console(width=119), made)
    if not made.clean:
        sys.exit(1)
