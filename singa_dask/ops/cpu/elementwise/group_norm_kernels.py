"""Layer and group normalisation. x, out, d: (R, P, G, K), scale, bias: (G, K), mean, inverse: (R, G)."""

import numpy as np

from singa_dask.ops.cpu.toolkit.numba_kernel import kernel


@kernel
def group_norm(x, scale, bias, epsilon, out, mean, inverse):
    """As NormalisationOps.group_norm."""
    rows, positions, groups, size = x.shape
    real = x.dtype.type
    part = real(1.0 / (positions * size))
    for r in range(rows):
        for g in range(groups):
            total = real(0)
            for p in range(positions):
                values = x[r, p, g]
                for k in range(size):
                    total += values[k]
            middle, squares = total * part, real(0)
            for p in range(positions):
                values = x[r, p, g]
                for k in range(size):
                    squares += (values[k] - middle) * (values[k] - middle)
            factor = real(1) / np.sqrt(squares * part + real(epsilon))
            mean[r, g], inverse[r, g] = middle, factor
            weights, shifts = scale[g], bias[g]
            for p in range(positions):
                values, results = x[r, p, g], out[r, p, g]
                for k in range(size):
                    results[k] = (values[k] - middle) * factor * weights[k] + shifts[k]


@kernel
def group_norm_backward(x, scale, mean, inverse, d, sums):
    """As NormalisationOps.group_norm_backward, but adds to `sums`."""
    rows, positions, groups, size = x.shape
    real = x.dtype.type
    part = real(1.0 / (positions * size))
    for r in range(rows):
        for g in range(groups):
            middle, factor, weights = mean[r, g], inverse[r, g], scale[g]
            for_scale, for_bias = sums[0, g], sums[1, g]
            total, along = real(0), real(0)
            for p in range(positions):
                values, gradients = x[r, p, g], d[r, p, g]
                for k in range(size):
                    normal = (values[k] - middle) * factor
                    for_scale[k] += gradients[k] * normal
                    for_bias[k] += gradients[k]
                    total += gradients[k] * weights[k]
                    along += gradients[k] * weights[k] * normal
            total, along = total * part, along * part
            for p in range(positions):
                values, gradients = x[r, p, g], d[r, p, g]
                for k in range(size):
                    normal = (values[k] - middle) * factor
                    gradients[k] = factor * (gradients[k] * weights[k] - total - normal * along)
