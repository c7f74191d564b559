"""Seconds from calling `singa-dask train` to the end of the first training step, of a first run and of later ones.

make bench BENCH=startup                 # or: python benchmarks/startup.py --job mnist --json startup.json

A first run finds the cache of compiled kernels empty, a later one what the first has left there. The shards and all
files are there before either begins. A run makes one training step, after the evaluation with which the job begins;
`first_step_s` is taken from the time stamp of that step in the run's metrics.jsonl. The other marks are when the run's
own lines come, which say what begins:

    checked_s    the job is read and checked, and a Dask cluster is started
    cluster_s    it stands, and the workers become a group
    ready_s      all are connected and have their kernels, and training begins
    ended_s      the command is over, its record and curves written
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from tools.contest import UNSET
from tools.jobs import training_data
from tools.report import begun, end, show
from tools.workloads import EXAMPLES

JOBS = ("digits", "mnist")
MARKS = {"checked_s": "starting a local Dask cluster", "cluster_s": "forming ", "ready_s": " steps of "}
FIGURES = (*MARKS, "first_step_s", "ended_s")


def measure(job: str, workers: int, repeats: int) -> list[dict[str, Any]]:
    """Two rows: the first run, and the medians of the later ones."""
    training_data(job)
    with TemporaryDirectory() as folder:
        runs = [_run(job, workers, Path(folder) / "kernels", Path(folder) / str(n)) for n in range(1 + repeats)]
    rows = []
    for name, found in (("first", runs[:1]), ("later", runs[1:])):
        row: dict[str, Any] = {"job": job, "workers": workers, "run": name}
        row |= {figure: round(statistics.median(run[figure] for run in found), 2) for figure in FIGURES}
        rows.append({**row, "all_first_step_s": [round(run["first_step_s"], 2) for run in found]})
    return rows


def _run(job: str, workers: int, kernels: Path, workspace: Path) -> dict[str, float]:
    # Users keep their compiled modules.
    environment = {key: value for key, value in os.environ.items() if key not in (*UNSET, "PYTHONDONTWRITEBYTECODE")}
    settings = ["train_steps=1", "disp_freq=1", "checkpoint_freq=0"]
    settings += [f"cluster.{field}={workers}" for field in ("nworkers_per_group", "nservers_per_group")]
    command = [sys.executable, "-m", "singa_dask", "train", str(EXAMPLES / job / "job.conf")]
    command += ["--workspace", str(workspace), *(word for setting in settings for word in ("--set", setting))]
    marks = {}
    began = time.time()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**environment, "NUMBA_CACHE_DIR": str(kernels)}
    ) as process:
        for line in process.stdout or ():
            marks |= {name: time.time() - began for name, words in MARKS.items() if words in line}
    marks["ended_s"] = time.time() - began
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}; see its message above.")
    rows = map(json.loads, (workspace / "metrics.jsonl").read_text().splitlines())
    first = next(row for row in rows if row["phase"] == "train")
    return {**marks, "first_step_s": first["time"] - began}


@click.command()
@click.option("--job", "jobs", multiple=True, type=click.Choice(JOBS), default=JOBS, show_default=True)
@click.option("--workers", multiple=True, type=click.IntRange(1), default=[1, 2], show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Later runs.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(jobs: Sequence[str], workers: Sequence[int], repeats: int, out: Path | None) -> None:
    """Time the start of a run, with kernels to compile and with kernels in the cache."""
    console = Console(width=120)
    figures = begun()
    rows = figures["startup"] = [row for job in jobs for count in workers for row in measure(job, count, repeats)]
    show(console, "seconds since the command was called; later runs: medians", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
