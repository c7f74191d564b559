"""Attention on the CPU: a few rows of the mini-batch at a time, so that blocks stay in a core's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.attention import BLOCK, Triple
from singa_dask.ops.cpu.elementwise import attention_kernels
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps


class CpuAttentionOps(ThreadedOps):
    """Attention of CpuOps."""

    # Multiplications that take some hundred microseconds: each row takes Python a dozen calls.
    _attention_worth_a_thread: ClassVar[int] = 1 << 21
    # Scores of a block, of all heads; the backward pass has two such arrays.
    _cached_scores: ClassVar[int] = 1 << 16

    def attention(self, qkv: Triple, out: Array, log_sums: Array, *, causal: bool) -> Array:
        reference = super().attention
        self._by_row(qkv[0], lambda n: reference(_rows(qkv, n), out[n], log_sums[n], causal=causal))
        return out

    def attention_backward(
        self, qkv: Triple, out: Array, log_sums: Array, dout: Array, grads: Triple, *, causal: bool
    ) -> None:
        reference = super().attention_backward

        def row(n: slice) -> None:
            reference(_rows(qkv, n), out[n], log_sums[n], dout[n], _rows(grads, n), causal=causal)

        self._by_row(qkv[0], row)

    def _softmax_block(self, scores: Array, visible: int, largest: Array, total: Array) -> Array:
        kept = np.empty_like(largest)
        attention_kernels.softmax_block(_by_head(scores), visible, *map(_by_position, (largest, total, kept)))
        return kept

    def _softmax_block_backward(
        self, scores: Array, dweights: Array, visible: int, log_sums: Array, along: Array
    ) -> None:
        positions = (_by_position(np.ascontiguousarray(array)) for array in (log_sums, along))
        attention_kernels.softmax_block_backward(_by_head(scores), _by_head(dweights), visible, *positions)

    def _by_row(self, q: Array, task: Callable[[slice], object]) -> None:
        rows, heads, length = q.shape[:3]
        count = max(1, min(self._team.size, rows, q.size * length // self._attention_worth_a_thread))
        together = max(1, self._cached_scores // (heads * min(length, BLOCK) ** 2))

        def share(n: slice) -> None:
            for start in range(n.start, n.stop, together):
                task(slice(start, min(start + together, n.stop)))

        self._team.share(rows, count, share)


def _by_head(block: Array) -> Array:
    """(B N, columns, rows)."""
    return block.reshape(-1, *block.shape[2:])


def _by_position(array: Array) -> Array:
    """(B N, rows)."""
    return array.reshape(-1, array.shape[3])


def _rows(arrays: Triple, n: slice) -> Triple:
    q, k, v = arrays
    return q[n], k[n], v[n]
