"""The rows of metrics.jsonl: metrics as flat columns, one row per measurement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_COLUMNS = ("group", "phase", "step", "time", "samples_per_s")
_PER_RANK = ("wait", "loading")
_NO_METRIC = re.compile(rf"{'|'.join(_COLUMNS)}|({'|'.join(_PER_RANK)})_rank\d+|server_.*")


def row_of(event: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a "metrics" event. A metric with the name of another column gets the prefix "metric_".

    >>> row_of({"kind": "metrics", "group": 0, "phase": "train", "step": 8, "metrics": {"loss": 0.5}, "wait": [0.1]})
    {'group': 0, 'phase': 'train', 'step': 8, 'loss': 0.5, 'wait_rank0': 0.1}
    """
    row = {name: event[name] for name in _COLUMNS if name in event}
    for name, value in event["metrics"].items():
        row[f"metric_{name}" if _NO_METRIC.fullmatch(name) else name] = value
    for name in _PER_RANK:
        row |= {f"{name}_rank{rank}": share for rank, share in enumerate(event.get(name, ()))}
    return row | {f"server_{name}": value for name, value in event.get("server", {}).items()}


def metrics_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics in a row."""
    return {name: value for name, value in row.items() if not _NO_METRIC.fullmatch(name)}
