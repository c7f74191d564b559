"""The kernel of permutation."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def shuffle(order: np.ndarray, bits: np.ndarray) -> None:
    """Fisher and Yates, with 64 random bits for each entry."""
    for i in range(order.size - 1, 0, -1):
        j = np.int64(((bits[i] >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        order[i], order[j] = order[j], order[i]
