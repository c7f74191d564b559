"""Layers that relate the positions of a sequence: attention, and embeddings of the positions.

B samples, T positions, C features, N heads, D = C / N. The positions are the time steps of a folded net, whose rows
are ordered by time step, (T B, C); or those of an image, (B, H, W, C) with T = H W.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from singa_dask.errors import DataError
from singa_dask.job.job_pb2 import PositionalEmbeddingProto
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.lengths import lengths_from, marks_from
from singa_dask.layers.param import Param, Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops import Ops
from singa_dask.ops.arrays import Array
from singa_dask.ops.attention import Triple

_SEQUENCE = (
    "Set neuralnet { unroll_len: T } for sequences of T steps, or let it read an image. "
    "On arrays, give it the list of all time steps."
)


class Attention(Layer):
    """Multi-head attention   (Vaswani et al. 2017): q, k, v = x W + b, y = concat_n(softmax(q_n k_n^T / sqrt(D))
    v_n) W_o + b_o; a position attends to all, or with `causal` to itself and earlier ones.   x, y: (T B, C) or
    (B, ..., C).

    Further sources: a memory of C features at S positions, from which k and v are made in place of x; and which
    positions of k and v count: the number of the first ones, (B, 1), or a 0 or 1 for each, (B, S) or (S B, 1).
    With num_kv_heads, each head of k and v serves N / num_kv_heads heads of q in a row   (Ainslie et al. 2023). With
    `rotary`, features i and i + D / 2 of q and k are turned by the angle t rotary_base^(-2 i / D) at position t   (Su
    et al. 2021).

    Parameters: weight (C, 3, N, D), bias (3, N, D), with num_kv_heads M (C, N + 2 M, D) and (N + 2 M, D);
    output_weight (N, D, C), output_bias (C,).
    attention_conf: num_heads (N), num_kv_heads, causal, bias_term, rotary, rotary_base. `partition_dim: 1` splits the
    heads over the workers. Raises DataError for masks of other numbers, and for positions that see none.
    """

    type: ClassVar[str] = "kAttention"
    conf_field: ClassVar[str | None] = "attention_conf"
    num_sources: ClassVar[tuple[int, int | None]] = (1, 3)
    rowwise: ClassVar[bool] = True
    across_steps: ClassVar[bool] = True
    same_rows = False

    @property
    def units(self) -> int | None:
        return self.conf.num_heads

    @property
    def splits_features(self) -> bool:  # type: ignore[override]
        return self._groups == 1

    def shardings(self, dim: int, sources: Sequence[Sharding], axis: int | None = None) -> tuple[Sharding, Sharding]:
        if dim != 1 or not self.splits_features:
            return super().shardings(dim, sources, axis)
        return Sharding.REPLICATED, Sharding.PARTIAL

    @property
    def counted_positions(self) -> set[int]:
        return set() if self._mask is None else {self._mask}

    @property
    def has_memory(self) -> bool:
        """Whether k and v are made from another source than x."""
        return self._memory is not None

    @property
    def _groups(self) -> int:
        """How many heads of q share one of k and v."""
        return self.conf.num_heads // (self.conf.num_kv_heads or self.conf.num_heads or 1)

    def setup(self, *src: Shape) -> Shape:
        shape, *others = self.sources(src)
        channels, heads = shape[-1], self.conf.num_heads
        self._in_sample, self._length = _positions(self, shape)
        if heads < 1 or channels % heads:
            raise self.problem(f"attention_conf.num_heads must divide the {channels} features of its source", heads)
        if heads % (self.conf.num_kv_heads or heads):
            raise self.problem(f"attention_conf.num_kv_heads must divide num_heads, {heads}", self.conf.num_kv_heads)
        self._channels, self._size = channels, channels // heads
        if self.conf.rotary and self._size % 2:
            raise self.problem("rotary turns pairs of features, but a head has an odd number of them", self._size)
        self._read_others(shape, others)
        if self._length < 2 and self._memory is None:
            raise self.problem(
                "has a single position, and nothing to attend to", f"samples of shape {shape}", _SEQUENCE
            )
        self._declare_all(self.partition.makes is Sharding.PARTIAL)
        return shape

    def _read_others(self, shape: Shape, others: Sequence[Shape]) -> None:
        """Which of the further sources is the memory, and which tells the positions that count."""
        flat = [len(each) < 2 if self._in_sample else prod(each) == 1 for each in others]
        self._memory = 1 if flat and not flat[0] else None
        self._mask = len(others) if flat and flat[-1] else None
        if (self._memory is not None) + (self._mask is not None) != len(others):
            expected = "a memory, and which positions of it count: (1,) or one number for each"
            raise self.problem(f"its further sources must be {expected}", ", ".join(map(str, others)))
        if self._memory is None:
            return
        if others[0][-1] != self._channels:
            raise self.problem(f"the memory must have {self._channels} features, as x", others[0])
        if self.conf.causal:
            raise self.problem("attention_conf.causal compares positions of x, and the memory has others", "true")

    def _declare_all(self, split: bool) -> None:
        channels, heads, biased = self._channels, self.conf.num_heads, self.conf.bias_term
        many = (3, heads) if self._groups == 1 else (heads + 2 * self.conf.num_kv_heads,)

        def declare(role: str, shape: Shape, axis: int, value: float | None = None) -> Param:
            return self.declare(role, shape, channels, channels, value, axis=axis if split else None)

        self.weight = declare("weight", (channels, *many, self._size), 2)
        self.bias = declare("bias", (*many, self._size), 1, 0.0) if biased else None
        self.output_weight = declare("output_weight", (heads, self._size, channels), 0)
        self.output_bias = self.declare("output_bias", (channels,), channels, channels) if biased else None
        self._heads = self.output_weight.shape[0]
        # Partial sums of the workers are added: one of them adds the bias.
        self._adds_bias = self.output_bias is not None and not (split and self.partition.rank > 0)

    def _parts(self, ctx: Context, key: str) -> tuple[list[tuple[Array, slice, Array]], Array, Array]:
        """What x and the memory become: their rows, the columns of the weights, and a buffer for the product; and the
        views of q, and of k and v side by side, (B, heads, positions, D)."""
        width, both = self._heads * self._size, self.weight.size // self._channels
        every = [(ctx.x, slice(both))]
        if self._memory is not None:
            every = [(ctx.x, slice(width)), (ctx.memory_rows, slice(width, both))]
        made = [
            (rows, part, ctx.buffer(f"{key}{i}", (len(rows), part.stop - (part.start or 0))))
            for i, (rows, part) in enumerate(every)
        ]
        q, kv = made[0][2], made[-1][2]
        if self._memory is None:
            q, kv = q[:, :width], kv[:, width:]
        return made, self._by_head(ctx, q), self._by_head(ctx, kv)

    def _by_head(self, ctx: Context, rows: Array) -> Array:
        """A view (B, heads, positions, D) of rows that are ordered by time step, or of images by sample."""
        heads, order = rows.shape[1] // self._size, (ctx.samples, -1) if self._in_sample else (-1, ctx.samples)
        return rows.reshape(*order, heads, self._size).transpose((0, 2, 1, 3) if self._in_sample else (1, 2, 0, 3))

    def _triples(self, q: Array, kv: Array) -> list[Triple]:
        """q, k and v for each group of heads of q that read different heads of k and v."""
        count, groups = kv.shape[1] // 2, self._groups
        return [(q[:, i::groups], kv[:, :count], kv[:, count:]) for i in range(groups)]

    def forward(self, ctx: Context, *x: Array) -> Array:
        ops = ctx.ops
        ctx.x = x[0].reshape(-1, self._channels)
        if self._memory is not None:
            ctx.memory_shape, ctx.memory_rows = x[1].shape, x[1].reshape(-1, self._channels)
        ctx.samples = len(ctx.x) // self._length
        bias = None if self.bias is None else self.bias.value.reshape(-1)
        weight, output_weight = self._matrices(self.weight.value, self.output_weight.value)
        made, ctx.q, ctx.kv = self._parts(ctx, "qkv")
        for rows, part, out in made:
            own = ops.xp.ascontiguousarray(weight[:, part])
            ops.affine(rows, own, None if bias is None else bias[part], out=out)
        ctx.mixed = ctx.buffer("mixed", (len(ctx.x), self._heads * self._size))
        if self.conf.rotary:
            self._turn(ops, ctx.q, ctx.kv, 1)
        count, length = ctx.kv.shape[1] // 2, ctx.kv.shape[2]
        ctx.seen = None if self._mask is None else self._seen(ctx, x[self._mask], length)
        ctx.log_sums = ctx.buffer("log_sums", (self._groups, ctx.samples, count, self._length))
        mixed = self._by_head(ctx, ctx.mixed)
        for i, triple in enumerate(self._triples(ctx.q, ctx.kv)):
            out = mixed[:, i :: self._groups]
            ops.attention(triple, out, ctx.log_sums[i], causal=self.conf.causal, seen=ctx.seen)
        own_bias = self.output_bias.value if self.output_bias is not None and self._adds_bias else None
        y = ctx.buffer("y", x[0].shape)
        ops.affine(ctx.mixed, output_weight, own_bias, out=y.reshape(ctx.x.shape))
        return y

    def _turn(self, ops: Ops, q: Array, kv: Array, sign: int) -> None:
        """Turn q and k by the angles of their positions, or back."""
        half = self._size // 2
        for array in (q, kv[:, : kv.shape[1] // 2]):
            angles = np.arange(array.shape[2])[:, None] * self.conf.rotary_base ** (-np.arange(half) / half)
            cos, sin = (ops.asarray(each, array.dtype) for each in (np.cos(angles), sign * np.sin(angles)))
            first, second = array[..., :half], array[..., half:]
            turned = first * cos - second * sin
            second[...] = second * cos + first * sin
            first[...] = turned

    def _seen(self, ctx: Context, given: Array, length: int) -> Array:
        """Which of the positions of k and v count: (B, S) booleans."""
        xp, samples, name = ctx.ops.xp, ctx.samples, self.proto.srclayers[self._mask or 0]
        if given.size == samples:
            seen = xp.arange(length) < lengths_from(name, given, length)[:, None]
        else:
            by_step = not self._in_sample and len(given) != samples
            marks = marks_from(name, given)
            seen = marks.reshape(length, samples).T if by_step else marks.reshape(samples, length)
        if not (seen[:, 0] if self.conf.causal else seen.any(axis=1)).all():
            which = "the first position" if self.conf.causal else "a position"
            raise DataError(f"layer {self.name!r} has nothing to attend to: {name!r} must mark {which} of each sample")
        return seen

    def backward(self, ctx: Context, dy: Array) -> Any:
        ops, shape, xp = ctx.ops, dy.shape, ctx.ops.xp
        dy = dy.reshape(ctx.x.shape)
        weight, output_weight = self._matrices(self.weight.value, self.output_weight.value)
        dmixed = ops.gemm(dy, output_weight.T, out=ctx.buffer("dmixed", ctx.mixed.shape))
        made, dq, dkv = self._parts(ctx, "dqkv")
        mixed, upper = self._by_head(ctx, ctx.mixed), self._by_head(ctx, dmixed)
        triples = zip(self._triples(ctx.q, ctx.kv), self._triples(dq, dkv), strict=True)
        for i, (triple, own) in enumerate(triples):
            heads, log_sums = slice(i, None, self._groups), ctx.log_sums[i]
            grads = own if i == 0 else (own[0], xp.empty(own[1].shape, dy.dtype), xp.empty(own[2].shape, dy.dtype))
            masks: Any = {"causal": self.conf.causal, "seen": ctx.seen}
            ops.attention_backward(triple, mixed[:, heads], log_sums, upper[:, heads], grads, **masks)
            if i > 0:
                dkv += xp.concatenate(grads[1:], axis=1)
        if self.conf.rotary:
            self._turn(ops, dq, dkv, -1)
        dx: list[Any] = [None] * len(self.proto.srclayers)
        if ctx.needs_input_grad:
            for i, (rows, part, gradient) in enumerate(made):
                own = xp.ascontiguousarray(weight[:, part])
                dx[i] = ops.gemm(gradient, own.T, out=ctx.buffer(f"dx{i}", rows.shape))
            dx[0] = dx[0].reshape(shape)
            if self._memory is not None:
                dx[1] = dx[1].reshape(ctx.memory_shape)
            elif self.partition.makes is Sharding.PARTIAL:  # other workers wait for it
                ctx.send_gradient(dx[0])
        self._learn(ctx, dy, made)
        return tuple(dx) if len(dx) > 1 else dx[0]

    def _learn(self, ctx: Context, dy: Array, made: Sequence[tuple[Array, slice, Array]]) -> None:
        """The gradients of the parameters. made: the rows of the sources, the columns of the weights for them, and the
        gradient for their product."""
        ops = ctx.ops
        dweight, doutput_weight = self._matrices(self.weight.grad, self.output_weight.grad)
        claimed = self.weight.claim()
        for rows, part, gradient in made:
            if self._memory is None:
                ops.gemm(rows.T, gradient, out=dweight, accumulate=claimed)
            else:
                product = ops.gemm(rows.T, gradient)
                dweight[:, part] = dweight[:, part] + product if claimed else product
        ops.gemm(ctx.mixed.T, dy, out=doutput_weight, accumulate=self.output_weight.claim())
        if self.bias is not None:
            claimed = self.bias.claim()
            for _, part, gradient in made:
                ops.column_sums(gradient, self.bias.grad.reshape(-1)[part], accumulate=claimed)
        if self.output_bias is not None and self._adds_bias:
            ops.column_sums(dy, self.output_bias.grad, accumulate=self.output_bias.claim())

    def _matrices(self, weight: Array, output_weight: Array) -> tuple[Array, Array]:
        """As matrices: (C, (N + 2 M) D) and (N D, C)."""
        return weight.reshape(self._channels, -1), output_weight.reshape(-1, self._channels)


class PositionalEmbedding(Layer):
    """y = x + P, P (T, C) a row per position: learned, or P[t, 2i] = sin(t / 10000^(2i / C)), P[t, 2i + 1] =
    cos(t / 10000^(2i / C))   (Vaswani et al. 2017).   x: (T B, C) or (B, H, W, C) -> y: the same shape.

    Parameter, if learned: table (T, C).   positionalembedding_conf: kind (LEARNED or SINUSOIDAL).
    """

    type: ClassVar[str] = "kPositionalEmbedding"
    conf_field: ClassVar[str | None] = "positionalembedding_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

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
