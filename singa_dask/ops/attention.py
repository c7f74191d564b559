"""Scaled dot-product attention in blocks: softmax(q k^T / sqrt(D)) v without the whole matrix of weights.

B rows, N heads, T positions, D features of a head. q, k, v, out and their gradients are views (B, N, T, D) of which
the last axis is contiguous. The softmax is computed online: a running maximum and sum per position (Milakov &
Gimelshein 2018), and backward from the logarithm of the sums (Dao et al. 2022). Memory is linear in T.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np

from singa_dask.ops.arrays import Array

BLOCK = 128  # positions

Triple = tuple[Array, Array, Array]  # of q, k, v


class AttentionOps:
    """Attention over `self.xp`."""

    xp: Any

    def attention(self, qkv: Triple, out: Array, log_sums: Array, *, causal: bool) -> Array:
        """out = softmax(q k^T / sqrt(D)) v, over the positions up to the own one if `causal`.

        log_sums: (B, N, T), becomes log(sum of exp(q k^T / sqrt(D))).
        """
        q, k, v = qkv
        xp, scale = self.xp, 1 / sqrt(q.shape[-1])
        for rows in _blocks(q.shape[2]):
            queries = q[:, :, rows] * scale
            largest: Array = None
            total: Array = None
            mean: Array = None
            for columns in _blocks(rows.stop if causal else k.shape[2]):
                scores = xp.matmul(queries, k[:, :, columns].swapaxes(2, 3))
                if causal and columns.stop > rows.start:
                    scores += self._later(rows, columns, scores.dtype)
                before, largest = largest, scores.max(axis=3, keepdims=True)
                if before is not None:
                    largest = xp.maximum(largest, before)
                scores -= largest
                weights = xp.exp(scores, out=scores)
                sums, values = weights.sum(axis=3, keepdims=True), xp.matmul(weights, v[:, :, columns])
                if before is None:
                    total, mean = sums, values
                else:
                    kept = xp.exp(before - largest)
                    total, mean = kept * total + sums, kept * mean + values
            out[:, :, rows] = mean / total
            log_sums[:, :, rows] = (largest + xp.log(total))[..., 0]
        return out

    def attention_backward(
        self, qkv: Triple, out: Array, log_sums: Array, dout: Array, grads: Triple, *, causal: bool
    ) -> None:
        """Fill grads, the gradients for q, k and v, from that for the output of `attention`."""
        (q, k, v), (dq, dk, dv) = qkv, grads
        xp, scale = self.xp, 1 / sqrt(q.shape[-1])
        for gradient in grads:
            gradient[...] = 0
        for rows in _blocks(q.shape[2]):
            queries, upper = q[:, :, rows] * scale, dout[:, :, rows]
            along = (upper * out[:, :, rows]).sum(axis=3, keepdims=True)
            for columns in _blocks(rows.stop if causal else k.shape[2]):
                weights = xp.matmul(queries, k[:, :, columns].swapaxes(2, 3))
                if causal and columns.stop > rows.start:
                    weights += self._later(rows, columns, weights.dtype)
                weights -= log_sums[:, :, rows, None]
                xp.exp(weights, out=weights)
                dv[:, :, columns] += xp.matmul(weights.swapaxes(2, 3), upper)
                dscores = xp.matmul(upper, v[:, :, columns].swapaxes(2, 3))
                dscores -= along
                dscores *= weights
                dk[:, :, columns] += xp.matmul(dscores.swapaxes(2, 3), queries)
                dscores *= scale
                dq[:, :, rows] += xp.matmul(dscores, k[:, :, columns])

    def _later(self, rows: slice, columns: slice, dtype: np.dtype) -> Array:
        """-inf for the positions `columns` after the positions `rows`, else 0."""
        xp = self.xp
        later = xp.arange(columns.start, columns.stop) > xp.arange(rows.start, rows.stop)[:, None]
        return xp.where(later, xp.asarray(-np.inf, dtype), xp.asarray(0, dtype))


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))
