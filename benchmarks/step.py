"""Time per training step of one worker against PyTorch (CPU, eager), interleaved in one run.

make bench BENCH=step                    # or: python benchmarks/step.py --threads 1 --json step.json
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import click
from contest import Contestant, contest, ratio
from rich.console import Console
from rich.table import Table
from workloads import WORKLOADS

OURS, TORCH = "contestant_singa_dask", "contestant_torch"


def measure(workload: str, threads: int, rounds: int) -> dict:
    """One row: our median milliseconds and peak memory, PyTorch's, and the median of the paired ratios."""
    ours, torch = contest([OURS, TORCH], [workload, str(threads)], threads, rounds)
    return {
        "workload": workload,
        "threads": threads,
        "ms": round(1e3 * statistics.median(ours.seconds), 3),
        "peak_mb": round(ours.peak_mb, 1),
        "torch_ms": round(1e3 * statistics.median(torch.seconds), 3),
        "torch_peak_mb": round(torch.peak_mb, 1),
        "ratio_eager": round(ratio(torch, ours), 3),
        "loss_difference": _loss_difference(ours, torch),
    }


def _loss_difference(ours: Contestant, torch: Contestant) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(ours.first_losses, torch.first_losses, strict=True))


@click.command()
@click.option("--workload", "workloads", multiple=True, type=click.Choice(list(WORKLOADS)), help="Default: all.")
@click.option("--threads", multiple=True, type=int, default=[1], show_default=True)
@click.option("--rounds", default=9, show_default=True, help="Rounds in which the contestants take turns.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the rows to this file.")
def main(workloads: tuple[str, ...], threads: tuple[int, ...], rounds: int, out: Path | None) -> None:
    """Time a training step against PyTorch; ratio = PyTorch's time / ours (above 1: we are faster)."""
    table = Table(title="one training step, same initial parameters; ratio = PyTorch eager / singa_dask", box=None)
    for column in ("workload", "threads", "ms", "peak MB", "PyTorch ms", "PyTorch MB", "ratio", "loss difference"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    rows = []
    for count in threads:
        for workload in workloads or WORKLOADS:
            row = measure(workload, count, rounds)
            rows.append(row)
            table.add_row(*(f"{v:.2g}" if k == "loss_difference" else f"{v}" for k, v in row.items()))
    Console(width=120).print(table)
    if out:
        out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
