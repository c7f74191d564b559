"""The kernel of `Statistics.of`."""

from __future__ import annotations

import numpy as np
from numba import njit

# N samples, D values of a sample


@njit(nogil=True, cache=True)
def shifted_sums(x_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums, and sums of squares, of x - x[0] in float64: (D,) each."""
    sums_D, squares_D = np.zeros(x_ND.shape[1]), np.zeros(x_ND.shape[1])
    first = x_ND[0]
    for i in range(x_ND.shape[0]):
        x = x_ND[i]
        for j in range(x.size):
            distance = np.float64(x[j]) - np.float64(first[j])
            sums_D[j] += distance
            squares_D[j] += distance * distance
    return sums_D, squares_D
