"""A training step of each net on the GPU: ours, and PyTorch eager without and with TF32, in one process.

All start from the same parameters, so their first losses are compared.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import cupy
from tools.jobs import job_of
from tools.workloads import LEARNING_RATE, WORKLOADS, data_of

from singa_dask.comm import SoloCommunicator
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

NETS = (
    *("mlp-64", "mnist-cnn", "cifar10-cnn", "resnet20-64", "transformer-12", "gru-512", "lstm-256", "vgg", "unet-16"),
    *("conv1d-64", "conv3d-8"),
)
FIRST, CHUNK, ROUNDS = 4, 5, 3
OURS, EAGER, TF32 = "ours", "PyTorch", "PyTorch with TF32"


def timed(step: Callable[[], float], synchronize: Callable[[], None], at_least_s: float) -> dict[str, Any]:
    """Milliseconds of a step: the median and the smallest mean of a few steps; and the first losses."""
    losses = [step() for _ in range(FIRST)]
    synchronize()
    means: list[float] = []
    ends = time.perf_counter() + at_least_s
    while time.perf_counter() < ends or len(means) < ROUNDS:
        began = time.perf_counter()
        for _ in range(CHUNK):
            step()
        synchronize()
        means.append(1e3 * (time.perf_counter() - began) / CHUNK)
    return {"ms": round(statistics.median(means), 4), "least_ms": round(min(means), 4), "losses": losses}


def step_of_ours(name: str) -> Callable[[], float]:
    """Makes a training step of a net; returns the loss."""
    workload, ops, number = WORKLOADS[name], get_ops("gpu"), 0
    features, labels = data_of(workload)
    replica = Replica.form(job_of(workload), SoloCommunicator(), ops, device_comm=SoloCommunicator())
    replica.group_state.initialise()
    batch = Batch(ops.asarray(features), None if workload.symbols else ops.asarray(labels))
    feed = {replica.net.input_layers[0]: batch}

    def step() -> float:
        nonlocal number
        metrics = replica.train_step(feed, Step(Phase.kTrain, number, total_rows=len(labels)))
        number += 1
        return metrics["loss"].mean

    return step


def ours(name: str, at_least_s: float) -> dict[str, Any]:
    return timed(step_of_ours(name), cupy.cuda.Device().synchronize, at_least_s)


def theirs(name: str, at_least_s: float, *, tf32: bool, device: str) -> dict[str, Any]:
    import torch  # the machine may have none
    from programs.step_torch import model_of, step_of

    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"PyTorch {torch.__version__} sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    model, x, y = (each.to(device) for each in model_of(WORKLOADS[name]))
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    return timed(step_of(model, x, y, LEARNING_RATE), synchronize, at_least_s)


def compared(name: str, at_least_s: float, device: str) -> dict[str, Any]:
    """One row. ratio: PyTorch's time / ours. loss_difference: the largest relative one of the first steps."""
    programs: Mapping[str, Callable[[], dict[str, Any]]] = {
        OURS: lambda: ours(name, at_least_s),
        EAGER: lambda: theirs(name, at_least_s, tf32=False, device=device),
        TF32: lambda: theirs(name, at_least_s, tf32=True, device=device),
    }
    row: dict[str, Any] = {"net": name}
    for who, run in programs.items():
        try:
            row[who] = run()
        except Exception as error:
            row[who] = {"absent": f"{type(error).__name__}: {error}"[:300]}
    for who, ratio in ((EAGER, "ratio"), (TF32, "ratio_tf32")):
        if "ms" in row[OURS] and "ms" in row[who]:
            row[ratio] = round(row[who]["ms"] / row[OURS]["ms"], 3)
    if "ratio" in row:
        pairs = zip(row[OURS]["losses"], row[EAGER]["losses"], strict=True)
        row["loss_difference"] = float(f"{max(abs(a - b) / abs(b) for a, b in pairs):.2g}")
    return row


def told(row: Mapping[str, Any]) -> str:
    """A row as a line of text."""
    if "skipped" in row:
        return f"{row['net']}: skipped, {row['skipped']}"
    parts = [
        f"{who} {row[who]['ms']} ms" if "ms" in row[who] else f"{who}: {row[who]['absent']}"
        for who in (OURS, EAGER, TF32)
    ]
    figures = [f"{key} {row[key]}" for key in ("ratio", "ratio_tf32", "loss_difference") if key in row]
    return f"{row['net']}: {'; '.join([*parts, *figures])}"


@click.command()
@click.option("--net", "nets", multiple=True, type=click.Choice(list(WORKLOADS)), help=f"[default: {', '.join(NETS)}]")
@click.option("--seconds", default=120.0, envvar="STAGE_LIMIT_S", help="In the last tenth of them no net begins.")
@click.option("--each", default=1.2, show_default=True, help="Seconds for each program of a net.")
@click.option("--torch-device", default="cuda", show_default=True, help="PyTorch's; cpu compares losses alone.")
@click.option("--json", "out", type=click.Path(path_type=Path), required=True, help="Write the rows to this file.")
def main(nets: Sequence[str], seconds: float, each: float, torch_device: str, out: Path) -> None:
    """Time a training step against PyTorch; ratio = its time / ours (above 1: we are faster)."""
    rows: list[dict[str, Any]] = []
    ends = time.monotonic() + 0.9 * seconds
    for name in nets or NETS:
        late = time.monotonic() > ends
        rows.append(
            {"net": name, "skipped": f"{seconds:g} s are over"} if late else compared(name, each, torch_device)
        )
        print(told(rows[-1]), flush=True)
        out.write_text(json.dumps(rows, indent=1) + "\n")
    if not any("ms" in row.get(OURS, {}) for row in rows):
        raise SystemExit("no net made a step")


if __name__ == "__main__":
    main()
