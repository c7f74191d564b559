"""Softmax, and its cross-entropy with labels.   B samples, N classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singa_dask.ops.arrays import Array


class LossOps:
    """Softmax and cross-entropy over `self.xp`."""

    xp: Any

    def softmax(self, x: Array, out: Array) -> Array:
        """out = exp(x) / (sum over the row of exp(x)).   x, out: (B, N)."""
        xp = self.xp
        xp.subtract(x, x.max(axis=1, keepdims=True), out=out)
        xp.exp(out, out=out)
        out /= out.sum(axis=1, keepdims=True)
        return out

    def softmax_backward(self, y: Array, dy: Array, out: Array) -> Array:
        """out = y (dy - (sum over the row of y dy)).   `out` may be dy."""
        sums = (y * dy).sum(axis=1, keepdims=True)
        self.xp.subtract(dy, sums, out=out)
        out *= y
        return out

    def softmax_cross_entropy(
        self, x: Array, labels: Array, topk: int, out: Array, smoothing: float = 0.0
    ) -> Sequence[Array]:
        """out = softmax(x); returns the sum over rows of -sum_j q_j log out_j and how many labels are among the topk.

        x, out: (B, N), labels: (B,) integers in [0, N). q = (1 - smoothing) onehot(label) + smoothing / N.
        """
        xp = self.xp
        shifted = x - x.max(axis=1, keepdims=True)
        xp.exp(shifted, out=out)
        sums = out.sum(axis=1, keepdims=True)
        out /= sums
        losses = xp.log(sums[:, 0]) - (1 - smoothing) * shifted[xp.arange(len(labels)), labels]
        if smoothing:
            losses -= smoothing * shifted.mean(axis=1)
        return losses.sum(), self.count_topk(x, labels, topk)

    def softmax_cross_entropy_backward(
        self, y: Array, labels: Array, scale: float, out: Array, smoothing: float = 0.0
    ) -> Array:
        """out = scale (y - q): the gradient for x of scale times the summed loss.   y: softmax(x)."""
        xp = self.xp
        self.xp.subtract(y, smoothing / y.shape[1], out=out)
        out[xp.arange(len(labels)), labels] -= 1 - smoothing
        out *= scale
        return out

    def half_squares(self, x: Array, t: Array, error: Array) -> Array:
        """error = x - t; returns the sum of error^2 / 2."""
        self.xp.subtract(x, t, out=error)
        return 0.5 * self.xp.dot(error.reshape(-1), error.reshape(-1))

    def binary_cross_entropy(self, x: Array, t: Array, positive: Array, out: Sequence[Array]) -> None:
        """out: y = sigmoid(x), the losses' derivative (1 - t + p t) y - p t, and the losses
        -(p t log y + (1 - t) log(1 - y)).   x, t, each of out: (B, N); positive: p, (N,)."""
        xp, (y, slope, losses) = self.xp, out
        rest = xp.exp(-xp.abs(x))  # never overflows
        xp.divide(xp.where(x >= 0, xp.ones_like(rest), rest), 1 + rest, out=y)
        positives = positive * t
        both = 1 - t + positives
        xp.multiply(both, xp.log1p(rest), out=losses)
        losses += positives * xp.maximum(-x, 0) + (1 - t) * xp.maximum(x, 0)
        xp.subtract(both * y, positives, out=slope)

    def count_topk(self, x: Array, labels: Array, topk: int) -> Array:
        """How many rows have x[label] among their topk largest; of equal values those of lower index count as larger.

        x: (B, N), labels: (B,) integers in [0, N).
        """
        xp = self.xp
        value = x[xp.arange(len(labels)), labels][:, None]
        earlier = xp.arange(x.shape[1]) < labels[:, None]
        rank = (x > value).sum(axis=1) + ((x == value) & earlier).sum(axis=1)
        return ((rank < topk) & (value == value)[:, 0]).sum()  # NaN is never among the largest

    def argsort_topk(self, x: Array, topk: int) -> Array:
        """Indices of the topk largest of each row, the largest first; of equal values the lower index comes first.

        x: (B, N) -> (B, topk).
        """
        return self.xp.ascontiguousarray(self.xp.argsort(-x, axis=1, kind="stable")[:, :topk])
