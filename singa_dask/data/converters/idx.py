"""IDX, the format of MNIST and its descendants: big-endian header of sizes, then bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from singa_dask.data.catalogue import Recipe
from singa_dask.data.converters.raw import expect_end, open_raw, read_exactly
from singa_dask.data.ingest.collections import images_of
from singa_dask.data.sources.source import Source
from singa_dask.errors import DataError

_UNSIGNED_BYTE = 0x08
_MAX_NBYTES = 1 << 36


def load(recipe: Recipe, raw: dict[str, Path]) -> dict[str, Source]:
    """The splits that the recipe's [idx] table names: images (N, H, W, 1) and labels (N,). Raises DataError."""
    splits = {}
    for name, (features_file, labels_file) in recipe.idx.items():
        images = read_idx(raw[features_file], 3)
        labels = read_idx(raw[labels_file], 1)
        if len(images) != len(labels):
            raise DataError(
                f"{raw[labels_file]}: has {len(labels)} labels for {len(images)} images. Download both files again."
            )
        splits[name] = images_of(images[..., np.newaxis], labels, recipe.classes)
    return splits


def read_idx(path: Path, rank: int) -> np.ndarray:
    """An IDX file of unsigned bytes as an array of `rank` dimensions. Raises DataError if it is anything else."""
    with open_raw(path) as file:
        magic = read_exactly(file, 4, path)
        if magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTE or magic[3] != rank:
            raise DataError(
                f"{path}: is not an IDX file of bytes with {rank} dimensions. Received: magic number 0x{magic.hex()}, "
                f"expected 0x0000{_UNSIGNED_BYTE:02x}{rank:02x}. Download the file again."
            )
        shape = tuple(int(size) for size in np.frombuffer(read_exactly(file, 4 * rank, path), dtype=">u4"))
        if not 0 < math.prod(shape) <= _MAX_NBYTES:
            raise DataError(
                f"{path}: declares the shape {shape}, which is empty or too large. Download the file again."
            )
        data = np.frombuffer(read_exactly(file, math.prod(shape), path), dtype=np.uint8)
        expect_end(file, path)
    return data.reshape(shape)
