"""Activations, dropout, bias and cropping, each in one pass over memory.

`*_backward` turn the gradient d for the output into the gradient for the input, in place. With a second array LLVM
would test for overlap, and take the loop without vectors where both are the same.
"""

import numpy as np

from singa_dask.ops.activation import (
    ERF_LIMIT,
    ERF_P,
    ERF_Q,
    NORMAL,
    ROOT_HALF,
    STANH_INNER,
    STANH_OUTER,
    TANH_CUBE,
    TANH_SLOPE,
)
from singa_dask.ops.cpu.toolkit.exponentials import exp_of_negative, sigmoid_of, silu_of
from singa_dask.ops.cpu.toolkit.numba_kernel import kernel
from singa_dask.ops.random import GAMMA, MIX1, MIX2

_GAMMA, _MIX1, _MIX2 = np.uint64(GAMMA), np.uint64(MIX1), np.uint64(MIX2)
# The highest power first.
_ERF_P, _ERF_Q = ERF_P[::-1], ERF_Q[::-1]


@kernel
def relu(x, slope, limit, out):
    slope, limit = x.dtype.type(slope), x.dtype.type(limit)
    for k in range(x.size):
        out[k] = (limit if x[k] > limit else x[k]) if x[k] > 0 else slope * x[k]


@kernel
def relu_backward(y, slope, limit, d):
    slope, limit = y.dtype.type(slope), y.dtype.type(limit)
    for k in range(y.size):
        d[k] = (d[k] if y[k] < limit else d.dtype.type(0)) if y[k] > 0 else slope * d[k]


@kernel
def gelu(x, out, slope):
    """As ActivationOps.gelu."""
    real = x.dtype.type
    limit, scale, one, half = real(ERF_LIMIT), real(1 / ERF_LIMIT), real(1), real(0.5)
    for k in range(x.size):
        z = min(max(x[k] * real(ROOT_HALF), -limit), limit)
        u = z * scale * (z * scale)
        above = below = real(0)
        for c in _ERF_P:
            above = above * u + real(c)
        for c in _ERF_Q:
            below = below * u + real(c)
        area = half + half * min(max(z * above / below, -one), one)
        out[k] = x[k] * area
        slope[k] = area + x[k] * exp_of_negative(-half * (x[k] * x[k])) * real(NORMAL)


@kernel
def gelu_tanh(x, out, slope):
    """As ActivationOps.gelu_tanh."""
    real = x.dtype.type
    one, cube = real(1), real(TANH_CUBE)
    for k in range(x.size):
        square = x[k] * x[k]
        share = sigmoid_of(real(2 * TANH_SLOPE) * x[k] * (one + cube * square))
        y = x[k] * share
        out[k] = y
        slope[k] = share + y * (one - share) * (real(2 * TANH_SLOPE) * (one + 3 * cube * square))


@kernel
def silu(x, out, slope):
    """As ActivationOps.silu."""
    one = x.dtype.type(1)
    for k in range(x.size):
        share, y = sigmoid_of(x[k]), silu_of(x[k])
        out[k] = y
        slope[k] = share + y * (one - share)


@kernel
def sigmoid(x, out):
    for k in range(x.size):
        out[k] = sigmoid_of(x[k])


@kernel
def sigmoid_backward(y, d):
    one = y.dtype.type(1)
    for k in range(y.size):
        d[k] = d[k] * y[k] * (one - y[k])


@kernel
def tanh_backward(y, d):
    one = y.dtype.type(1)
    for k in range(y.size):
        d[k] = d[k] * (one - y[k] * y[k])


@kernel
def stanh_backward(y, d):
    constant = y.dtype.type(STANH_INNER * STANH_OUTER)
    square = y.dtype.type(STANH_INNER / STANH_OUTER)
    for k in range(y.size):
        d[k] = d[k] * (constant - square * (y[k] * y[k]))


@kernel
def add_rows(b, out):
    """out += b for every row of out."""
    for i in range(out.shape[0]):
        row = out[i]
        for j in range(b.size):
            row[j] += b[j]


@kernel
def column_sums(x, accumulate, out):
    if not accumulate:
        out[:] = 0
    for i in range(x.shape[0]):
        row = x[i]
        for j in range(out.size):
            out[j] += row[j]


@kernel
def dropout(x, threshold, kept, key, first, stride, out, mask):
    """out = x / kept where the upper half of random number first + i stride + k is at least threshold, else 0."""
    factor = x.dtype.type(1.0 / kept)
    zero = x.dtype.type(0)
    for i in range(x.shape[0]):
        source, target, keeps = x[i], out[i], mask[i]
        begin = first + np.uint64(i) * stride + np.uint64(1)
        for k in range(source.size):
            z = key + (begin + np.uint64(k)) * _GAMMA
            z = (z ^ (z >> np.uint64(30))) * _MIX1
            z = (z ^ (z >> np.uint64(27))) * _MIX2
            z = z ^ (z >> np.uint64(31))
            keep = (z >> np.uint64(32)) >= threshold
            keeps[k] = keep
            target[k] = source[k] * factor if keep else zero


@kernel
def dropout_backward(mask, kept, d):
    factor = d.dtype.type(1.0 / kept)
    zero = d.dtype.type(0)
    for k in range(d.size):
        d[k] = d[k] * factor if mask[k] else zero


@kernel
def crop(x, top, left, mirror, mean, scale, out):
    """out[b, h, w] = scale (x - mean)[b, top_b + h, left_b + w], w counted from the right where mirror_b."""
    count, height, width, channels = out.shape
    scale = out.dtype.type(scale)
    for b in range(count):
        for h in range(height):
            y = top[b] + h
            for w in range(width):
                column = left[b] + (width - 1 - w if mirror[b] else w)
                for c in range(channels):
                    out[b, h, w, c] = (out.dtype.type(x[b, y, column, c]) - mean[y, column, c]) * scale
