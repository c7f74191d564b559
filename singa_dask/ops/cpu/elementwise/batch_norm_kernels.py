"""Batch normalisation, in one pass over memory for each function. x, d, out: (N, C); one value per channel: (C,).

Sums over a few rows have the type of x, and are added in float64: conversions would take longer than the memory.
"""

import numpy as np

from singa_dask.ops.cpu.toolkit.numba_kernel import kernel

# Rows whose sums have the type of x: rounding then adds a few units in the last place.
_ROWS = 32


@kernel
def channel_moments(x, mean, sums):
    """As NormalisationOps.channel_moments, but adds to `sums`."""
    part = np.empty((2, x.shape[1]), x.dtype)
    total, squares = part
    for begin in range(0, x.shape[0], _ROWS):
        part[:] = 0
        for n in range(begin, min(begin + _ROWS, x.shape[0])):
            row = x[n]
            for c in range(row.size):
                centred = row[c] - mean[c]
                total[c] += centred
                squares[c] += centred * centred
        sums += part


@kernel
def channel_products(d, x, mean, sums):
    """As NormalisationOps.channel_products, but adds to `sums`."""
    part = np.empty((2, x.shape[1]), x.dtype)
    total, products = part
    for begin in range(0, x.shape[0], _ROWS):
        part[:] = 0
        for n in range(begin, min(begin + _ROWS, x.shape[0])):
            row, gradient = x[n], d[n]
            for c in range(row.size):
                total[c] += gradient[c]
                products[c] += gradient[c] * (row[c] - mean[c])
        sums += part


@kernel
def clipped_products(d, x, mean, factor, bias, bounds, sums):
    """As NormalisationOps.clipped_products, but adds to `sums`."""
    low, high = x.dtype.type(bounds[0]), x.dtype.type(bounds[1])
    for begin in range(0, x.shape[0], _ROWS):
        rows = slice(begin, min(begin + _ROWS, x.shape[0]))
        for n in range(rows.start, rows.stop):
            row, gradient = x[n], d[n]
            for c in range(row.size):
                y = (row[c] - mean[c]) * factor[c] + bias[c]
                gradient[c] = gradient[c] if low < y and y < high else d.dtype.type(0)
        channel_products(d[rows], x[rows], mean, sums)


@kernel
def normalise_channels(x, mean, factor, bias, bounds, out):
    """As NormalisationOps.normalise_channels."""
    low, high = x.dtype.type(bounds[0]), x.dtype.type(bounds[1])
    for n in range(x.shape[0]):
        row, result = x[n], out[n]
        for c in range(row.size):
            y = (row[c] - mean[c]) * factor[c] + bias[c]
            result[c] = low if y < low else high if y > high else y


@kernel
def batch_norm_backward(d, x, mean, factor, slope, shift):
    """As NormalisationOps.batch_norm_backward."""
    for n in range(x.shape[0]):
        row, gradient = x[n], d[n]
        for c in range(row.size):
            gradient[c] = factor[c] * gradient[c] + slope[c] * (row[c] - mean[c]) + shift[c]
