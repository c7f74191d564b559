"""Softmax cross-entropy around one call of NumPy's vectorised exp; singa_dask.ops.loss states the formulas."""

import math

from singa_dask.ops.cpu.kernels.numba_kernel import kernel


@kernel
def shift(x, out):
    """out = x - (the largest of its row)."""
    for i in range(x.shape[0]):
        row, target = x[i], out[i]
        largest = row[0]
        for j in range(row.size):
            largest = row[j] if row[j] > largest else largest
        for j in range(row.size):
            target[j] = row[j] - largest


@kernel
def normalise(x, labels, out):
    """out = out / (the sum of its row); returns the sum of -log out[label], from the exponents x, shifted by their
    largest, where out has lost it to underflow."""
    loss = 0.0
    one = out.dtype.type(1)
    for i in range(out.shape[0]):
        row, logits = out[i], x[i]
        total = out.dtype.type(0)
        for j in range(row.size):
            total += row[j]
        largest = logits[0]
        for j in range(row.size):
            largest = logits[j] if logits[j] > largest else largest
        loss += math.log(total) - (logits[labels[i]] - largest)
        factor = one / total
        for j in range(row.size):
            row[j] *= factor
    return loss


@kernel
def softmax_cross_entropy_backward(y, labels, scale, out):
    scale = y.dtype.type(scale)
    for i in range(y.shape[0]):
        row, target = y[i], out[i]
        for j in range(row.size):
            target[j] = scale * row[j]
        target[labels[i]] -= scale


@kernel
def count_topk(x, labels, topk):
    count = 0
    for i in range(x.shape[0]):
        row, label = x[i], labels[i]
        value = row[label]
        rank = 0
        for j in range(label):
            rank += row[j] >= value
        for j in range(label + 1, row.size):
            rank += row[j] > value
        count += rank < topk
    return count
