"""Writing shards of compressed HDF5 and of Parquet on two workers, against the libraries alone.

make bench BENCH=shard                   # or: python benchmarks/shard.py --gb 2 --json shard.json

The data are made first: fields of float32 (3, 24, 24) with a target in an HDF5 file, chunked and compressed with gzip,
or 32 columns of float64 in Parquet, compressed with snappy. Both sides read from a warm page cache, write to the same
disk and flush. Programs take turns.

    shuffled     `write` of singa_dask in a Dask cluster of two worker processes that runs already: every sample is
                 read once, shuffled, hashed, and in the statistics
    in order     the same without a shuffle
    bare-1       h5py or pyarrow reads everything, block by block, and writes its bytes to one file, in one process
    bare-2       two processes, half of the blocks each
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
from rich.console import Console
from tools.report import begun, end, show

from singa_dask.cluster import local_cluster
from singa_dask.data.fetch import cache_dir
from singa_dask.data.ingest.write import write
from singa_dask.data.sources import hdf5, parquet

ROWS = 4096  # of a block of the bare readers
COLUMNS = 32


def make_hdf5(path: Path, nbytes: int) -> None:
    """Fields with few different values, which gzip halves or better."""
    rows = nbytes // (3 * 24 * 24 * 4)
    draw = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("data/X", (rows, 3, 24, 24), "f4", chunks=(64, 3, 24, 24), compression="gzip")
        y = file.create_dataset("data/y", (rows,), "f4")
        for start in range(0, rows, ROWS):
            part = draw.integers(0, 1000, (min(ROWS, rows - start), 3, 24, 24)).astype("f4") / 8
            x[start : start + len(part)] = part
            y[start : start + len(part)] = part.mean((1, 2, 3))


def make_parquet(path: Path, nbytes: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, draw = nbytes // (COLUMNS * 8), np.random.default_rng(0)
    names = [*(f"x{i}" for i in range(COLUMNS - 1)), "y"]
    with pq.ParquetWriter(path, pa.schema([(name, pa.float64()) for name in names])) as file:
        for start in range(0, rows, 1 << 17):
            count = min(1 << 17, rows - start)
            file.write_table(pa.table({name: draw.integers(0, 10_000, count) / 16 for name in names}))


def read_hdf5(path: Path, part: int, parts: int) -> Iterator[np.ndarray]:
    with h5py.File(path, "r") as file:
        x, y = file["data/X"], file["data/y"]
        starts = range(0, len(x), ROWS)
        for start in starts[len(starts) * part // parts : len(starts) * (part + 1) // parts]:
            yield x[start : start + ROWS]
            yield y[start : start + ROWS]


def read_parquet(path: Path, part: int, parts: int) -> Iterator[np.ndarray]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    groups = range(file.num_row_groups)
    for group in groups[len(groups) * part // parts : len(groups) * (part + 1) // parts]:
        for column in file.read_row_group(group, use_threads=False).columns:
            yield column.to_numpy()


READERS = {"hdf5": read_hdf5, "parquet": read_parquet}
MAKERS = {"hdf5": make_hdf5, "parquet": make_parquet}


def bare(kind: str, path: Path, out: Path, part: int, parts: int) -> None:
    """Read a part of the blocks and write its bytes."""
    import os

    with open(out / f"part-{part}", "wb", buffering=0) as file:
        for array in READERS[kind](path, part, parts):
            file.write(np.ascontiguousarray(array).data)
        os.fsync(file.fileno())


def source_of(kind: str, path: Path) -> Any:
    if kind == "hdf5":
        return hdf5.FORMAT.load(path, x="data/X", y="data/y")[""]
    return parquet.FORMAT.load(path, target="y")[""]


def measure(kind: str, path: Path, out: Path, rounds: int) -> list[dict[str, Any]]:
    """A row per way of ours. to_bare_N: the seconds of N processes of the library alone / ours."""
    seconds: dict[str, list[float]] = {}
    with local_cluster(2) as client, ProcessPoolExecutor(2) as pool:

        def alone(parts: int) -> None:
            out.mkdir()
            for future in [pool.submit(bare, kind, path, out, part, parts) for part in range(parts)]:
                future.result()

        def ours(shuffle: bool) -> None:
            write(source_of(kind, path), out, client=client, shuffle=shuffle, progress=False)

        ways: dict[str, Callable[[], None]] = {
            "bare-1": lambda: alone(1),
            "shuffled": lambda: ours(True),
            "bare-2": lambda: alone(2),
            "in order": lambda: ours(False),
        }
        for number in range(rounds + 1):  # the first one warms up
            for name, way in ways.items():
                shutil.rmtree(out, ignore_errors=True)
                began = time.perf_counter()
                way()
                if number:
                    seconds.setdefault(name, []).append(time.perf_counter() - began)
    shutil.rmtree(out)
    rows = []
    for name in ("shuffled", "in order"):
        row: dict[str, Any] = {"data": kind, "ours": name, "seconds": round(statistics.median(seconds[name]), 2)}
        for other in ("bare-1", "bare-2"):
            ratios = [theirs / mine for theirs, mine in zip(seconds[other], seconds[name], strict=True)]
            row |= {
                f"{other} s": round(statistics.median(seconds[other]), 2),
                f"to {other}": round(statistics.median(ratios), 2),
            }
        rows.append(row)
    return rows


@click.command()
@click.option("--data", "kinds", multiple=True, type=click.Choice(list(READERS)), default=list(READERS))
@click.option("--gb", default=2.0, show_default=True, help="Size of the samples.")
@click.option("--rounds", default=3, show_default=True, help="Rounds in which the programs take turns.")
@click.option("--json", "json_out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(kinds: tuple[str, ...], gb: float, rounds: int, json_out: Path | None) -> None:
    """Time the writing of shards."""
    folder = cache_dir() / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    figures = begun(rounds)
    figures["shard"] = []
    for kind in kinds:
        path = folder / f"{gb:g}.{kind}"
        if not path.exists():
            MAKERS[kind](path.with_suffix(".part"), int(gb * 1e9))
            path.with_suffix(".part").rename(path)
        figures["shard"] += measure(kind, path, folder / "out", rounds)
    console = Console(width=150)
    show(console, f"{gb:g} GB of samples; to X = the seconds of X / ours", figures["shard"])
    end(console, figures, json_out)


if __name__ == "__main__":
    main()
