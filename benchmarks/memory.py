"""Samples that are larger than the memory of the workers: shards, training and predictions of files and Dask arrays.

make bench BENCH=memory                  # or: python benchmarks/memory.py --gb 4 --data csv --json memory.json

Two Dask workers have 600 MB each. The data are made first: 100 columns of float32 and a target, of which one is twice
the first column. Each step must end on these workers: `shard` (or `Regressor.fit` of a Dask array), `train` for 200
steps of 4,096 samples, and predictions of all samples. mb_*: the largest unique set size of a process meanwhile.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
import psutil
from rich.console import Console
from tools.report import begun, end, show

COLUMNS, BLOCK = 100, 50_000
LIMIT = "600MB"
NAMES = [f"x{i}" for i in range(COLUMNS)]


def block() -> tuple[np.ndarray, np.ndarray]:
    """Eighths, which are short texts."""
    x = np.random.default_rng(0).integers(-800, 800, (BLOCK, COLUMNS)).astype(np.float32) / 8
    return x, 2 * x[:, 0]


def make_hdf5(path: Path, blocks: int) -> None:
    x, y = block()
    with h5py.File(path, "w") as file:
        whole = file.create_dataset("x", (blocks * BLOCK, COLUMNS), "f4", chunks=(5000, COLUMNS))
        target = file.create_dataset("y", (blocks * BLOCK,), "f4")
        for start in range(0, blocks * BLOCK, BLOCK):
            whole[start : start + BLOCK], target[start : start + BLOCK] = x, y


def make_zarr(path: Path, blocks: int) -> None:
    import zarr

    x, y = block()
    group = zarr.open_group(path, mode="w")
    whole = group.create_array("x", shape=(blocks * BLOCK, COLUMNS), chunks=(5000, COLUMNS), dtype="f4")
    target = group.create_array("y", shape=(blocks * BLOCK,), chunks=(BLOCK,), dtype="f4")
    for start in range(0, blocks * BLOCK, BLOCK):
        whole[start : start + BLOCK], target[start : start + BLOCK] = x, y


def make_parquet(path: Path, blocks: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    x, y = block()
    table = pa.table({**dict(zip(NAMES, x.T, strict=True)), "y": y})
    with pq.ParquetWriter(path, table.schema) as file:
        for _ in range(blocks):
            file.write_table(table)


def make_csv(path: Path, blocks: int) -> None:
    """As many bytes as the others have."""
    import pandas as pd

    x, y = block()
    text = pd.DataFrame({**dict(zip(NAMES, x.T, strict=True)), "y": y}).to_csv(index=False, header=False).encode()
    with path.open("wb") as file:
        file.write(",".join([*NAMES, "y"]).encode() + b"\n")
        while file.tell() < blocks * x.nbytes:
            file.write(text)


MAKERS: dict[str, Callable[[Path, int], None]] = {
    "hdf5": make_hdf5,
    "zarr": make_zarr,
    "parquet": make_parquet,
    "csv": make_csv,
}
DASK = "dask"


class Watch(threading.Thread):
    """Watches the unique set size of this process and of those that it has started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[int, float] = {}
        self.start()

    def run(self) -> None:
        me = psutil.Process()
        while True:
            for process in (me, *me.children(recursive=True)):
                try:
                    size = process.memory_full_info().uss / 1e6
                except psutil.Error:
                    continue
                self.peaks[process.pid] = max(size, self.peaks.get(process.pid, 0.0))
            time.sleep(0.2)

    def taken(self) -> dict[str, int]:
        """The largest sizes since the last call."""
        peaks, self.peaks = self.peaks, {}
        driver = peaks.pop(os.getpid(), 0.0)
        return {"mb_driver": round(driver), "mb_worker": round(max(peaks.values(), default=0.0))}


def measure(kind: str, nbytes: int, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each step."""
    from distributed import Client, LocalCluster

    from singa_dask import Job, Regressor, layers, load_model, shard, train, updaters
    from singa_dask.data import shard_files
    from singa_dask.inference.run import predict_blocks
    from singa_dask.inference.sources import blocks_of

    blocks = max(1, nbytes // (BLOCK * COLUMNS * 4))
    source, watch = folder / f"samples.{kind}", Watch()
    with LocalCluster(2, threads_per_worker=1, memory_limit=LIMIT, dashboard_address=None) as cluster:  # type: ignore[no-untyped-call]
        client = Client(cluster)

        @contextmanager
        def step(name: str) -> Iterator[dict[str, Any]]:
            row: dict[str, Any] = {"data": kind, "step": name}
            began = time.perf_counter()
            watch.taken()
            yield row
            row |= {"seconds": round(time.perf_counter() - began, 1), **watch.taken()}

        if kind == DASK:
            import dask.array as da

            x = da.random.default_rng(0).normal(size=(blocks * BLOCK, COLUMNS), chunks=(20_000, COLUMNS)).astype("f4")
            y = 2 * x[:, 0]
            with step("shard") as row:
                shard(x, y, folder / "shards", client=client)
            yield row
            with step("fit") as row:
                fitted = Regressor(epochs=1, batch_size=4096, client=client, workspace=folder / "run").fit(x, y)
            yield row
            with step("predict") as row:
                fitted.predict(x).mean().compute()
            yield row
            return
        MAKERS[kind](source, blocks)
        columns = {"x": "x", "target": "y"} if kind in ("hdf5", "zarr") else {"target": "y"}
        with step("shard") as row:
            shard_files(kind, folder / "shards", source=source, client=client, **columns)
        yield row
        net = layers.RecordInput(path=str(folder / "shards"), batchsize=4096), layers.InnerProduct(num_output=1)
        job = Job(name="m", layers=[*net, layers.EuclideanLoss()], updater=updaters.SGD(lr=1e-5), train_steps=200)
        with step("train") as row:
            train(job, client, workspace=folder / "run", curves=False)
        yield row
        model = load_model(folder / "run")
        wanted = ("x",) if "x" in columns else ()
        with step("predict") as row:
            predict_blocks(model, blocks_of(model, str(source), wanted), folder / "predicted.h5", client)
        yield row


@click.command()
@click.option("--data", "kinds", multiple=True, type=click.Choice([*MAKERS, DASK]), default=[*MAKERS, DASK])
@click.option("--gb", default=4.0, show_default=True, help="Size of the samples; the disk needs four times as much.")
@click.option("--folder", default=".", type=click.Path(path_type=Path), help="For the samples and shards.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(kinds: tuple[str, ...], gb: float, folder: Path, out: Path | None) -> None:
    """Let samples pass that are larger than the memory of the workers."""
    figures = begun()
    figures["memory"] = []
    for kind in kinds:
        place = folder.absolute() / f"memory-{kind}"
        place.mkdir()
        try:
            figures["memory"] += measure(kind, int(gb * 1e9), place)
        finally:
            shutil.rmtree(place)
    show(Console(width=150), f"{gb:g} GB of samples, two workers of {LIMIT}", figures["memory"])
    end(Console(width=150), figures, out)


if __name__ == "__main__":
    main()
