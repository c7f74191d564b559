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
