"""The bytes that each codec saves and the accuracy that it costs: MNIST on three workers, once per codec.

    python examples/mnist/codecs.py                        # in the repository's root; plots runs/codecs/curves.png
    python examples/mnist/codecs.py --epochs 1 --codec kFull --codec kHalf

All runs have the same seed, mini-batches and learning rate. They differ only in the codec.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from singa_dask import Job, train

HERE = Path(__file__).parent
STEPS_PER_EPOCH = 312  # 192 of 60,000 images each
TESTS_PER_EPOCH = 2
CODECS = {
    "kFull": [],
    "kHalf": [],
    "kBFloat16": [],
    "kPartial": ["cluster.sparsity=0.3333"],
    "kTopK": ["cluster.sparsity=0.05"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--codec", action="append", choices=CODECS, help="default: all")
    parser.add_argument("--folder", type=Path, default=Path("runs/codecs"))
    args = parser.parse_args()
    curves = {name: run(name, args.epochs, args.folder / name) for name in args.codec or CODECS}
    draw(curves, args.folder / "curves.png")
    print(f"\n{'codec':12}{'MB sent':>9}   test accuracy after epoch 1, 2, ...")
    for name, curve in curves.items():
        per_epoch = [
            f"{value:.4f}" for epoch, value in curve["accuracy"].items() if epoch in range(1, args.epochs + 1)
        ]
        print(f"{name:12}{curve['mb']:9.1f}   {'  '.join(per_epoch)}")
    print(f"\n{args.folder / 'curves.png'}")


def run(codec: str, epochs: int, workspace: Path) -> dict[str, Any]:
    """Train with this codec. Returns mb, sent by one worker, and accuracy, on the test images by epoch."""
    settings = [
        f"train_steps={epochs * STEPS_PER_EPOCH}",
        f"test_freq={STEPS_PER_EPOCH // TESTS_PER_EPOCH}",
        "checkpoint_freq=0",
        f"cluster.codec={codec}",
        *CODECS[codec],
    ]
    job = Job.from_file(HERE / "job.conf", settings, cluster=HERE.parent / "clusters" / "allreduce.conf")
    summary = train(job, workspace=workspace).summary
    rows = map(json.loads, (workspace / "metrics.jsonl").read_text().splitlines())
    accuracy = {row["step"] / STEPS_PER_EPOCH: row["accuracy"] for row in rows if row["phase"] == "test"}
    return {"mb": summary["exchanged_bytes"] / 1e6 / job.proto.cluster.nworkers_per_group, "accuracy": accuracy}


def draw(curves: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Plot the test error over the epochs and over the data sent by a worker."""
    figure = Figure(figsize=(10.4, 3.8), layout="constrained")
    by_epoch, by_bytes = figure.subplots(1, 2, sharey=True)
    for name, curve in curves.items():
        epochs = [epoch for epoch in curve["accuracy"] if epoch > 0]
        errors = [100 * (1 - curve["accuracy"][epoch]) for epoch in epochs]
        by_epoch.plot(epochs, errors, marker="o", markersize=3, label=name)
        sent = [curve["mb"] * epoch / max(epochs) for epoch in epochs]
        by_bytes.plot(sent, errors, marker="o", markersize=3, label=name)
    by_epoch.set(xlabel="epoch", ylabel="test error, %", yscale="log")
    by_bytes.set(xlabel="MB that a worker has sent", xscale="log")
    by_epoch.yaxis.set_major_formatter("{x:g}")
    by_epoch.yaxis.set_minor_formatter("{x:g}")
    by_bytes.xaxis.set_major_formatter("{x:g}")
    for panel in (by_epoch, by_bytes):
        panel.grid(alpha=0.3, which="both")
    by_epoch.legend(frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
