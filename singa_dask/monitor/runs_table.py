"""Runs as tables: a list of them, and in what some differ."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from singa_dask.errors import ConfigError
from singa_dask.monitor.lines import format_metrics
from singa_dask.supervision.runs import Difference, RunRecord


def runs_table(runs: Sequence[RunRecord]) -> Table:
    """A row per run."""
    table = _table("run", "job", "strategy", "state", "steps", "samples/s", "began", "result")
    for run in runs:
        where = _relative(run.workspace.folder)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began))
        try:
            step, steps = run.steps
            phase, metrics = run.result
            rate = f"{run.samples_per_s:,.0f}" if run.samples_per_s else ""
            result = f"{phase} {format_metrics(metrics)}" if metrics else ""
            table.add_row(where, run.name, run.strategy, run.state, f"{step:,}/{steps:,}", rate, when, result)
        except ConfigError:
            table.add_row(where, "", "", "damaged", "", "", when, "its job.conf cannot be read")
    return table


def differences_table(names: Sequence[str], found: Sequence[Difference]) -> Table:
    """A row per value that differs, a column per run."""
    table = _table("", "", *names)
    last = ""
    for difference in found:
        cells = ["-" if value is None else value for value in difference.values]
        table.add_row("" if difference.kind == last else difference.kind, difference.key, *cells)
        last = difference.kind
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _relative(folder: Path) -> str:
    here = os.path.relpath(folder)
    return str(folder) if here.startswith("..") else here
