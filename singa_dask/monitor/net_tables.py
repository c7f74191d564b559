"""The nets of a prepared job as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from singa_dask.training.prepare import Prepared


def net_tables(prepared: Prepared) -> Iterator[Table]:
    """A table of the training net, and of each other phase whose layers differ."""
    shown: list[list[tuple[Any, ...]]] = []
    for phase, rows in prepared.layers.items():
        layers = [(row.layer, row.type, row.shape) for row in rows]
        if layers in shown:
            continue
        shown.append(layers)
        table = Table(title=f"{prepared.job.name}: {phase} net", title_justify="left", box=None, pad_edge=False)
        for column in ("layer", "type", "output", "parameters", "partition"):
            table.add_column(column, justify="right" if column == "parameters" else "left")
        for row in rows:
            table.add_row(
                row.layer,
                row.type,
                f"{row.steps} steps of {_shape(row.shape)}" if row.steps > 1 else _shape(row.shape),
                f"{row.parameters:,}" if row.parameters else "",
                row.partition,
            )
        table.add_row("", "", "", f"{prepared.parameters:,}", "", style="bold")
        yield table


def _shape(shape: Any) -> str:
    if shape and isinstance(shape[0], tuple):
        return ", ".join(map(_shape, shape))
    return " x ".join(map(str, shape)) or "scalar"
