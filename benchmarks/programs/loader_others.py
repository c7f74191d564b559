"""Program: others that read the shards of an example's training data, in one of READERS.

A step is as many samples as those of programs/loader_ours.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tools.contest import serve_turns
from tools.jobs import training_data

from programs.loader_ours import STEP
from singa_dask.data import Manifest
from singa_dask.data.normalise import Normaliser, make_normaliser

Reader = Callable[[Manifest, Normaliser, int], Iterator[int]]


def memmap(manifest: Manifest, normaliser: Normaliser, batch: int) -> Iterator[int]:
    """The bare reader: NumPy's memmap at the datasets' offsets, in one thread.

    An epoch shuffles the windows; a window's samples are shuffled, gathered, converted to float32 and normalised in
    place, as is the least that a loader has to do. Mini-batches would be views of a window. Yields how many samples
    were read.
    """
    draw = np.random.default_rng(0)
    mapped = [_mapped(manifest, index) for index in range(len(manifest.shards))]
    windows = [(shard, first) for shard, (x, _) in enumerate(mapped) for first in range(0, len(x), manifest.window)]
    while True:
        for number in draw.permutation(len(windows)):
            shard, first = windows[number]
            x, y = mapped[shard]
            rows = first + draw.permutation(min(manifest.window, len(x) - first))
            features, labels = x[rows].astype(np.float32), y[rows]
            if normaliser.mean is not None:
                features -= normaliser.mean
            if normaliser.std is not None:
                features /= normaliser.std
            if normaliser.planes:
                planes = features.reshape(len(rows), normaliser.planes, -1)
                features = np.ascontiguousarray(planes.transpose(0, 2, 1))
            yield len(labels)


def _mapped(manifest: Manifest, index: int) -> tuple[np.ndarray, np.ndarray]:
    path = manifest.folder / manifest.shards[index].file
    with h5py.File(path) as file:
        x, y = file["x"], file["y"]
        flat = (len(x), int(np.prod(x.shape[1:])))
        features = np.memmap(path, x.dtype, "r", x.id.get_offset(), flat)
        labels = np.memmap(path, y.dtype, "r", y.id.get_offset(), y.shape)
    return np.asarray(features), np.asarray(labels)


class Samples:
    """What PyTorch's users write over HDF5: a sample is read, converted and normalised when it is asked for."""

    def __init__(self, manifest: Manifest, normaliser: Normaliser):
        self.paths = [manifest.folder / shard.file for shard in manifest.shards]
        self.starts = np.cumsum([0, *(shard.samples for shard in manifest.shards)])
        self.files: list[h5py.File] = []  # of each process its own: opened with the first sample
        mean, std = (0.0 if normaliser.mean is None else normaliser.mean), (normaliser.std or 1.0)
        shape = manifest.features.shape
        import torch

        self.mean = torch.tensor(mean, dtype=torch.float32).reshape(shape if np.size(mean) > 1 else ())
        self.std = std

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        self.files = self.files or [h5py.File(path) for path in self.paths]
        shard = int(np.searchsorted(self.starts, index, "right")) - 1
        row = index - self.starts[shard]
        x = torch.from_numpy(self.files[shard]["x"][row]).float()
        return (x - self.mean) / self.std, int(self.files[shard]["y"][row])


def dataloader(workers: int) -> Reader:
    """torch.utils.data.DataLoader with so many workers."""

    def read(manifest: Manifest, normaliser: Normaliser, batch: int) -> Iterator[int]:
        import torch

        torch.set_num_threads(1)
        samples = Samples(manifest, normaliser)
        source = torch.utils.data.DataLoader(
            samples, batch, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
        while True:
            for _, labels in source:
                yield len(labels)

    return read


READERS: dict[str, Reader] = {"memmap": memmap, "dataloader-0": dataloader(0), "dataloader-2": dataloader(2)}


def main(example: str, reader: str) -> None:
    store = training_data(example)
    manifest = Manifest.load(Path(store.path))
    batch = store.batchsize[0]
    read = READERS[reader](manifest, make_normaliser(store, manifest.features), batch)
    for _ in range(2 * STEP):  # in which workers start
        next(read)

    def turn(steps: int) -> float:
        wanted, got = STEP * batch * steps, 0
        began = time.perf_counter()
        while got < wanted:
            got += next(read)
        return (time.perf_counter() - began) * wanted / got

    serve_turns(turn)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
