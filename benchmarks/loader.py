"""Samples per second of the loader on its own, against a bare reader of the same shards and PyTorch's DataLoader.

make bench BENCH=loader                  # or: python benchmarks/loader.py --data mnist --json loader.json
make bench BENCH=loader ARGS=--types     # every stored type, channels first and last, against the bare reader alone

Everybody shuffles, converts to float32 and normalises the training data of an example, in the example's mini-batches,
from a warm page cache, and nobody trains. Programs take turns.

    tasks           our loader as training uses it: tasks in a Dask worker load ahead in one thread
    plain           our loader in one thread, without Dask
    memmap          the bare reader: numpy.memmap at the offsets of the datasets, windows shuffled, then samples within
                    a window, in one thread (programs/loader_others.py)
    dataloader-N    torch.utils.data.DataLoader with N workers, h5py below it, a sample at a time
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from programs.loader_ours import STEP, WAYS
from rich.console import Console
from tools.contest import Program, contest, ratio
from tools.jobs import FIELDS, training_data
from tools.report import begun, end, show

DATA = ("mnist", "cifar10")
BARE = "memmap"
LOADERS = ("dataloader-0", "dataloader-2")
# The bare reader and our thread need a core each beside what they talk to; the DataLoader's workers need two.
CORES = 2


def measure(data: str, rounds: int) -> list[dict[str, Any]]:
    """A row per way of ours. to_memmap: our samples/s / those of the bare reader; to_dataloader_N: / PyTorch's."""
    training_data(data)  # makes the shards
    ours = {way: Program.start("loader_ours", [data, way], CORES) for way in WAYS}
    others = {name: Program.start("loader_others", [data, name], CORES) for name in _others(data)}
    contest([*ours.values(), *others.values()], rounds)
    samples = STEP * training_data(data).batchsize[0]
    rows = []
    for way, entry in ours.items():
        row: dict[str, Any] = {"data": data, "ours": way, "samples_per_s": _speed(entry, samples)}
        for name, other in others.items():
            row |= {f"{name}_per_s": _speed(other, samples), f"to_{name}": round(ratio(other, entry), 2)}
        rows.append(row)
    return rows


def _others(data: str) -> tuple[str, ...]:
    return (BARE,) if data in FIELDS else (BARE, *LOADERS)


def _speed(entry: Program, samples: int) -> int:
    return round(1e3 * samples / entry.median_ms)


@click.command()
@click.option("--data", "sets", multiple=True, type=click.Choice((*DATA, *FIELDS)), default=DATA, show_default=True)
@click.option("--types", is_flag=True, help="Every type that shards can hold, in place of the examples.")
@click.option("--rounds", default=9, show_default=True, help="Rounds in which the programs take turns.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(sets: Sequence[str], types: bool, rounds: int, out: Path | None) -> None:
    """Time the loader against a bare reader of the same shards and PyTorch's DataLoader."""
    console = Console(width=150)
    figures = begun(rounds)
    rows = figures["loader"] = [row for data in (FIELDS if types else sets) for row in measure(data, rounds)]
    show(console, "samples/s without training; to X = our samples/s / those of X", rows)
    end(console, figures, out)


if __name__ == "__main__":
    main()
