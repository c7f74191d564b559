"""Program that is timed: the way of samples in one of WAYS, in one process without Dask. A step is one call.

shard-hdf5, shard-csv, shard-numpy   samples become shards, which are not flushed
loader                               mini-batches of shards of images
predict-numpy, predict-table         a net of three layers predicts an array, a table by its columns
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
from tools.contest import serve

from singa_dask import Model, layers, shard
from singa_dask.data import Loader, make_stream, shard_files
from singa_dask.job.job_pb2 import StoreProto

ROWS, COLUMNS = 20_000, 20
MINI_BATCHES = 50

Step = Callable[[], Any]


def samples(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Eighths, which are short texts."""
    x = np.random.default_rng(0).integers(-800, 800, (rows, COLUMNS)).astype(np.float32) / 8
    return x, x.sum(1)


def shard_hdf5(folder: Path) -> Step:
    with h5py.File(folder / "samples.h5", "w") as file:
        x, y = samples()
        file.create_dataset("x", data=x, chunks=(1000, COLUMNS), compression="gzip")
        file["y"] = y
    return lambda: shard_files("hdf5", folder / "out", source=folder / "samples.h5", overwrite=True)


def shard_csv(folder: Path) -> Step:
    x, y = samples()
    names = ",".join([*(f"x{i}" for i in range(COLUMNS)), "y"])
    np.savetxt(folder / "samples.csv", np.column_stack([x, y]), "%g", ",", header=names, comments="")
    options = {"source": folder / "samples.csv", "target": "y", "overwrite": True}
    return lambda: shard_files("csv", folder / "out", **options)


def shard_numpy(folder: Path) -> Step:
    x, y = samples()
    return lambda: shard(x, y, folder / "out", overwrite=True, durable=False)


def loader(folder: Path) -> Step:
    pixels = np.random.default_rng(0).integers(0, 255, (5000, 32, 32, 3)).astype(np.uint8)
    manifest = shard(pixels, np.arange(5000) % 10, folder / "out", shuffle=False)[""]
    store = StoreProto(path=str(folder / "out"), batchsize=[100], normalise=True)
    stream = make_stream(store, manifest, seed=0)

    def submit(function: Callable[..., Any], *arguments: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments))
        return future

    loader = Loader(stream, store, submit)

    def step() -> None:
        for _ in range(MINI_BATCHES):
            loader.next()

    return step


def _model() -> Model:
    net: list[Any] = [layers.RecordInput(shape=[COLUMNS])]
    for width in (64, 64, 10):
        net += [layers.InnerProduct(num_output=width), layers.ReLU()]
    return Model([*net[:-1], layers.SoftmaxLoss()], seed=1)


def predict_numpy(folder: Path) -> Step:
    model, (x, _) = _model(), samples()
    return lambda: model.predict(x)


def predict_table(folder: Path) -> Step:
    import pandas as pd

    model, table = _model(), pd.DataFrame(samples()[0], columns=[f"x{i}" for i in range(COLUMNS)])
    return lambda: model.predict(table)


WAYS = {
    f.__name__.replace("_", "-"): f for f in (shard_hdf5, shard_csv, shard_numpy, loader, predict_numpy, predict_table)
}


def main(way: str) -> None:
    with TemporaryDirectory() as folder:
        step = WAYS[way](Path(folder))
        step()
        serve(step, [])


if __name__ == "__main__":
    main(sys.argv[1])
