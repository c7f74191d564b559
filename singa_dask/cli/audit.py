"""The command that says which mini-batches' gradients the parameters of a run contain."""

from __future__ import annotations

import sys

import click

from singa_dask.cli.options import reports_errors


@click.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@reports_errors
def audit(run: str, as_json: bool) -> None:
    """Compare what RUN has trained with what its parameters contain.

    RUN is the workspace of a run, or its name in runs/. Exits with 1 if a gradient is contained more than once, or
    missing without a reason.
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
