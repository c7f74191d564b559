"""ResNet-20 on CIFAR-10 to the end, beside PyTorch: accuracy on the test images, and both curves.

make bench BENCH=resnet ARGS="--json resnet.json --curves resnet20.png"     # more than an hour on 2 cores

Ours is `singa-dask train examples/cifar10/resnet20.conf` with one worker. PyTorch eager trains the same net from the
same initial parameters with the same rule, rates and order of samples; crops and mirroring are drawn anew. Both run at
the same time with as many threads; benchmarks/step.py compares speed. With `--workspace FOLDER`, an interrupted
command goes on where it was.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from tools.contest import FOLDER, environment
from tools.jobs import plain_layers
from tools.report import begun, end, show
from tools.workloads import EXAMPLES

from singa_dask import load
from singa_dask.data import Manifest
from singa_dask.job import Job
from singa_dask.job.job_pb2 import JobProto, LayerType, Phase, StoreProto
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.training.feed import group_stream
from singa_dask.training.prepare import prepare
from singa_dask.updaters.schedules import learning_rate

JOB = EXAMPLES / "cifar10" / "resnet20.conf"
PUBLISHED = 0.9125  # He et al. 2016, table 6: 45,000 images, 64,000 steps
NAMES = ("singa_dask", "PyTorch eager")

Rows = list[dict[str, Any]]


def images_of(store: StoreProto) -> tuple[np.ndarray, np.ndarray]:
    """All images (N, H, W, C), normalised, and their labels (N,)."""
    images, labels = load(store.path)
    return (images - np.array(store.mean, np.float32)) / np.array(store.std, np.float32), labels


def plan_of(job: JobProto, threads: int, folder: Path) -> dict[str, Any]:
    """What the PyTorch program needs: images, order of samples, rates and initial parameters, in files."""
    net = Net(job.neuralnet, Phase.kTrain, Ops())
    net.initialise(job.seed)
    first, tested = (layer.store_conf for layer in job.neuralnet.layer if layer.HasField("store_conf"))
    shift = next(layer for layer in job.neuralnet.layer if layer.type == LayerType.kImagePreprocess)
    schedule = learning_rate(job.updater.learning_rate)
    stream = group_stream(job, first, Manifest.load(Path(first.path)), Phase.kTrain)
    arrays = {
        "order": np.stack([stream.batch(step) for step in range(job.train_steps)]),
        "rates": np.array([schedule.rate(step) for step in range(job.train_steps)]),
    }
    for name, store in (("train", first), ("test", tested)):
        arrays[name], arrays[f"{name}_labels"] = images_of(store)
    np.savez(folder / "images.npz", **arrays)
    layers = [layer for layer in plain_layers(net) if layer.kind != type(net.layers[shift.name]).__name__]
    (folder / "layers.pickle").write_bytes(pickle.dumps(layers))
    return {
        "images": str(folder / "images.npz"),
        "layers": str(folder / "layers.pickle"),
        "pad": shift.rgbimage_conf.pad,
        "seed": job.seed,
        "threads": threads,
        "momentum": job.updater.momentum,
        "weight_decay": job.updater.weight_decay,
        "every": job.disp_freq,
        "test_every": job.test_freq,
        "test_rows": tested.batchsize[0],
        "state": str(folder / "pytorch.pt"),
    }


def measure(steps: int, threads: int, folder: Path) -> dict[str, Rows]:
    """The rows of both curves, by trainer."""
    job = prepare(Job.from_file(JOB, [f"train_steps={steps}"]), phases=[Phase.kTest]).job
    plan = plan_of(job, threads, folder)
    curves = folder / "pytorch.jsonl"
    ours = ["-m", "singa_dask", "train", str(JOB), "--set", f"train_steps={steps}", "--workspace", str(folder / "run")]
    ours += ["--resume"] * any((folder / "run").glob("checkpoint/step-*.h5"))
    theirs = [str(FOLDER / "programs" / "resnet_torch.py"), json.dumps(plan)]
    with curves.open("w") as written:
        runs = [
            subprocess.Popen([sys.executable, *command], env=environment(threads), stdout=out)
            for command, out in ((ours, None), (theirs, written))
        ]
        try:
            codes = [run.wait() for run in runs]
        finally:
            for run in runs:
                run.terminate()
    if any(codes):
        raise SystemExit(f"The trainers ended with {codes}; see their messages above.")
    files = (folder / "run" / "metrics.jsonl", curves)
    return {
        name: [_point(json.loads(line)) for line in file.read_text().splitlines()]
        for name, file in zip(NAMES, files, strict=True)
    }


def _point(row: dict[str, Any]) -> dict[str, Any]:
    point = {key: row[key] for key in ("phase", "step")}
    return point | {key: round(row[key], 4) for key in ("loss", "accuracy")}


def draw(found: dict[str, Rows], picture: Path) -> None:
    """Loss of training and accuracy on the test images by step."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, rows in found.items():
        for axes, phase, value in ((left, "train", "loss"), (right, "test", "accuracy")):
            taken = [(row["step"], row[value]) for row in rows if row["phase"] == phase and row["step"]]
            axes.plot(*zip(*taken, strict=True), label=name, linewidth=1.2, marker="." if phase == "test" else "")
            axes.set(xlabel="step", ylabel=f"{phase} {value}")
    left.set_yscale("log")
    right.legend()
    figure.savefig(picture, dpi=120)


@click.command()
@click.option("--steps", default=12_000, show_default=True, help="Training steps; the rate falls at 6000 and 9000.")
@click.option("--threads", default=1, show_default=True, help="Of each trainer.")
@click.option("--workspace", type=click.Path(path_type=Path), help="Keep both runs in this folder, and resume them.")
@click.option("--curves", type=click.Path(path_type=Path), help="Draw both curves into this file.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(steps: int, threads: int, workspace: Path | None, curves: Path | None, out: Path | None) -> None:
    """Train ResNet-20 on CIFAR-10, beside PyTorch."""
    console, figures = Console(width=120), begun()
    with TemporaryDirectory() as temporary:
        folder = workspace or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = measure(steps, threads, folder)
    table = []
    for name, rows in found.items():
        tests = [row for row in rows if row["phase"] == "test"]
        last = [row for row in rows if row["phase"] == "train"][-1]
        table.append(
            {
                "trainer": name,
                "test_accuracy": round(tests[-1]["accuracy"], 4),
                "best_test_accuracy": round(max(row["accuracy"] for row in tests), 4),
                "train_loss": round(last["loss"], 4),
            }
        )
    figures |= {"steps": steps, "threads": threads, "resnet20": table, "curves": found}
    show(console, f"ResNet-20 on CIFAR-10, {steps} steps; published {PUBLISHED} with 64,000 steps", table)
    if curves:
        draw(found, curves)
    end(console, figures, out)


if __name__ == "__main__":
    main()
