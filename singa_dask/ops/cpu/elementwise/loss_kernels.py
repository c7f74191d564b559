"""Softmax cross-entropy, a row at a time; singa_dask.ops.loss has the formulas."""

import math

from singa_dask.ops.cpu.toolkit.exponentials import exp_of_negative
from singa_dask.ops.cpu.toolkit.numba_kernel import kernel


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
