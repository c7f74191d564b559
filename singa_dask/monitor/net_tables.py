"""The nets of a prepared job as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from singa_dask.monitor.traffic import Traffic
from singa_dask.net import LayerRow
from singa_dask.training.memory import format_nbytes
from singa_dask.training.prepare import Prepared


def net_tables(prepared: Prepared) -> Iterator[Table]:
    """A table of the training net, and of each other phase whose layers differ."""
    shown: list[list[tuple[Any, ...]]] = []
    for phase, rows in prepared.layers.items():
        layers = [(row.layer, row.type, row.shape) for row in rows]
        if layers in shown:
            continue
        shown.append(layers)
        traffic = Traffic.of(prepared, phase)
        sends = any(map(traffic.of_layer, rows))
        table = Table(title=f"{prepared.job.name}: {phase} net", title_justify="left", box=None, pad_edge=False)
        for column in ("layer", "type", "output", "parameters", "partition", *(["bytes sent"] if sends else [])):
            right = column in ("parameters", "bytes sent")
            table.add_column(column, justify="right" if right else "left", no_wrap=column == "partition")
        for row in rows:
            table.add_row(
                row.layer,
                row.type,
                format_output(row),
                f"{row.parameters:,}" if row.parameters else "",
                row.partition,
                *([_nbytes(traffic.of_layer(row))] if sends else []),
            )
        total = [_nbytes(sum(map(traffic.of_layer, rows)))] if sends else []
        table.add_row("", "", "", f"{prepared.parameters:,}", "", *total, style="bold")
        yield table


def format_output(row: LayerRow) -> str:
    """The shape of a layer's output, with the number of time steps if there are several."""
    return f"{row.steps} steps of {format_shape(row.shape)}" if row.steps > 1 else format_shape(row.shape)


def format_shape(shape: Any) -> str:
    """
    >>> format_shape((28, 28, 1))
    '28 x 28 x 1'
    """
    if shape and isinstance(shape[0], tuple):
        return ", ".join(map(format_shape, shape))
    return " x ".join(map(str, shape)) or "scalar"


def _nbytes(nbytes: int) -> str:
    return format_nbytes(nbytes) if nbytes else ""
