"""Throughput of 1, 2 and 4 workers against as many processes of PyTorch's DistributedDataParallel (gloo), in turns.

make bench BENCH=scaling                 # or: python benchmarks/scaling.py --net mnist-cnn --json scaling.json

A worker has one thread and the net's whole mini-batch, so n workers take n mini-batches a step. Ours are an AllReduce
group that talks through shared memory. All groups stand side by side and take turns, so that a busy machine slows each
of them down; more workers than cores share the cores, on both sides.

    ratio = images/s of ours / images/s of DDP        efficiency of n = images/s of n / (n x images/s of 1)

Both are medians over the rounds, of what was measured in the same round.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from tools.groups import Group, ddp_group, our_group
from tools.report import begun, end, show
from tools.workloads import WORKLOADS

NETS = ("mnist-cnn", "mlp-64", "cifar10-cnn")
WORKERS = (1, 2, 4)
# DDP's ranks are told the same word for their only run.
RUN = "step"

Side = dict[int, list[float]]  # images/s by number of workers, one figure per round


def measure(net: str, workers: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """A row per number of workers."""
    counts = sorted({1, *workers})
    ours: Side = {count: [] for count in counts}
    ddp: Side = {count: [] for count in counts}
    with ExitStack() as stack:
        turns: list[tuple[Side, int, Group]] = []
        for count in counts:
            turns.append((ours, count, stack.enter_context(our_group(net, {RUN: {}}, size=count))))
            turns.append((ddp, count, stack.enter_context(ddp_group(net, count))))
        for _, _, group in turns:
            group.warm_up(RUN)
        for number in range(rounds):
            for found, count, group in turns[:: -1 if number % 2 else 1]:
                found[count].append(count * WORKLOADS[net].batch / group.run(RUN)["seconds"])
    return [_row(net, count, ours, ddp) for count in counts]


def _row(net: str, count: int, ours: Side, ddp: Side) -> dict[str, Any]:
    return {
        "net": net,
        "batch": WORKLOADS[net].batch,
        "workers": count,
        "images_per_s": round(statistics.median(ours[count])),
        "ddp_images_per_s": round(statistics.median(ddp[count])),
        "ratio": round(_paired(ours[count], ddp[count]), 2),
        "efficiency": round(_paired(ours[count], ours[1]) / count, 2),
        "ddp_efficiency": round(_paired(ddp[count], ddp[1]) / count, 2),
    }


def _paired(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


@click.command()
@click.option("--net", "nets", multiple=True, type=click.Choice(list(WORKLOADS)), default=NETS, show_default=True)
@click.option("--workers", multiple=True, type=click.IntRange(1), default=WORKERS, show_default=True)
@click.option("--rounds", default=9, show_default=True, help="Rounds in which the groups take turns.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(nets: tuple[str, ...], workers: tuple[int, ...], rounds: int, out: Path | None) -> None:
    """Time 1, 2 and 4 workers of one thread each against as many processes of PyTorch DDP."""
    console = Console(width=120)
    figures = begun(rounds)
    rows = figures["scaling"] = [row for net in nets for row in measure(net, workers, rounds)]
    show(console, "1 thread per worker, a whole mini-batch for each; ratio = ours / PyTorch DDP (gloo)", rows)
    cores = len(os.sched_getaffinity(0))
    if max(workers) > cores:
        console.print(f"{max(workers)} workers share {cores} cores here: their efficiency is at most {cores}/workers")
    end(console, figures, out)


if __name__ == "__main__":
    main()
