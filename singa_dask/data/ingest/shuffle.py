"""Random orders of rows. They depend on their key only: not on the machine, nor on NumPy's version."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def permutation(key: tuple[int, ...], size: int) -> np.ndarray:
    """A random permutation of range(size) by Fisher and Yates: (size,) int64."""
    from singa_dask.data.ingest.numba_shuffle import shuffle  # imports Numba

    order = np.arange(size)
    shuffle(order, np.random.PCG64(np.random.SeedSequence(key)).random_raw(size))
    return order


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
