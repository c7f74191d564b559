"""How far each layer of a training step is from what one core of this machine can do at all.

make bench BENCH=limits                  # or: python benchmarks/limits.py --workload vgg --json limits.json

The peaks are measured (parts/peaks.py), the work that a pass cannot do without is counted (parts/counts.py), and the
passes are timed within real steps of one worker with one thread (parts/passes.py).

    arithmetic_ms    additions, multiplications and so on at the rate of the fastest product
    memory_ms        bytes at the rate at which the fastest of reading, copying and updating moves arrays: what the
                     pass before has made and what the next one needs at the rate of arrays as large as the pass's
                     own, which small ones have in a cache; parameters, their gradients and what is kept for the
                     backward pass at the rate of arrays as large as all that a step goes through
    limit_ms         the larger one of the two, as if each went on behind the other; of a step the sum over its passes
    share            limit_ms / ms

Whoever computes the same sums pass by pass is no faster than the limit; where a share is above 1, a cache held what is
counted as lost. Peaks are the best of several runs and times the lower quartile of the steps: both are what the
machine does while other programs leave it alone. Elementwise functions are far from their limit wherever a tanh or a
power, which counts as one operation or a few, is what takes the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from parts.peaks import Peaks
from rich.console import Console
from tools.contest import FOLDER, environment
from tools.report import begun, end, show
from tools.workloads import WORKLOADS

# Of the layers of these nets parts/counts.py has the work.
COUNTED = [name for name, of in WORKLOADS.items() if of.cell or name.startswith(("mlp", "mnist", "cifar10", "vgg"))]


def rows_of(name: str, timed: Mapping[str, Any], peaks: Peaks, least: float) -> list[dict[str, Any]]:
    """A row per pass of a layer, one for those that take less than `least` of the step, and one for the step."""
    step_ms, rows = timed["step_ms"], []
    for entry in timed["passes"]:
        near, far = entry["near"], entry["far"]
        arithmetic = entry["flop"] / peaks.product / 1e6
        memory = (near / peaks.moving(near + far) + far / peaks.moving(timed["held"])) / 1e6
        named = {"workload": name, "layer": entry["layer"], "pass": entry["pass"], "ms": entry["ms"]}
        work = {"gflop": entry["flop"] / 1e9, "mb": (near + far) / 1e6}
        limits = {"arithmetic_ms": arithmetic, "memory_ms": memory, "limit_ms": max(arithmetic, memory)}
        rows.append({**named, **work, **limits})
    large = [row for row in rows if row["ms"] >= least * step_ms]
    small = [row for row in rows if row["ms"] < least * step_ms]
    if small:
        large.append(_together({"workload": name, "layer": f"{len(small)} others", "pass": ""}, small))
    large.append(_together({"workload": name, "layer": "between layers", "pass": "", "ms": timed["between_ms"]}, []))
    large.append(_together({"workload": name, "layer": "", "pass": "step", "ms": step_ms}, rows))
    return [_rounded(row) for row in large]


def _together(named: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of rows; what `named` says comes first."""
    figures = ("ms", "gflop", "mb", "arithmetic_ms", "memory_ms", "limit_ms")
    return {**named, **{key: named.get(key, sum(row[key] for row in rows)) for key in figures}}


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    share = row["limit_ms"] / row["ms"] if row["ms"] > 0 else 0.0
    figures = {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
    return {**figures, "share": round(share, 2)}


def _run(program: str, *arguments: str) -> Any:
    """What a program of parts/ says, with one thread."""
    command = [sys.executable, str(FOLDER / "parts" / f"{program}.py"), *arguments]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment(1)).stdout)


@click.command()
@click.option("--workload", "workloads", multiple=True, type=click.Choice(COUNTED), help="Default: all.")
@click.option("--least", default=0.01, show_default=True, help="Share of a step below which a pass has no row.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(workloads: Iterable[str], least: float, out: Path | None) -> None:
    """Compare each layer's time with what its arithmetic and its bytes take at this machine's peaks."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    console = Console(width=120)
    figures = begun()
    peaks = Peaks(**_run("peaks"))
    timed = {name: _run("passes", name) for name in workloads or COUNTED}
    peaks = peaks.better(Peaks(**_run("peaks")))
    figures["product_gflops"] = {name: round(rate, 1) for name, rate in peaks.gflops.items()}
    figures["moving"] = [{"mb": round(size / 1e6, 1), "gbytes_per_s": round(rate, 1)} for size, rate in peaks.gbytes]
    show(console, "GFLOP/s", [figures["product_gflops"]])
    show(console, "arrays together", figures["moving"])
    figures["limits"] = []
    for name, of_workload in timed.items():
        rows = rows_of(name, of_workload, peaks, least)
        show(console, f"{name}, which goes through {of_workload['held'] / 1e6:.0f} MB a step", rows)
        figures["limits"] += rows
    end(console, figures, out)


if __name__ == "__main__":
    main()
