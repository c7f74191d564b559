"""Attention on the CPU: fused kernels of float32, which share the heads of all rows among the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.attention import Triple
from singa_dask.ops.cpu.elementwise import attention_kernels
from singa_dask.ops.cpu.elementwise.attention_kernels import BLOCK
from singa_dask.ops.cpu.toolkit import workspace
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps
from singa_dask.ops.cpu.toolkit.vectors import VECTOR


class CpuAttentionOps(ThreadedOps):
    """Attention of CpuOps."""

    # Multiplications that take a thread about ten times as long as waking it.
    _attention_worth_a_thread: ClassVar[int] = 1 << 21

    def attention(self, qkv: Triple, out: Array, log_sums: Array, *, causal: bool) -> Array:
        if not _has_kernel(out):
            return super().attention(qkv, out, log_sums, causal=causal)
        length, size = out.shape[2:]
        shapes = (size, BLOCK), (BLOCK, BLOCK), (length, size), (BLOCK, size)

        def share(n: slice) -> None:
            scratch = _scratch(*shapes)
            attention_kernels.attention(*qkv, out, log_sums, causal, n.start, n.stop, *scratch)

        self._by_head(out, share)
        return out

    def attention_backward(
        self, qkv: Triple, out: Array, log_sums: Array, dout: Array, grads: Triple, *, causal: bool
    ) -> None:
        if not _has_kernel(out):
            return super().attention_backward(qkv, out, log_sums, dout, grads, causal=causal)
        length, size = out.shape[2:]
        shapes = (3, size, BLOCK), (BLOCK, BLOCK), (BLOCK, BLOCK), (length, size), (2, BLOCK, size)

        def share(n: slice) -> None:
            arrays = *qkv, out, log_sums, dout, *grads
            attention_kernels.attention_backward(*arrays, causal, n.start, n.stop, *_scratch(*shapes))

        self._by_head(out, share)

    def _by_head(self, out: Array, task: Callable[[slice], None]) -> None:
        rows, heads, length = out.shape[:3]
        count = max(1, min(self._team.size, rows * heads, out.size * length // self._attention_worth_a_thread))
        self._team.share(rows * heads, count, task)


def _has_kernel(out: Array) -> bool:
    return VECTOR > 0 and out.dtype == np.float32


def _scratch(*shapes: tuple[int, ...]) -> list[Array]:
    return workspace.cut(np.empty(workspace.elements(*shapes), np.float32), *shapes)
