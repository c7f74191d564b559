"""Attention on the CPU: fused kernels of float32, and the reference for other types and CPUs without vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from singa_dask.ops.arrays import Array
from singa_dask.ops.attention import Triple
from singa_dask.ops.cpu.attention import attention_kernels
from singa_dask.ops.cpu.attention.softmax_lanes import BLOCK
from singa_dask.ops.cpu.toolkit import workspace
from singa_dask.ops.cpu.toolkit.threaded_ops import ThreadedOps
from singa_dask.ops.cpu.toolkit.vectors import VECTOR


class CpuAttentionOps(ThreadedOps):
    """Attention of CpuOps. Threads share the heads of all rows, or the rows where there is no kernel."""

    # Multiplications that take a thread ten times as long as waking it, or more.
    _attention_worth_a_thread: ClassVar[int] = 1 << 21

    def attention(self, qkv: Triple, out: Array, log_sums: Array, *, causal: bool, seen: Array | None = None) -> Array:
        rows, heads, _, size = out.shape
        reference, ends = super().attention, _ends(qkv, seen)

        def share_heads(n: slice) -> None:
            scratch = _scratch((size, BLOCK), (BLOCK, BLOCK), qkv[2].shape[2:], (BLOCK, size))
            attention_kernels.attention(*qkv, out, log_sums, causal, ends, n.start, n.stop, *scratch)

        def share_rows(n: slice) -> None:
            reference(_rows(qkv, n), out[n], log_sums[n], causal=causal, seen=None if seen is None else seen[n])

        own_kernel = ends is not None
        self._share_attention(out, *((rows * heads, share_heads) if own_kernel else (rows, share_rows)))
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
        rows, heads, _, size = out.shape
        reference, ends = super().attention_backward, _ends(qkv, seen)

        def share_heads(n: slice) -> None:
            blocks = (BLOCK, BLOCK), (BLOCK, BLOCK), qkv[1].shape[2:], (2, BLOCK, size)
            arrays = *qkv, out, log_sums, dout, *grads
            attention_kernels.attention_backward(
                *arrays, causal, ends, n.start, n.stop, *_scratch((3, size, BLOCK), *blocks)
            )

        def share_rows(n: slice) -> None:
            arrays = _rows(qkv, n), out[n], log_sums[n], dout[n], _rows(grads, n)
            reference(*arrays, causal=causal, seen=None if seen is None else seen[n])

        own_kernel = ends is not None
        self._share_attention(out, *((rows * heads, share_heads) if own_kernel else (rows, share_rows)))

    def _share_attention(self, out: Array, parts: int, task: Callable[[slice], None]) -> None:
        worth = out.size * out.shape[2] // self._attention_worth_a_thread
        self._team.share(parts, max(1, min(self._team.size, parts, worth)), task)


def _ends(qkv: Triple, seen: Array | None) -> Array | None:
    """The number of positions that each row sees, if these are the first ones; None where there is no kernel."""
    rows, _, length, _ = qkv[1].shape
    if VECTOR == 0 or qkv[0].dtype != np.float32:
        return None
    if seen is None:
        return np.full(rows, length)
    ends = seen.sum(axis=1)
    return ends if (seen == (np.arange(length) < ends[:, None])).all() else None


def _rows(arrays: Triple, n: slice) -> Triple:
    q, k, v = arrays
    return q[n], k[n], v[n]


def _scratch(*shapes: tuple[int, ...]) -> list[Array]:
    return workspace.cut(np.empty(workspace.elements(*shapes), np.float32), *shapes)
