"""Rows of a shard to rows of a mini-batch, converted and normalised on the way: the kernels of Normaliser."""

from __future__ import annotations

import numpy as np
from numba import njit

# R rows asked for, N samples of a shard, D values of a sample, M rows of the output


@njit(nogil=True, cache=True)
def gather(x_ND: np.ndarray, rows_R: np.ndarray, places_R: np.ndarray, out_MD: np.ndarray) -> None:
    for i in range(rows_R.size):
        x, out = x_ND[rows_R[i]], out_MD[places_R[i]]
        for j in range(x.size):
            out[j] = x[j]


@njit(nogil=True, cache=True)
def subtract(x_ND: np.ndarray, rows_R: np.ndarray, places_R: np.ndarray, mean: float, out_MD: np.ndarray) -> None:
    for i in range(rows_R.size):
        x, out = x_ND[rows_R[i]], out_MD[places_R[i]]
        for j in range(x.size):
            out[j] = type(mean)(x[j]) - mean


# Python's error model would test every divisor for zero, which keeps the loops from using vector instructions.
@njit(nogil=True, cache=True, error_model="numpy")
def normalise(
    x_ND: np.ndarray, rows_R: np.ndarray, places_R: np.ndarray, mean: float, std: float, out_MD: np.ndarray
) -> None:
    for i in range(rows_R.size):
        x, out = x_ND[rows_R[i]], out_MD[places_R[i]]
        for j in range(x.size):
            out[j] = (type(mean)(x[j]) - mean) / std


@njit(nogil=True, cache=True)
def subtract_D(
    x_ND: np.ndarray, rows_R: np.ndarray, places_R: np.ndarray, mean_D: np.ndarray, out_MD: np.ndarray
) -> None:
    for i in range(rows_R.size):
        x, out = x_ND[rows_R[i]], out_MD[places_R[i]]
        for j in range(x.size):
            out[j] = mean_D.dtype.type(x[j]) - mean_D[j]


@njit(nogil=True, cache=True, error_model="numpy")
def normalise_D(
    x_ND: np.ndarray,
    rows_R: np.ndarray,
    places_R: np.ndarray,
    mean_D: np.ndarray,
    std_D: np.ndarray,
    out_MD: np.ndarray,
) -> None:
    for i in range(rows_R.size):
        x, out = x_ND[rows_R[i]], out_MD[places_R[i]]
        for j in range(x.size):
            out[j] = (mean_D.dtype.type(x[j]) - mean_D[j]) / std_D[j]


@njit(nogil=True, cache=True, error_model="numpy")
def normalise_planes(
    x_ND: np.ndarray,
    rows_R: np.ndarray,
    places_R: np.ndarray,
    mean_D: np.ndarray,
    std_D: np.ndarray,
    planes: int,
    out_MD: np.ndarray,
) -> None:
    """Samples of `planes` channels, one after the other, become samples with the channels side by side."""
    size = mean_D.size // planes
    y = np.empty_like(mean_D)
    for i in range(rows_R.size):
        x, out = x_ND[rows_R[i]], out_MD[places_R[i]]
        for j in range(y.size):
            y[j] = (mean_D.dtype.type(x[j]) - mean_D[j]) / std_D[j]
        for p in range(size):
            for c in range(planes):
                out[p * planes + c] = y[c * size + p]


@njit(nogil=True, cache=True)
def widen(x_ND: np.ndarray, rows_R: np.ndarray, out_RD: np.ndarray) -> None:
    """float16, given as its bits, to float32, given as its bits; finite numbers only."""
    scale = np.float32(2.0**112)  # the difference of the exponents' biases; so subnormal numbers come out right too
    values_RD = out_RD.view(np.float32)
    for i in range(rows_R.size):
        x, out, values = x_ND[rows_R[i]], out_RD[i], values_RD[i]
        for j in range(x.size):
            bits = np.uint32(x[j])
            out[j] = ((bits & np.uint32(0x8000)) << np.uint32(16)) | ((bits & np.uint32(0x7FFF)) << np.uint32(13))
        for j in range(x.size):
            values[j] *= scale
