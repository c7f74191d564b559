"""Attention on a GPU, by whole matrices of scores where they fit."""

from __future__ import annotations

from math import sqrt
from typing import Any

from singa_dask.ops.arrays import Array
from singa_dask.ops.attention import Triple
from singa_dask.ops.base import Ops
from singa_dask.ops.gpu.warps import LANES

# Scores of a layer, beyond which they are computed in blocks: 256 MB of float32.
_WHOLE = 1 << 26


class GpuAttentionOps(Ops):
    """Attention by CUDA kernels."""

    _kernels: Any

    def attention(self, qkv: Triple, out: Array, log_sums: Array, *, causal: bool, seen: Array | None = None) -> Array:
        q, k, v = qkv
        if log_sums.size * k.shape[2] > _WHOLE:
            return super().attention(qkv, out, log_sums, causal=causal, seen=seen)
        turned, values = self.empty((*k.shape[:2], k.shape[3], k.shape[2]), k.dtype), self.empty(v.shape, v.dtype)
        self._kernels.attention_memory(k, v, *k.shape[2:], turned, values)
        scaled = self.xp.multiply(q, 1 / sqrt(q.shape[3]), out=self.empty(q.shape, q.dtype))
        scores = self.matmul(scaled, turned)
        self._kernels.attention_softmax(*self._seen(q, k, causal, seen), scores, log_sums, size=LANES * log_sums.size)
        out[...] = self.matmul(scores, values)
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
        (q, k, v), (dq, dk, dv), xp = qkv, grads, self.xp
        if log_sums.size * k.shape[2] > _WHOLE:
            return super().attention_backward(qkv, out, log_sums, dout, grads, causal=causal, seen=seen)
        scale, count, shape = 1 / sqrt(q.shape[3]), k.shape[2], (*k.shape[:2], k.shape[3], k.shape[2])
        queries, upper, keys = (self.empty(each.shape, q.dtype) for each in (q, dout, k))
        turned_k, turned_v = self.empty(shape, k.dtype), self.empty(shape, k.dtype)
        self._kernels.attention_queries(q, dout, scale, queries, upper)
        self._kernels.attention_memory_backward(k, v, count, k.shape[3], keys, turned_k, turned_v)
        scores, dweights = self.matmul(queries, turned_k), self.matmul(upper, turned_v)
        dscores, turned = xp.empty_like(scores), (*k.shape[:3], q.shape[2])
        weights, gradients = self.empty(turned, q.dtype), self.empty(turned, q.dtype)
        self._kernels.attention_softmax_backward(
            *(scores, dweights, log_sums, *self._seen(q, k, causal, seen), dscores, weights, gradients),
            size=LANES * log_sums.size,
        )
        self._kernels.attention_gradients(self.matmul(gradients, queries), self.matmul(weights, upper), dk, dv)
        xp.multiply(self.matmul(dscores, keys), scale, out=dq)
        return None

    def _seen(self, q: Array, k: Array, causal: bool, seen: Array | None) -> tuple[Any, ...]:
        """What kernels take to know which scores count."""
        masked = seen is not None
        mask = self.xp.ascontiguousarray(seen) if masked else self.empty((0,), bool)
        return mask, masked, causal, *q.shape[1:3], k.shape[2]
