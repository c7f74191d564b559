"""Layers that relate the positions of a sequence: self-attention, and embeddings of the positions.

B samples, T positions, C features, N heads, D = C / N. The positions are the time steps of a folded net, whose rows
are ordered by time step, (T B, C); or those of an image, (B, H, W, C) with T = H W.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

import numpy as np

from singa_dask.job.job_pb2 import PositionalEmbeddingProto
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Param, Shape
from singa_dask.layers.partition import Form
from singa_dask.ops import Ops
from singa_dask.ops.arrays import Array
from singa_dask.ops.attention import Triple

_SEQUENCE = (
    "Set neuralnet { unroll_len: T } for sequences of T steps, or let it read an image. "
    "On arrays, give it the list of all time steps."
)


class Attention(Layer):
    """Multi-head self-attention   (Vaswani et al. 2017): q, k, v = x W + b, y = concat_n(softmax(q_n k_n^T / sqrt(D))
    v_n) W_o + b_o; a position attends to all, or with `causal` to itself and earlier ones.   x, y: (T B, C) or
    (B, H, W, C).

    Parameters: weight (C, 3, N, D), bias (3, N, D), output_weight (N, D, C), output_bias (C,).
    attention_conf: num_heads (N), causal, bias_term. `partition_dim: 1` splits the heads over the workers.
    """

    type: ClassVar[str] = "kAttention"
    conf_field: ClassVar[str | None] = "attention_conf"
    rowwise: ClassVar[bool] = True
    across_steps: ClassVar[bool] = True
    splits_features: ClassVar[bool] = True

    @property
    def units(self) -> int | None:
        return self.conf.num_heads

    def forms(self, dim: int, sources: Sequence[Form], axis: int | None = None) -> tuple[Form, Form]:
        if dim != 1 or not self.splits_features:
            return super().forms(dim, sources, axis)
        return Form.WHOLE, Form.PARTIAL

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        channels, heads = shape[-1], self.conf.num_heads
        self._in_sample, self._length = _positions(self, shape)
        if heads < 1 or channels % heads:
            raise self.problem(f"attention_conf.num_heads must divide the {channels} features of its source", heads)
        if self._length < 2:
            raise self.problem(
                "has a single position, and nothing to attend to", f"samples of shape {shape}", _SEQUENCE
            )
        split = self.partition.makes is Form.PARTIAL
        self._channels, self._size = channels, channels // heads

        def declare(role: str, shape: Shape, axis: int, value: float | None = None) -> Param:
            return self.declare(role, shape, channels, channels, value, axis=axis if split else None)

        biased = self.conf.bias_term
        self.weight = declare("weight", (channels, 3, heads, self._size), 2)
        self.bias = declare("bias", (3, heads, self._size), 1, 0.0) if biased else None
        self.output_weight = declare("output_weight", (heads, self._size, channels), 0)
        self.output_bias = self.declare("output_bias", (channels,), channels, channels) if biased else None
        self._heads = self.weight.shape[2]
        # Partial sums of the workers are added: one of them adds the bias.
        self._adds_bias = self.output_bias is not None and not (split and self.partition.rank > 0)
        return shape

    def _by_head(self, rows: Array) -> list[Array]:
        """Views (B, N, T, D) of arrays (N, D) that lie side by side in rows (T B, ...), or (B T, ...) of images."""
        samples, side = len(rows) // self._length, rows.shape[1] // (self._heads * self._size)
        order = (samples, self._length) if self._in_sample else (self._length, samples)
        arrays = rows.reshape(*order, side, self._heads, self._size)
        turned = (0, 2, 1, 3) if self._in_sample else (1, 2, 0, 3)
        return [arrays[:, :, i].transpose(turned) for i in range(side)]

    def _triple(self, rows: Array) -> Triple:
        q, k, v = self._by_head(rows)
        return q, k, v

    def forward(self, ctx: Context, *x: Array) -> Array:
        ops, width = ctx.ops, self._heads * self._size
        ctx.x = x[0].reshape(-1, self._channels)
        rows = len(ctx.x)
        bias = None if self.bias is None else self.bias.value.reshape(-1)
        weight, output_weight = self._matrices(self.weight.value, self.output_weight.value)
        ctx.qkv = ops.affine(ctx.x, weight, bias, out=ctx.buffer("qkv", (rows, 3 * width)))
        ctx.mixed = ctx.buffer("mixed", (rows, width))
        (mixed,) = self._by_head(ctx.mixed)
        ctx.log_sums = ctx.buffer("log_sums", mixed.shape[:3])
        ops.attention(self._triple(ctx.qkv), mixed, ctx.log_sums, causal=self.conf.causal)
        own = self.output_bias.value if self.output_bias is not None and self._adds_bias else None
        y = ctx.buffer("y", x[0].shape)
        ops.affine(ctx.mixed, output_weight, own, out=y.reshape(ctx.x.shape))
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        ops, shape = ctx.ops, dy.shape
        dy = dy.reshape(ctx.x.shape)
        weight, output_weight = self._matrices(self.weight.value, self.output_weight.value)
        dmixed = ops.gemm(dy, output_weight.T, out=ctx.buffer("dmixed", ctx.mixed.shape))
        dqkv = ctx.buffer("dqkv", ctx.qkv.shape)
        (mixed,), (upper,) = self._by_head(ctx.mixed), self._by_head(dmixed)
        ops.attention_backward(
            self._triple(ctx.qkv), mixed, ctx.log_sums, upper, self._triple(dqkv), causal=self.conf.causal
        )
        dx = None
        if ctx.needs_input_grad:
            dx = ops.gemm(dqkv, weight.T, out=ctx.buffer("dx", ctx.x.shape)).reshape(shape)
            if self.partition.makes is Form.PARTIAL:  # other workers wait for it
                ctx.send_gradient(dx)
        dweight, doutput_weight = self._matrices(self.weight.grad, self.output_weight.grad)
        ops.gemm(ctx.x.T, dqkv, out=dweight, accumulate=self.weight.claim())
        ops.gemm(ctx.mixed.T, dy, out=doutput_weight, accumulate=self.output_weight.claim())
        if self.bias is not None:
            ops.column_sums(dqkv, self.bias.grad.reshape(-1), accumulate=self.bias.claim())
        if self.output_bias is not None and self._adds_bias:
            ops.column_sums(dy, self.output_bias.grad, accumulate=self.output_bias.claim())
        return dx

    def _matrices(self, weight: Array, output_weight: Array) -> tuple[Array, Array]:
        """As matrices: (C, 3 N D) and (N D, C)."""
        return weight.reshape(self._channels, -1), output_weight.reshape(-1, self._channels)


class PositionalEmbedding(Layer):
    """y = x + P, P (T, C) a row per position: learned, or P[t, 2i] = sin(t / 10000^(2i / C)), P[t, 2i + 1] =
    cos(t / 10000^(2i / C))   (Vaswani et al. 2017).   x: (T B, C) or (B, H, W, C) -> y: the same shape.

    Parameter, if learned: table (T, C).   positionalembedding_conf: kind (LEARNED or SINUSOIDAL).
    """

    type: ClassVar[str] = "kPositionalEmbedding"
    conf_field: ClassVar[str | None] = "positionalembedding_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Form, ...]] = (Form.ROWS, Form.WHOLE, Form.COLUMNS)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self._in_sample, self._length = _positions(self, shape)
        if self._length < 2:
            raise self.problem("has a single position", f"samples of shape {shape}", _SEQUENCE)
        own = slice(self.proto.unroll_index, self.proto.unroll_index + self.steps)  # of an unrolled layer: one step
        self._range = slice(self._length) if self._in_sample else own
        split = self.partition.splits
        channels = self.partition.sources[0][-1] if split else shape[-1]
        self.table: Param | None = None
        if self.conf.kind == PositionalEmbeddingProto.LEARNED:
            axis = 1 if split else None
            self.table = self.declare("table", (self._length, channels), channels, channels, axis=axis)
        else:
            begin, end = self.partition.own(channels) if split else (0, channels)
            self._waves = sinusoids(self._length, channels)[:, begin:end]
        return shape

    def _by_position(self, rows: Array) -> Array:
        """Rows as (T, B, C), or of images as (B, T, C)."""
        channels = rows.shape[-1]
        return rows.reshape((-1, self._length, channels) if self._in_sample else (self.steps, -1, channels))

    def forward(self, ctx: Context, *x: Array) -> Array:
        y = ctx.buffer("y", x[0].shape)
        own = self.embedding(ctx.ops)[self._range]
        ctx.ops.xp.add(self._by_position(x[0]), own if self._in_sample else own[:, None], out=self._by_position(y))
        return y

    def embedding(self, ops: Ops) -> Array:
        """P, of this worker's features."""
        return ops.asarray(self._waves, ops.dtype) if self.table is None else self.table.value

    def backward(self, ctx: Context, dy: Array) -> Array:
        if self.table is not None:
            if not self.table.claim():
                self.table.grad[...] = 0
            self.table.grad[self._range] += self._by_position(dy).sum(axis=0 if self._in_sample else 1)
        return dy


def _positions(layer: Layer, shape: Shape) -> tuple[bool, int]:
    """Whether samples of `shape` have positions of their own, and T."""
    if len(shape) > 1:
        return True, prod(shape[:-1])
    return False, layer.steps * layer.proto.num_instances


def sinusoids(positions: int, channels: int) -> np.ndarray:
    """Sines and cosines of wavelengths from 2 pi to 20000 pi, in turn: (positions, channels) in float64."""
    pairs = np.arange(channels) // 2
    angles = np.arange(positions)[:, None] / 10000.0 ** (2 * pairs / channels)
    return np.where(np.arange(channels) % 2, np.cos(angles), np.sin(angles))
