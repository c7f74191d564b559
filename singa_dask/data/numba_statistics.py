"""The kernels of `Statistics.of`."""

from __future__ import annotations

import numpy as np
from numba import njit

# N samples, D values of a sample


@njit(nogil=True, cache=True)
def shifted_sums(x_ND: np.ndarray, first: int, weight_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted sums, and sums of squares, of x - x[first] in float64: (D,) each. weight_N: empty if all are 1."""
    sums_D, squares_D = np.zeros(x_ND.shape[1]), np.zeros(x_ND.shape[1])
    centre = x_ND[first]
    for i in range(x_ND.shape[0]):
        x = x_ND[i]
        weight = weight_N[i] if weight_N.size else 1.0
        for j in range(x.size):
            distance = np.float64(x[j]) - np.float64(centre[j])
            sums_D[j] += weight * distance
            squares_D[j] += weight * (distance * distance)
    return sums_D, squares_D


@njit(nogil=True, cache=True)
def counted_sums(
    x_ND: np.ndarray, centre_D: np.ndarray, weight_N: np.ndarray, mask_ND: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights, and the weighted sums, and sums of squares, of x - centre in float64, of the values that the mask
    counts: (D,) each."""
    D = x_ND.shape[1]
    counts_D, sums_D, squares_D = np.zeros(D), np.zeros(D), np.zeros(D)
    for i in range(x_ND.shape[0]):
        for j in range(D):
            weight = mask_ND[i, j] * (weight_N[i] if weight_N.size else 1.0)
            if weight > 0:
                distance = np.float64(x_ND[i, j]) - centre_D[j]
                counts_D[j] += weight
                sums_D[j] += weight * distance
                squares_D[j] += weight * (distance * distance)
    return counts_D, sums_D, squares_D
