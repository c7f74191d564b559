"""A training step inside a real `singa-dask train` run against the bare step of the `step` benchmark, in turns.

make bench BENCH=inside                  # or: python benchmarks/inside.py --workload mnist-cnn --json inside.json

Inside a run Dask tasks read, shuffle and normalise the example's own samples ahead, figures are summed and shown, and
a watchdog looks on; the bare step has one mini-batch in memory and nothing else to do. Both are one worker with one
thread, the same net, rule and mini-batch size. A run's step is the median of its displays without the first.

    ratio = a step inside / the bare step, measured before and after the run; median of the repeats
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from tools.contest import Program, environment
from tools.jobs import job_of, training_data
from tools.report import begun, end, show
from tools.workloads import WORKLOADS, Workload

from singa_dask.job import job_to_text

NETS = ("mnist-cnn", "cifar10-cnn", "mlp-64")
DISPLAYS = 9


def inside(workload: Workload, steps: int, folder: Path) -> dict[str, float]:
    """A run of the command: milliseconds of a step, and the share of the time in which it waited for data."""
    job = job_of(workload)
    for layer in job.neuralnet.layer:
        if layer.HasField("store_conf"):
            layer.store_conf.batchsize[:] = [workload.batch]
    job.train_steps, job.disp_freq = steps * DISPLAYS, steps
    for field in ("test_freq", "validate_freq", "checkpoint_freq", "cluster"):
        job.ClearField(field)
    job.num_openblas_threads = 1
    folder.mkdir()
    (folder / "job.conf").write_text(job_to_text(job))
    command = [
        sys.executable,
        "-m",
        "singa_dask",
        "train",
        str(folder / "job.conf"),
        "--workspace",
        str(folder / "run"),
    ]
    subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment(1))
    rows = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    shown = [row for row in rows if row["phase"] == "train"][1:]
    return {
        "ms": statistics.median(1e3 * workload.batch / row["samples_per_s"] for row in shown),
        "loading": statistics.median(row["loading_rank0"] for row in shown),
    }


def measure(name: str, repeats: int) -> dict[str, Any]:
    """One row."""
    workload = WORKLOADS[name]
    training_data(workload.example)
    bare = Program.start("step_ours", [name, "1"], 1)
    bare.play()
    steps = max(5, round(2000 / bare.median_ms))
    runs, ratios = [], []
    with TemporaryDirectory() as folder:
        for number in range(repeats):
            bare.play()
            runs.append(inside(workload, steps, Path(folder) / str(number)))
            bare.play()
            ratios.append(runs[-1]["ms"] / (1e3 * statistics.mean(bare.seconds[-2:])))
    bare.end()
    return {
        "workload": name,
        "bare_ms": round(bare.median_ms, 2),
        "inside_ms": round(statistics.median(run["ms"] for run in runs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "waits_for_data": f"{statistics.median(run['loading'] for run in runs):.2%}",
        "all_ratios": [round(each, 3) for each in ratios],
    }


@click.command()
@click.option("--workload", "names", multiple=True, type=click.Choice(NETS), default=NETS, show_default=True)
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Runs of each.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(names: tuple[str, ...], repeats: int, out: Path | None) -> None:
    """Time a training step inside a real run against the bare step."""
    console = Console(width=120)
    figures = begun()
    rows = figures["inside"] = [measure(name, repeats) for name in names]
    show(console, "one worker, one thread; ratio = a step inside a run / the bare step", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
