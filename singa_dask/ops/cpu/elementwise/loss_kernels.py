"""Softmax cross-entropy, a row at a time; singa_dask.ops.loss has the formulas."""

import math

import numpy as np
from numba import types
from numba.extending import overload

from singa_dask.ops.cpu.toolkit.numba_kernel import kernel

_f32, _i32 = np.float32, np.int32


def exp_of_negative(x):
    """exp(x) for x <= 0 or NaN, for use in kernels."""
    raise NotImplementedError


# The flags of other kernels would let LLVM combine the two parts of ln 2.
@overload(exp_of_negative, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _exp_of_negative(x):
    if x != types.float32:
        return lambda x: math.exp(x)

    def by_powers(x):
        """2^n (1 + r + r^2 P(r)), x = n ln 2 + r, with the polynomial of Cephes' expf (Moshier 1989); 0 where float32
        has no normal number."""
        n = _f32(np.rint(x * _f32(1.44269504088896341)))
        r = x - n * _f32(0.693359375) + n * _f32(2.12194440e-4)
        p = _f32(1.9875691500e-4) * r + _f32(1.3981999507e-3)
        p = p * r + _f32(8.3334519073e-3)
        p = p * r + _f32(4.1665795894e-2)
        p = p * r + _f32(1.6666665459e-1)
        p = p * r + _f32(5.0000001201e-1)
        power = _i32(_i32(_i32(n) + _i32(127)) << _i32(23)).view(_f32)
        return _f32(0) if x < _f32(-87.33654) else (p * (r * r) + (r + _f32(1))) * power

    return by_powers


@kernel
def softmax_cross_entropy(x, labels, topk, out, smoothing):
    """out = softmax(x). Returns the sum of the losses, computed from the exponents so that it does not underflow, and
    the number of labels among the topk."""
    loss, correct = 0.0, 0
    one = out.dtype.type(1)
    for i in range(x.shape[0]):
        row, target = x[i], out[i]
        largest = row[0]
        for j in range(row.size):
            largest = row[j] if row[j] > largest else largest
        for j in range(row.size):
            target[j] = exp_of_negative(row[j] - largest)
        total = out.dtype.type(0)
        for j in range(row.size):
            total += target[j]
        factor = one / total
        for j in range(row.size):
            target[j] *= factor
        value = row[labels[i]]
        loss += math.log(total) - (1 - smoothing) * (value - largest)
        if smoothing > 0:
            mean = 0.0
            for j in range(row.size):
                mean += row[j] - largest
            loss -= smoothing * mean / row.size
        if topk > 1 or not value < largest:
            correct += _is_among(row, labels[i], topk)
    return loss, correct


@kernel
def softmax_cross_entropy_backward(y, labels, scale, out, smoothing):
    spread, kept = y.dtype.type(scale * smoothing / y.shape[1]), y.dtype.type(scale * (1 - smoothing))
    scale = y.dtype.type(scale)
    for i in range(y.shape[0]):
        row, target = y[i], out[i]
        for j in range(row.size):
            target[j] = scale * row[j] - spread
        target[labels[i]] -= kept


@kernel
def binary_cross_entropy(x, t, positive, out, slope, losses):
    one = out.dtype.type(1)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            value, target = x[i, j], t[i, j]
            size = abs(value)
            rest = exp_of_negative(-size)
            y = (one if value >= 0 else rest) / (one + rest)
            positives = positive[j] * target
            both = one - target + positives
            above = (value + size) / 2
            out[i, j] = y
            slope[i, j] = both * y - positives
            losses[i, j] = both * math.log1p(rest) + positives * (above - value) + (one - target) * above


@kernel
def _is_among(row, label, topk):
    value = row[label]
    rank = 0
    for j in range(label):
        rank += row[j] >= value
    for j in range(label + 1, row.size):
        rank += row[j] > value
    return rank < topk and value == value  # NaN is never among the largest


@kernel
def count_topk(x, labels, topk):
    count = 0
    for i in range(x.shape[0]):
        count += _is_among(x[i], labels[i], topk)
    return count
