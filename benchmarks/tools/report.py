"""What the benchmarks print and write: tables of rows, the machine, and how busy it was."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
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
    facts = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = (line.partition(":") for line in facts.splitlines())
    cpu = {name.strip(): value.strip() for name, _, value in lines}
    name = cpu.get("model name", platform.processor() or platform.machine())
    return {
        "cpu": name + (f" (family {cpu['cpu family']}, model {cpu['model']})" if "cpu family" in cpu else ""),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit that is measured, with a + behind it if tracked files differ from it; empty outside a clone."""
    command = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--abbrev=8",
        "--exclude=*",
        "--dirty=+",
    ]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()


def begun(rounds: int | None = None) -> dict[str, Any]:
    """The head of a benchmark's figures: the machine, the day, the commit, the rounds of which medians are taken, and
    how busy the machine is before."""
    day, some = datetime.now(UTC).date().isoformat(), {} if rounds is None else {"rounds": rounds}
    return {"machine": machine(), "date": day, "commit": commit(), **some, "load_before": load()}


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
