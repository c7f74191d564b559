"""The softmax of attention in one pass over a block of scores; singa_dask.ops.attention has the formulas.

Blocks are (B N, columns, rows), and arrays with a value per position (B N, rows).
"""

import numpy as np

from singa_dask.ops.cpu.elementwise.loss_kernels import exp_of_negative
from singa_dask.ops.cpu.toolkit.numba_kernel import kernel


@kernel
def softmax_block(scores, visible, largest, total, kept):
    """As AttentionOps._softmax_block. Columns are computed for all rows, and then hidden."""
    zero = scores.dtype.type(0)
    top, added = np.empty(scores.shape[2], scores.dtype), np.empty(scores.shape[2], scores.dtype)
    for n in range(scores.shape[0]):
        top[:] = largest[n]
        for j in range(scores.shape[1]):
            row = scores[n, j]
            for i in range(max(0, j + 1 - visible), row.size):
                top[i] = row[i] if row[i] > top[i] else top[i]
        for i in range(top.size):
            kept[n, i] = exp_of_negative(largest[n, i] - top[i])
            largest[n, i] = top[i]
            added[i] = kept[n, i] * total[n, i]
        for j in range(scores.shape[1]):
            row = scores[n, j]
            for i in range(row.size):
                row[i] = exp_of_negative(row[i] - top[i]) if i + visible > j else zero
                added[i] += row[i]
        total[n] = added


@kernel
def softmax_block_backward(scores, dweights, visible, log_sums, along):
    """As AttentionOps._softmax_block_backward."""
    zero = scores.dtype.type(0)
    for n in range(scores.shape[0]):
        log_sum, mean = log_sums[n], along[n]
        for j in range(scores.shape[1]):
            row, gradient = scores[n, j], dweights[n, j]
            for i in range(row.size):
                row[i] = exp_of_negative(row[i] - log_sum[i]) if i + visible > j else zero
                gradient[i] = row[i] * (gradient[i] - mean[i])
