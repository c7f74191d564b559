"""Small sets of shards. Sample i of `images` holds the number i in its pixels, so that a batch tells what it holds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.shards import write_shards

from singa_dask.data import Manifest

TOTAL = 203


@pytest.fixture(scope="session")
def image_arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (TOTAL, 3, 4, 2), dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(TOTAL)
    return images, np.arange(TOTAL) % 7


@pytest.fixture
def images(tmp_path: Path, image_arrays: tuple[np.ndarray, np.ndarray]) -> Manifest:
    """203 images of 3 x 4 x 2 in three shards with windows of 8: the last window of each shard is shorter."""
    return write_shards(tmp_path / "images", *image_arrays, 3, classes=7, window=8)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as executor:
        yield executor
