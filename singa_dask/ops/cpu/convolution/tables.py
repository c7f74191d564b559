"""The division of a convolution's work: tables of offsets, blocks of images, threads' shares of a batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.cpu.convolution.micro_kernel import PANEL, ROWS


def in_tiles(rows: int) -> int:
    """The number of rows, rounded up to whole tiles."""
    return rows + -rows % ROWS


def table(offsets: Array, rows: int = ROWS) -> Array:
    """Offsets for the micro-kernel: flat, with the last one repeated up to a multiple of a tile's rows."""
    flat = np.asarray(offsets, np.int64).reshape(-1)
    return np.concatenate([flat, np.repeat(flat[-1:], -flat.size % rows)])


def grid(*axes: tuple[int, int]) -> Array:
    """Offsets of all index combinations of axes (count, step), the first axis slowest."""
    total = np.zeros((), np.int64)
    for count, step in axes:
        total = total[..., None] + np.arange(count, dtype=np.int64) * step
    return total


def best_block(images: int, most: int, work: Callable[[int], float]) -> int:
    """The number of images to compute together that wastes the least of the tiles. work: of a block of n images."""
    candidates = range(1, max(1, min(images, most, 2 * ROWS)) + 1)
    return min(candidates, key=lambda n: -(-images // n) * work(n))


def panels(columns: int) -> int:
    """The number of panels of a packed matrix with so many columns."""
    return -(-columns // PANEL)


def spans(count: int, threads: int) -> tuple[tuple[int, int], ...]:
    """The images [first, stop) of each thread, at least one."""
    members = max(1, min(threads, count))
    return tuple(pairwise(count * t // members for t in range(members + 1)))
