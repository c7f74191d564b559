"""Random orders and shares of rows. They depend on their key only: not on the machine, nor on NumPy's version."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def permutation(key: tuple[int, ...], size: int) -> np.ndarray:
    """A random permutation of range(size) by Fisher and Yates: (size,) int64."""
    from singa_dask.data.ingest.numba_shuffle import shuffle  # imports Numba

    order = np.arange(size)
    shuffle(order, _bits(key, size))
    return order


def share_rows(key: tuple[int, ...], rows: int, shares: tuple[float, ...]) -> tuple[int, ...]:
    """How many of `rows` go to each share: rows * share on average, and exactly if that is a whole number."""
    counts: list[int] = []
    for share, bits in zip(shares, _bits(key, len(shares)), strict=True):
        # The small number keeps 0.1 * 30 from becoming 2.9999999999999996.
        counts.append(min(int(rows * share + 1e-9 + int(bits) / 2**64 * (1 - 1e-8)), rows - sum(counts)))
    return tuple(counts)


def batches(values: np.ndarray, order: np.ndarray | None, step: int) -> Iterator[np.ndarray]:
    """Rows in this order, None for as they are, `step` at a time: each batch contiguous and valid until the next."""
    # New memory for every batch would cost more than the copies.
    buffer = np.empty((0 if order is None else min(step, len(values)), *values.shape[1:]), values.dtype)
    for start in range(0, len(values), step):
        if order is None:
            yield np.ascontiguousarray(values[start : start + step])
        else:
            rows = order[start : start + step]
            # Without "clip", take would write to a buffer of its own first.
            yield np.take(values, rows, axis=0, out=buffer[: rows.size], mode="clip")


def _bits(key: tuple[int, ...], size: int) -> np.ndarray:
    return np.random.PCG64(np.random.SeedSequence(key)).random_raw(size)
