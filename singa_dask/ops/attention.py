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
            largest = xp.full((*q.shape[:2], 1, queries.shape[2]), -np.inf, q.dtype)
            total, mean = xp.zeros_like(largest), None
            for columns in _blocks(rows.stop if causal else k.shape[2]):
                weights = xp.matmul(k[:, :, columns], _transposed(queries))
                kept = self._softmax_block(weights, _visible(rows, columns, causal), largest, total)
                values = xp.matmul(_transposed(weights), v[:, :, columns])
                mean = values if mean is None else _transposed(kept) * mean + values
            xp.divide(mean, _transposed(total), out=out[:, :, rows])
            log_sums[:, :, rows] = (largest + xp.log(total))[:, :, 0]
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
            along = xp.einsum("bntd,bntd->bnt", upper, out[:, :, rows])[:, :, None]
            own = log_sums[:, :, None, rows]
            for columns in _blocks(rows.stop if causal else k.shape[2]):
                weights = xp.matmul(k[:, :, columns], _transposed(queries))
                dscores = xp.matmul(v[:, :, columns], _transposed(upper))
                self._softmax_block_backward(weights, dscores, _visible(rows, columns, causal), own, along)
                dv[:, :, columns] += xp.matmul(weights, upper)
                dk[:, :, columns] += xp.matmul(dscores, queries)
                mixed = xp.matmul(_transposed(dscores), k[:, :, columns])
                mixed *= scale
                dq[:, :, rows] += mixed

    # Blocks of scores are transposed, (B, N, columns, rows): sums and maxima over columns then add up whole rows.

    def _softmax_block(self, scores: Array, visible: int, largest: Array, total: Array) -> Array:
        """In place, scores become exp(scores - largest), or 0 where a position does not see another.

        largest and total, (B, N, 1, rows), become the largest score of a position so far and the sum of its weights.
        visible: how many columns row 0 sees; row i sees i more. Returns the factor on what was computed with the
        largest score before.
        """
        xp = self.xp
        self._hide(scores, visible)
        before = largest.copy()
        xp.maximum(before, scores.max(axis=2, keepdims=True), out=largest)
        scores -= largest
        xp.exp(scores, out=scores)
        kept = xp.exp(before - largest)
        total *= kept
        total += scores.sum(axis=2, keepdims=True)
        return kept

    def _softmax_block_backward(
        self, scores: Array, dweights: Array, visible: int, log_sums: Array, along: Array
    ) -> None:
        """In place, scores become the weights, and dweights, the gradient for these, becomes that for the scores.

        visible: as in `_softmax_block`. log_sums, along: (B, N, 1, rows), along the sum of weights dweights.
        """
        self._hide(scores, visible)
        scores -= log_sums
        self.xp.exp(scores, out=scores)
        dweights -= along
        dweights *= scores

    def _hide(self, scores: Array, visible: int) -> None:
        """Set the scores of the columns that a row does not see to -inf."""
        columns, rows = scores.shape[2:]
        if visible < columns:
            xp = self.xp
            hidden = xp.arange(columns)[:, None] >= xp.arange(visible, visible + rows)
            xp.copyto(scores, xp.asarray(-np.inf, scores.dtype), where=hidden)


def _transposed(matrices: Array) -> Array:
    return matrices.swapaxes(2, 3)


def _visible(rows: slice, columns: slice, causal: bool) -> int:
    """How many of `columns` the first position of `rows` sees."""
    return rows.start - columns.start + 1 if causal else columns.stop - columns.start


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))
