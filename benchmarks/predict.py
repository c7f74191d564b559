"""Seconds to predict a Dask array lazily, against calls of the net on NumPy blocks and a PyTorch module.

make bench BENCH=predict                 # or: python benchmarks/predict.py --json predict.json

A net of three layers predicts an array of 1 million samples of 30 features, whose blocks lie in the memory of the
workers, two processes with a core each. Everybody leaves the predictions there. Programs take turns.

    lazy      Model.predict of the Dask array, from the call on: the model is pickled, sent and unpickled every time
    calls     the same net called on the NumPy blocks in the workers, by one task per block (Client.map)
    bare      the same net called on NumPy blocks in the workers, without Dask: timed inside, no task per block
    torch     dask.array.map_blocks over a PyTorch module with the same layers and parameters

client_mb is the growth of the client's memory during all rounds of `lazy`.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from rich.console import Console
from tools.report import begun, end, show

WORKERS = 2
WIDTHS = (30, 64, 64, 10)


def model() -> Any:
    """The net, with its initial parameters."""
    from singa_dask import Model, layers

    net: list[Any] = [layers.RecordInput(shape=[WIDTHS[0]])]
    for width in WIDTHS[1:]:
        net += [layers.InnerProduct(num_output=width), layers.ReLU()]
    return Model([*net[:-1], layers.SoftmaxLoss()], seed=1)


def module(state: Mapping[str, np.ndarray]) -> Any:
    """The same net in PyTorch. state: of `model`."""
    import torch

    layers: list[Any] = []
    arrays = iter(state.values())
    for wide, narrow in pairwise(WIDTHS):
        layer = torch.nn.Linear(wide, narrow)
        for _ in range(2):
            array = torch.from_numpy(next(arrays))
            (layer.weight if array.ndim == 2 else layer.bias).data = array.T if array.ndim == 2 else array
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1], torch.nn.Softmax(dim=1)).eval()


def torch_block(block: np.ndarray, net: Any) -> np.ndarray:
    import torch

    torch.set_num_threads(1)
    with torch.inference_mode():
        return net(torch.from_numpy(block)).numpy()


def call_block(block: np.ndarray, net: Any) -> np.ndarray:
    return net.predict(block)


def call_blocks(pickled: bytes, rows: int, blocks: int, dask_worker: Any) -> float:
    """On a worker: the seconds that the calls take."""
    import pickle

    if not hasattr(dask_worker, "benchmark"):
        made = np.random.default_rng(0).normal(size=(rows, WIDTHS[0])).astype(np.float32)
        dask_worker.benchmark = pickle.loads(pickled), [made.copy() for _ in range(blocks)]
        dask_worker.benchmark[0].predict(made)
    net, arrays = dask_worker.benchmark
    begun = time.perf_counter()
    kept = [net.predict(array) for array in arrays]
    seconds = time.perf_counter() - begun
    del kept
    return seconds


def measure(rows: int, blocks: int, rounds: int) -> dict[str, Any]:
    """The figures: medians of seconds, and of the ratios of each round."""
    import pickle

    import dask.array as da
    from dask import delayed
    from distributed import futures_of, wait

    from singa_dask.cluster import local_cluster

    with local_cluster(WORKERS, cores_per_worker=1) as client:
        net = model()
        net.predict(np.zeros((1, WIDTHS[0]), np.float32))
        torch_net = module(net.state_dict())
        x = da.random.default_rng(0).normal(size=(rows, WIDTHS[0]), chunks=(rows // blocks, -1)).astype(np.float32)
        x = client.persist(x)
        wait(x)
        pickled = pickle.dumps(net)
        in_workers = futures_of(x)
        there = client.submit(pickle.loads, pickled)

        def timed(make: Callable[[], Any]) -> float:
            gc.collect()
            begun = time.perf_counter()
            found = client.persist(make())
            wait(found)
            return time.perf_counter() - begun

        def in_torch() -> Any:
            sent = delayed(torch_net)
            chunks = x.chunks[0], (WIDTHS[-1],)
            return x.map_blocks(torch_block, net=sent, chunks=chunks, meta=np.empty((0, 0), np.float32))

        def calls() -> float:
            gc.collect()
            begun = time.perf_counter()
            wait(client.map(call_block, in_workers, net=there, pure=False))
            return time.perf_counter() - begun

        def bare() -> float:
            share = blocks // WORKERS
            return max(client.run(call_blocks, pickled, rows // blocks, share).values())

        ways: dict[str, Callable[[], float]] = {
            "bare": bare,
            "calls": calls,
            "lazy": lambda: timed(lambda: net.predict(x)),
            "torch": lambda: timed(in_torch),
        }
        first = x.blocks[0].compute()
        np.testing.assert_allclose(net.predict(x).blocks[0].compute(), torch_block(first, torch_net), atol=1e-5)
        for way in ways.values():
            way()
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        grown = 0
        for _ in range(rounds):
            for name, way in ways.items():
                before = psutil.Process().memory_info().rss
                seconds[name].append(way())
                grown += psutil.Process().memory_info().rss - before if name == "lazy" else 0
    row = {f"{name}_s": round(statistics.median(values), 3) for name, values in seconds.items()}
    for other in ("calls", "bare", "torch"):
        ratios = [a / b for a, b in zip(seconds["lazy"], seconds[other], strict=True)]
        row[f"lazy_to_{other}"] = round(statistics.median(ratios), 2)
    return {"rows": rows, "blocks": blocks, **row, "client_mb": round(grown / 1e6, 1)}


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Samples of the array.")
@click.option("--blocks", default=16, show_default=True, help="Blocks of the array.")
@click.option("--rounds", default=15, show_default=True, help="Rounds in which the programs take turns.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures to this file.")
def main(rows: int, blocks: int, rounds: int, out: Path | None) -> None:
    """Time lazy predictions against calls on NumPy blocks and PyTorch."""
    console = Console(width=150)
    figures = begun(rounds)
    figures["predict"] = [measure(rows, blocks, rounds)]
    show(console, "seconds to predict; lazy to X = seconds of lazy / those of X", figures["predict"])
    end(console, figures, out)


if __name__ == "__main__":
    main()
