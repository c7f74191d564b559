"""Scaled dot-product attention in blocks: softmax(q k^T / sqrt(D)) v without the whole matrix of weights.

B rows, N heads, D features of a head, T positions of q and out, S of k and v. They and their gradients are views (B,
N, T or S, D) of which the last axis is contiguous. The softmax is computed online: a running maximum and sum per
position (Milakov & Gimelshein 2018), and backward from the logarithm of the sums (Dao et al. 2022). Memory is linear
in T.
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
    matmul: Any

    def attention(self, qkv: Triple, out: Array, log_sums: Array, *, causal: bool, seen: Array | None = None) -> Array:
        """out = softmax(q k^T / sqrt(D)) v, over the positions up to the own one if `causal`, and of these over the
        ones that are `seen`: (B, S) booleans, so that each position of q sees one at least.

        log_sums: (B, N, T), becomes log(sum of exp(q k^T / sqrt(D))).
        """
        q, k, v = qkv
        xp, scale = self.xp, 1 / sqrt(q.shape[-1])
        for rows in _blocks(q.shape[2]):
            queries = q[:, :, rows] * scale
            largest = xp.full((*q.shape[:2], 1, queries.shape[2]), -np.inf, q.dtype)
            total, mean = xp.zeros_like(largest), None
            for columns in _blocks(rows.stop if causal else k.shape[2]):
                weights = self.matmul(k[:, :, columns], _transposed(queries))
                self._hide(weights, _visible(rows, columns, causal), seen, columns)
                kept = self._softmax_block(weights, largest, total)
                values = self.matmul(_transposed(weights), v[:, :, columns])
                mean = values if mean is None else _transposed(kept) * mean + values
            xp.divide(mean, _transposed(total), out=out[:, :, rows])
            log_sums[:, :, rows] = (largest + xp.log(total))[:, :, 0]
        return out

    def attention_backward(
        self,
        qkv: Triple,
        out: Array,
        log_sums: Array,
        dout: Array,
        grads: Triple,
        *,
        causal: bool,
        seen: Array | None = None,
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
                weights = self.matmul(k[:, :, columns], _transposed(queries))
                dscores = self.matmul(v[:, :, columns], _transposed(upper))
                self._hide(weights, _visible(rows, columns, causal), seen, columns)
                self._softmax_block_backward(weights, dscores, own, along)
                dv[:, :, columns] += self.matmul(weights, upper)
                dk[:, :, columns] += self.matmul(dscores, queries)
                mixed = self.matmul(_transposed(dscores), k[:, :, columns])
                mixed *= scale
                dq[:, :, rows] += mixed

    # Blocks of scores are transposed, (B, N, columns, rows): sums and maxima over columns then add up whole rows.

    def _softmax_block(self, scores: Array, largest: Array, total: Array) -> Array:
        """In place, scores become exp(scores - largest).

        largest and total, (B, N, 1, rows), become the largest score of a position so far and the sum of its weights.
        Returns the factor on what was computed with the largest score before.
        """
        xp = self.xp
        before = largest.copy()
        xp.maximum(before, scores.max(axis=2, keepdims=True), out=largest)
        scores -= largest
        xp.exp(scores, out=scores)
        kept = xp.exp(before - largest)
        total *= kept
        total += scores.sum(axis=2, keepdims=True)
        return kept

    def _softmax_block_backward(self, scores: Array, dweights: Array, log_sums: Array, along: Array) -> None:
        """In place, scores become the weights, and dweights, the gradient for these, becomes that for the scores.

        log_sums, along: (B, N, 1, rows), along the sum of weights dweights.
        """
        scores -= log_sums
        self.xp.exp(scores, out=scores)
        dweights -= along
        dweights *= scores

    def _hide(self, scores: Array, visible: int, seen: Array | None, own: slice) -> None:
        """Set the scores of the columns that a row does not see so low that their weights are 0.

        visible: how many of the columns row 0 sees; row i sees i more. own: the columns' positions in `seen`.
        """
        xp, (columns, rows) = self.xp, scores.shape[2:]
        # Finite: a row may see nothing of a whole block.
        low = xp.asarray(np.finfo(scores.dtype).min / 2, scores.dtype)
        if visible < columns:
            hidden = xp.arange(columns)[:, None] >= xp.arange(visible, visible + rows)
            xp.copyto(scores, low, where=hidden)
        if seen is not None:
            xp.copyto(scores, low, where=~seen[:, None, own, None])


def _transposed(matrices: Array) -> Array:
    return matrices.swapaxes(2, 3)


def _visible(rows: slice, columns: slice, causal: bool) -> int:
    """How many of `columns` the first position of `rows` sees."""
    return rows.start - columns.start + 1 if causal else columns.stop - columns.start


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))
