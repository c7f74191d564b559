"""Seconds from calling the command to a test accuracy of .98 on MNIST: 2 workers, against PyTorch's DDP.

make bench BENCH=accuracy                # or: python benchmarks/accuracy.py --repeats 5 --json accuracy.json

Ours is `singa-dask train examples/mnist/job.conf` with 2 workers of one thread, as on a second run: its kernels are in
the cache. PyTorch's is contestants/accuracy_ddp.py, 2 processes of one thread: same net, rule, rates, mini-batch and
data, tested on all 10,000 images after as many steps. Both draw initial parameters and mini-batches of their own; a
repeat has another seed. They run one after the other, in either order by turns, and the clock runs from the start of a
process to the evaluation that reaches the target: it includes imports, forming the group and reading data.

    ratio = PyTorch's seconds / ours, median of the repeats
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from tools.contest import FOLDER, environment
from tools.report import begun, end, show
from tools.workloads import EXAMPLES

from singa_dask.data import resolve
from singa_dask.job import load_job

JOB = EXAMPLES / "mnist" / "job.conf"
WORKERS = 2

Reached = dict[str, float]  # seconds, steps, accuracy


def ours(seed: int, target: float, every: int, steps: int, workspace: Path) -> Reached:
    """A run of the command, which is stopped once it has reached the target."""
    settings = {"seed": seed, "train_steps": steps, "test_freq": every, "checkpoint_freq": 0}
    settings |= {f"cluster.{field}": WORKERS for field in ("nworkers_per_group", "nservers_per_group")}
    command = [sys.executable, "-m", "singa_dask", "train", str(JOB), "--workspace", str(workspace)]
    command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    began = time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(1)) as process:
        for line in process.stdout or ():
            if " test " not in line:
                continue
            rows = map(json.loads, (workspace / "metrics.jsonl").read_text().splitlines())
            *_, last = (row for row in rows if row["phase"] == "test")
            if last["metrics"]["accuracy"] >= target:
                process.send_signal(signal.SIGTERM)  # saves, and leaves
                process.communicate()
                return _reached(last["time"] - began, last["step"], last["metrics"]["accuracy"])
    raise SystemExit(f"singa_dask did not reach {target} in {steps} steps; see its messages above.")


def ddp(seed: int, target: float, every: int, steps: int) -> Reached:
    """A run of contestants/accuracy_ddp.py."""
    job = load_job(JOB)
    train, test = (layer.store_conf for layer in job.neuralnet.layer if layer.HasField("store_conf"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    plan = {
        "size": WORKERS,
        "port": port,
        "seed": seed,
        "steps": steps,
        "every": every,
        "target": target,
        "train": str(resolve(train.path)),
        "test": str(resolve(test.path)),
        "batch": train.batchsize[0],
        "test_rows": test.batchsize[0] // WORKERS,
        "rate": job.updater.learning_rate.base_lr,
        "momentum": job.updater.momentum,
        "decay": job.updater.weight_decay,
    }
    program = [sys.executable, str(FOLDER / "contestants" / "accuracy_ddp.py")]
    began = time.time()
    ranks = [
        subprocess.Popen(
            [*program, json.dumps({**plan, "rank": rank})],
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(1), "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(WORKERS)
    ]
    try:
        said, _ = ranks[0].communicate()
        last = json.loads(said.splitlines()[-1])
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if last["accuracy"] < target:
        raise SystemExit(f"PyTorch did not reach {target} in {steps} steps: {last}")
    return _reached(last["time"] - began, last["step"], last["accuracy"])


def _reached(seconds: float, steps: int, accuracy: float) -> Reached:
    return {"seconds": round(seconds, 2), "steps": steps, "accuracy": accuracy}


def measure(target: float, every: int, steps: int, repeats: int) -> list[dict[str, Any]]:
    """A row per repeat, and one of medians."""
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        ours(0, 0.0, every, 1, Path(folder) / "warm-up")
        for seed in range(repeats):
            runs = {
                "ours": lambda seed=seed: ours(seed, target, every, steps, Path(folder) / str(seed)),
                "ddp": lambda seed=seed: ddp(seed, target, every, steps),
            }
            found = {name: runs[name]() for name in list(runs)[:: -1 if seed % 2 else 1]}
            row: dict[str, Any] = {"seed": str(seed)}
            for name in runs:
                row |= {f"{name}_{key}": value for key, value in found[name].items()}
            rows.append({**row, "ratio": round(found["ddp"]["seconds"] / found["ours"]["seconds"], 2)})
    medians = {key: round(statistics.median(row[key] for row in rows), 4) for key in rows[0] if key != "seed"}
    return [*rows, {"seed": "median", **medians}]


@click.command()
@click.option("--target", default=0.98, show_default=True, help="Test accuracy.")
@click.option("--every", default=50, show_default=True, help="Steps between two evaluations.")
@click.option("--steps", default=1000, show_default=True, help="After which a run has failed.")
@click.option("--repeats", default=3, show_default=True, help="Pairs of runs.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(target: float, every: int, steps: int, repeats: int, out: Path | None) -> None:
    """Time to a test accuracy on MNIST, from a cold process, against PyTorch DDP."""
    console = Console(width=120)
    if len(os.sched_getaffinity(0)) < WORKERS:
        console.print(f"{WORKERS} workers share one core here")
    figures = begun()
    rows = figures["accuracy"] = measure(target, every, steps, repeats)
    show(console, f"seconds to a test accuracy of {target}, evaluated every {every} steps", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
