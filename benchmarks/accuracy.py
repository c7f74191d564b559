"""Seconds from calling the command to a test accuracy of .98 on MNIST: 2 workers, against PyTorch's DDP.

make bench BENCH=accuracy                # or: python benchmarks/accuracy.py --repeats 5 --json accuracy.json

Ours is `singa-dask train examples/mnist/job.conf` with 2 workers of one thread, as on a second run: its kernels are in
the cache. PyTorch's is programs/accuracy_ddp.py, 2 processes of one thread: same net, rule, rates, mini-batch and
data, tested on all 10,000 images after as many steps. A repeat has another seed, from which our run draws its initial
parameters and mini-batches. PyTorch is given the same ones in files, because they decide how many steps a run needs,
350 to 600. They run one after the other, in either order by turns, and the clock runs from the start of a process to
the evaluation that reaches the target: it includes imports, forming the group and reading data.

    ratio = PyTorch's seconds / ours, median of the repeats
    ratio_same_steps = the same, to the evaluation at which the first of them has reached the target

The second is of speed alone: the accuracy goes up and down by more than it gains from one evaluation to the next, and
another order of the same sums is enough for 100 steps more or less.
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
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import torch
from programs.step_torch import torch_layers
from rich.console import Console
from tools.contest import FOLDER, environment
from tools.jobs import plain_layers
from tools.report import begun, end, show
from tools.workloads import EXAMPLES
from torch import nn

from singa_dask.data import Manifest, resolve
from singa_dask.job import load_job
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.training.feed import group_stream

JOB = EXAMPLES / "mnist" / "job.conf"
WORKERS = 2

Reached = dict[int, tuple[float, float]]  # seconds and accuracy at every evaluation, by its step; the last one is it


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
            tests = [row for row in rows if row["phase"] == "test"]
            if tests[-1]["accuracy"] >= target:
                process.send_signal(signal.SIGTERM)  # saves, and leaves
                process.communicate()
                return {row["step"]: (row["time"] - began, row["accuracy"]) for row in tests}
    raise SystemExit(f"singa_dask did not reach {target} in {steps} steps; see its messages above.")


def draws(job: JobProto, steps: int, folder: Path) -> dict[str, str]:
    """Files of what a run of the job draws: initial parameters, as PyTorch has them, and the samples of every step."""
    net = Net(job.neuralnet, Phase.kTrain, Ops())
    net.initialise(job.seed)
    model = nn.Sequential(*(module for layer in plain_layers(net) for module in torch_layers(layer)))
    store = next(layer.store_conf for layer in job.neuralnet.layer if layer.HasField("store_conf"))
    stream = group_stream(job, store, Manifest.load(resolve(store.path)), Phase.kTrain)
    files = {"initial": str(folder / f"initial-{job.seed}.pt"), "order": str(folder / f"order-{job.seed}.npy")}
    torch.save(model.state_dict(), files["initial"])
    np.save(files["order"], [stream.batch(step) for step in range(steps + 1)])
    return files


def ddp(seed: int, target: float, every: int, steps: int, folder: Path) -> Reached:
    """A run of programs/accuracy_ddp.py."""
    job = load_job(JOB)
    job.seed = seed
    train, test = (layer.store_conf for layer in job.neuralnet.layer if layer.HasField("store_conf"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    plan = {
        "size": WORKERS,
        "port": port,
        "steps": steps,
        "every": every,
        "target": target,
        "train": str(resolve(train.path)),
        "test": str(resolve(test.path)),
        "test_rows": test.batchsize[0] // WORKERS,
        "rate": job.updater.learning_rate.base_lr,
        "momentum": job.updater.momentum,
        "decay": job.updater.weight_decay,
        **draws(job, steps, folder),
    }
    program = [sys.executable, str(FOLDER / "programs" / "accuracy_ddp.py")]
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
        tests = [json.loads(line) for line in said.splitlines()]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    if tests[-1]["accuracy"] < target:
        raise SystemExit(f"PyTorch did not reach {target} in {steps} steps: {tests[-1]}")
    return {test["step"]: (test["time"] - began, test["accuracy"]) for test in tests}


def measure(target: float, every: int, steps: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A row per repeat, and one of medians."""
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        ours(0, 0.0, every, 1, Path(folder) / "warm-up")
        for number, seed in enumerate(seeds):
            runs = {
                "ours": lambda seed=seed: ours(seed, target, every, steps, Path(folder) / str(seed)),
                "ddp": lambda seed=seed: ddp(seed, target, every, steps, Path(folder)),
            }
            found = {name: runs[name]() for name in list(runs)[:: -1 if number % 2 else 1]}
            row: dict[str, Any] = {"seed": str(seed)}
            last = {name: max(tests) for name, tests in found.items()}
            for name in runs:
                seconds, accuracy = found[name][last[name]]
                row |= {
                    f"{name}_seconds": round(seconds, 2),
                    f"{name}_steps": last[name],
                    f"{name}_accuracy": accuracy,
                }
            for name, at in (("ratio", last), ("ratio_same_steps", dict.fromkeys(runs, min(last.values())))):
                row[name] = round(found["ddp"][at["ddp"]][0] / found["ours"][at["ours"]][0], 2)
            rows.append(row)
    medians = {key: round(statistics.median(row[key] for row in rows), 4) for key in rows[0] if key != "seed"}
    return [*rows, {"seed": "median", **medians}]


@click.command()
@click.option("--target", default=0.98, show_default=True, help="Test accuracy.")
@click.option("--every", default=50, show_default=True, help="Steps between two evaluations.")
@click.option("--steps", default=1000, show_default=True, help="After which a run has failed.")
@click.option("--repeats", default=3, show_default=True, help="Pairs of runs.")
@click.option("--seed", default=0, show_default=True, help="Of the first pair; every pair has the next one.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(target: float, every: int, steps: int, repeats: int, seed: int, out: Path | None) -> None:
    """Time to a test accuracy on MNIST, from a cold process, against PyTorch DDP."""
    console = Console(width=120)
    if len(os.sched_getaffinity(0)) < WORKERS:
        console.print(f"{WORKERS} workers share one core here")
    figures = begun()
    rows = figures["accuracy"] = measure(target, every, steps, range(seed, seed + repeats))
    show(console, f"seconds to a test accuracy of {target}, evaluated every {every} steps", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
