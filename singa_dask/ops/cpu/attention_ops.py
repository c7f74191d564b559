"""Attention on the CPU: row by row of the mini-batch, so that blocks stay in a core's cache, by the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from singa_dask.ops.arrays import Array
from singa_dask.ops.attention import Triple
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps


class CpuAttentionOps(ThreadedOps):
    """Attention of CpuOps."""

    # Multiplications that take some hundred microseconds: each row takes Python a dozen calls.
    _attention_worth_a_thread: ClassVar[int] = 1 << 21

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

    def _by_row(self, q: Array, task: Callable[[slice], object]) -> None:
        rows, length = q.shape[0], q.shape[2]
        count = max(1, min(self._team.size, rows, q.size * length // self._attention_worth_a_thread))

        def share(n: slice) -> None:
            for row in range(n.start, n.stop):
                task(slice(row, row + 1))

        self._team.share(rows, count, share)


def _rows(arrays: Triple, n: slice) -> Triple:
    q, k, v = arrays
    return q[n], k[n], v[n]
