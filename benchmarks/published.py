"""A published result, nanoGPT's on a CPU: validation loss and seconds, against PyTorch eager.

make bench BENCH=published               # or: python benchmarks/published.py --json published.json

The job is examples/char-gpt. Both train the same net from the same initial parameters, on the same mini-batches in
memory and by the same rule, with as many threads. They take turns of 1 / 20 of the steps, so that other load on the
machine meets both. Each then computes the loss of the validation text.

    ratio = PyTorch's time per step / ours, median of the turns
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from rich.console import Console
from tools.contest import Program, contest, ratio
from tools.report import begun, end, show
from tools.workloads import EXAMPLES

from singa_dask.data import Manifest
from singa_dask.data.shards import ShardFolder
from singa_dask.job import Job, runs_in
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.job.stores import store_of
from singa_dask.net import Net
from singa_dask.ops import Ops
from singa_dask.training.feed import group_stream
from singa_dask.training.prepare import prepare
from singa_dask.updaters.schedules import learning_rate

JOB = EXAMPLES / "char-gpt" / "job.conf"
PUBLISHED = 1.88  # validation loss in nanoGPT's README
TURNS = 20
WINDOWS = ("loader", "random")


def mini_batches(job: JobProto, phase: int, count: int, windows: str = "loader") -> np.ndarray:
    """The first `count` mini-batches of symbols: (count, B, T + 1).

    windows: "loader", as singa-dask reads them: a row continues that of the mini-batch before. "random", as nanoGPT
    does: a row begins anywhere.
    """
    (data,) = (layer for layer in job.neuralnet.layer if layer.name == "data" and runs_in(layer, phase))
    manifest = Manifest.load(Path(store_of(data).path))
    shards, name = ShardFolder(manifest), manifest.features.name
    text = np.concatenate([shards.reader(i).column(name)[:, 0] for i in range(len(manifest.shards))])
    stream = group_stream(job, store_of(data), manifest, phase)
    places = np.stack([stream.batch(step) for step in range(count)])
    if windows == "random":
        length = places.shape[2]
        starts = np.random.default_rng(job.seed).integers(0, len(text) - length + 1, (*places.shape[:2], 1))
        places = starts + np.arange(length)
    return text[places].astype(np.int64)


def plan_of(job: JobProto, steps: int, folder: Path, windows: str = "loader") -> dict[str, Any]:
    """What a program needs: the job, its mini-batches, its initial parameters and its rates, in files."""
    net = Net(job.neuralnet, Phase.kTrain, Ops())
    net.initialise(job.seed)
    schedule, rule = learning_rate(job.updater.learning_rate), job.updater
    files = {name: str(folder / f"{name}.npy") for name in ("train", "validation", "rates")}
    np.save(files["rates"], [schedule.rate(step) for step in range(steps)])
    np.save(files["train"], mini_batches(job, Phase.kTrain, steps, windows))
    np.save(files["validation"], mini_batches(job, Phase.kVal, job.validate_steps))
    files |= {"job": str(folder / "job.pb"), "initial": str(folder / "initial.npz")}
    Path(files["job"]).write_bytes(job.SerializeToString())
    np.savez(files["initial"], **{param.name: param.value for param in net.params})
    heads = next(x.attention_conf.num_heads for x in job.neuralnet.layer if x.HasField("attention_conf"))
    return {
        **files,
        "heads": heads,
        "betas": [rule.adamw_conf.beta1, rule.adamw_conf.beta2],
        "weight_decay": rule.weight_decay,
        # Ours is the gradient of the loss summed over the characters, PyTorch's of the mean.
        "clip_norm": rule.clip_norm / job.neuralnet.unroll_len,
        "epsilon": rule.delta / job.neuralnet.unroll_len,
    }


def measure(steps: int, threads: int, windows: str) -> list[dict[str, Any]]:
    """A row per program, ours first."""
    job = prepare(Job.from_file(JOB), phases=[Phase.kVal]).job
    with TemporaryDirectory() as folder:
        plan = json.dumps(plan_of(job, steps, Path(folder), windows) | {"threads": threads})
        ours, torch = (Program.start(program, [plan], threads) for program in ("gpt_ours", "gpt_torch"))
        contest([ours, torch], TURNS, steps)
    entrants = [("singa_dask", ours), ("PyTorch eager", torch)]
    return [
        {
            "trainer": name,
            "windows": windows,
            "threads": threads,
            "steps": steps,
            "validation_loss": round(entry.result["loss"], 4),
            "seconds": round(entry.median_ms * steps / 1e3, 1),
            "ms_per_step": round(entry.median_ms, 2),
            "ratio": round(ratio(torch, entry), 2),
            "peak_mb": round(entry.peak_mb),
            "largest_difference_first_losses": float(
                f"{max(abs(a - b) / b for a, b in zip(entry.first_losses, torch.first_losses, strict=True)):.1g}"
            ),
        }
        for name, entry in entrants
    ]


@click.command()
@click.option("--steps", default=2000, show_default=True, help="Training steps; nanoGPT's README has 2000.")
@click.option("--threads", multiple=True, type=int, default=[1], show_default=True)
@click.option("--windows", multiple=True, type=click.Choice(WINDOWS), default=WINDOWS, help="Default: both.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(steps: int, threads: tuple[int, ...], windows: tuple[str, ...], out: Path | None) -> None:
    """Train nanoGPT's net for CPUs on tinyshakespeare, beside PyTorch."""
    if max(threads) > len(os.sched_getaffinity(0)):
        raise click.UsageError(f"{max(threads)} threads need as many cores; there are {len(os.sched_getaffinity(0))}")
    console, figures = Console(width=150), begun()
    figures["published_validation_loss"] = PUBLISHED
    rows = figures["char-gpt"] = [row for count in threads for kind in windows for row in measure(steps, count, kind)]
    show(console, f"nanoGPT on tinyshakespeare, {steps} steps; published validation loss {PUBLISHED}", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
