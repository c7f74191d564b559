"""Local response normalisation with beta = 3/4, whose power takes two square roots; vectorised over channels.

`padded` is a workspace of C + local_size - 1 elements: the squares of one pixel between zeros.
"""

import numpy as np

from singa_dask.ops.cpu.toolkit.numba_kernel import kernel


@kernel
def lrn(x, local_size, alpha, knorm, out, scale, padded):
    """scale = knorm + alpha / local_size * (sum of x^2 around each channel); out = x scale^-3/4."""
    pixels, channels = x.shape
    half = local_size // 2
    weight = x.dtype.type(alpha / local_size)
    knorm = x.dtype.type(knorm)
    padded[:] = 0
    inside = padded[half : half + channels]
    for i in range(pixels):
        source, total, target = x[i], scale[i], out[i]
        for c in range(channels):
            inside[c] = weight * source[c] * source[c]
            total[c] = knorm
        for d in range(local_size):
            shifted = padded[d : d + channels]
            for c in range(channels):
                total[c] += shifted[c]
        for c in range(channels):
            root = np.sqrt(total[c])
            target[c] = source[c] / (root * np.sqrt(root))


@kernel
def lrn_backward(x, y, scale, local_size, alpha, d, padded, sums):
    """d = d scale^-3/4 - 3/2 alpha / local_size * x * (sum of d y / scale around each channel), in place.

    Each loop has few arrays, none of which overlap, so that LLVM vectorises it.
    """
    pixels, channels = x.shape
    half = local_size // 2
    weight = x.dtype.type(-1.5 * alpha / local_size)
    padded[:] = 0
    inside = padded[half : half + channels]
    for i in range(pixels):
        source, result, total, gradient = x[i], y[i], scale[i], d[i]
        for c in range(channels):
            inside[c] = gradient[c] * result[c] / total[c]
            sums[c] = 0
        for k in range(local_size):
            shifted = padded[k : k + channels]
            for c in range(channels):
                sums[c] += shifted[c]
        for c in range(channels):
            sums[c] *= weight * source[c]
        for c in range(channels):
            root = np.sqrt(total[c])
            gradient[c] = gradient[c] / (root * np.sqrt(root)) + sums[c]
