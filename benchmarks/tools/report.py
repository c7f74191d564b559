"""What the benchmarks print and write: tables of rows, the machine, and how busy it was."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def write(out: Path | None, rows: Any) -> None:
    """Write rows to the file of --json, where there is one."""
    if out:
        out.write_text(json.dumps(rows, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def begun() -> dict[str, Any]:
    """The head of a benchmark's figures: the machine, and how busy it is before."""
    return {"machine": machine(), "load_before": load()}


def end(console: Console, figures: dict[str, Any], out: Path | None) -> None:
    """The end of them: how busy the machine is now; and the file of --json, where there is one."""
    figures["load_after"] = load()
    console.print(f"load of the machine: {figures['load_before']} before, {figures['load_after']} after")
    write(out, figures)


def show(console: Console, title: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows of figures; lists and dictionaries stay out."""
    table = Table(title=title, box=None)
    for row in rows:
        shown = {name: value for name, value in row.items() if not isinstance(value, list | dict)}
        if not table.columns:
            for name, value in shown.items():
                table.add_column(name.replace("_", " "), justify="left" if isinstance(value, str) else "right")
        table.add_row(*map(str, shown.values()))
    console.print(table)


def load() -> float:
    """How many processes have run on the machine in the last minute."""
    return round(os.getloadavg()[0], 1)
