"""Layers between sequences of symbols and the time steps of a net.   B rows, T time steps, V symbols, D features.

Rows of a folded net (net/fold.py) are ordered by time step: (T B, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from singa_dask.errors import DataError
from singa_dask.job.job_pb2 import EmbeddingProto
from singa_dask.layers.base import Layer
from singa_dask.layers.connection import Concate
from singa_dask.layers.context import Context
from singa_dask.layers.input import InputLayer
from singa_dask.layers.labels import looks_at_values
from singa_dask.layers.lengths import lengths_from
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array


class Frame(Layer):
    """y_t = x[:, t]: the records of one time step, or of all T in a folded net.   x: (B, W, ...) -> y: (T B, ...).

    Its source is a data layer, or in a folded net one that gives sequences (B, T, ...). Passes on the labels of these
    records, or with `store_conf { has_label: false }`, where the rows have labels of their own, none. Unrolling
    inserts it where a layer reads sequences step by step.
    """

    known_by_type: ClassVar[bool] = True
    type: ClassVar[str] = "kFrame"
    rowwise: ClassVar[bool] = True
    ahead: ClassVar[int] = 0
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH,)

    @property
    def passes_labels(self) -> bool:  # type: ignore[override]
        return self.proto.store_conf.has_label

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self._first = self.proto.unroll_index + self.ahead
        if len(shape) and self.steps > 1 and not self.passes_labels and shape[0] != self.steps:
            message = f"reads {self.steps} time steps of each sample of {self.proto.srclayers[0]!r}"
            hint = f"Write unroll_len={shape[0]} in the layer that reads them, if these are its time steps."
            raise self.problem(message, f"samples of shape {shape}", hint)
        if not shape or self._first + self.steps > shape[0]:
            message = f"reads records {self._first} to {self._first + self.steps - 1} of each row"
            hint = "Set lookahead: 1 if the label of a record is the next record."
            raise self.problem(message, f"rows of {shape[0] if shape else 0} records", hint)
        return shape[1:] or (1,)

    def passed_target(self, shape: Shape) -> Shape:
        return shape[1:]  # without the records of a row

    def forward(self, ctx: Context, *x: Array) -> Array:
        if ctx.labels is not None:
            ctx.labels = self._columns(ctx, ctx.labels)
        ctx.x_shape, columns = x[0].shape, self._columns(ctx, x[0])
        return columns if columns.ndim > 1 else columns.reshape(-1, 1)

    def _columns(self, ctx: Context, x: Array) -> Array:
        xp, count = ctx.ops.xp, self.steps
        steps = xp.moveaxis(x[:, self._first : self._first + count], 1, 0)
        return xp.ascontiguousarray(steps).reshape(count * x.shape[0], *x.shape[2:])

    def backward(self, ctx: Context, dy: Array) -> Array:
        steps = dy.reshape(self.steps, -1, *dy.shape[1:]).swapaxes(0, 1)
        return ctx.ops.xp.ascontiguousarray(steps).reshape(ctx.x_shape)


class RNNLabel(Frame):
    """label_t = x[:, t + 1]: the next symbol is the label.   x: (B, W) -> y and labels: (T B, 1).

    Its source is a kCharRNN, or another data layer whose rows are sequences with `lookahead: 1`.
    """

    type: ClassVar[str] = "kRNNLabel"
    ahead: ClassVar[int] = 1
    makes_labels: ClassVar[bool] = True

    def follow(self, before: Sequence[Any]) -> tuple[Layer, ...]:
        inputs = [layer for layer in before if isinstance(layer, InputLayer)]
        return (inputs[-1],) if inputs else super().follow(before)

    def forward(self, ctx: Context, *x: Array) -> Array:
        y = super().forward(ctx, x[0])
        ctx.labels = y.reshape(-1).astype("int64")
        return y


class LastStep(Layer):
    """y = x_T: the last time step.   x: (T B, ...) -> y: (B, ...).   T: its unroll_len.

    A second source has the length of each sequence, n: (B, 1); then y = x_n, and later steps get no gradient. Raises
    DataError for lengths that are no integers from 1 to T.
    """

    type: ClassVar[str] = "kLastStep"
    num_sources: ClassVar[tuple[int, int | None]] = (1, 2)
    undivided_sources: ClassVar[tuple[int, ...]] = (1,)

    @property
    def output_steps(self) -> int:
        return 1

    @property
    def counted_positions(self) -> set[int]:
        return self._positions((1,))

    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Shape:
        shape, *lengths = self.sources(src)
        _check_lengths(self, lengths)
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x_shape, rows = x[0].shape, x[0].shape[0] // self.steps
        if len(x) == 1:
            ctx.ends = slice(len(x[0]) - rows, None)
            return x[0][ctx.ends]
        lengths = lengths_from(self.proto.srclayers[1], x[1], self.steps)
        ctx.ends = (lengths - 1) * rows + ctx.ops.xp.arange(rows)
        return x[0][ctx.ends]

    def backward(self, ctx: Context, dy: Array) -> Any:
        dx = ctx.buffer("dx", ctx.x_shape)
        dx[...] = 0
        dx[ctx.ends] = dy
        return dx if len(self.proto.srclayers) == 1 else (dx, None)


class AllSteps(Layer):
    """y[:, t] = x_t: all time steps as one sample, for layers that read whole sequences.   x: (T B, ...) ->
    y: (B, T, ...).   T: its unroll_len. Unrolling inserts it."""

    type: ClassVar[str] = "kAllSteps"
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    @property
    def output_steps(self) -> int:
        return 1

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        return (self.steps, *shape)

    def forward(self, ctx: Context, *x: Array) -> Array:
        by_step = x[0].reshape(self.steps, -1, *x[0].shape[1:])
        return ctx.ops.xp.ascontiguousarray(by_step.swapaxes(0, 1))

    def backward(self, ctx: Context, dy: Array) -> Array:
        return ctx.ops.xp.ascontiguousarray(dy.swapaxes(0, 1)).reshape(-1, *dy.shape[2:])


class Reverse(Layer):
    """y_t = x_(T + 1 - t): the time steps in reverse order, for recurrent layers that read sequences backwards.
    x: (T B, ...) -> y: (T B, ...).

    A second source has the length of each sequence, n: (B, 1); then y_t = x_(n + 1 - t), and steps after n stay where
    they are. Two of these layers around a recurrent layer, and a Concate, make a bidirectional layer (see
    `bidirectional`).
    """

    type: ClassVar[str] = "kReverse"
    rowwise: ClassVar[bool] = True
    step_axes: ClassVar[int] = 2
    across_steps: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)
    num_sources: ClassVar[tuple[int, int | None]] = (1, 2)
    undivided_sources: ClassVar[tuple[int, ...]] = (1,)
    same_rows = False

    @property
    def counted_positions(self) -> set[int]:
        return self._positions((1,))

    def setup(self, *src: Shape) -> Shape:
        shape, *lengths = self.sources(src)
        _check_lengths(self, lengths)
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        xp, samples = ctx.ops.xp, len(x[0]) // self.steps
        ctx.order = slice(None, None, -1)
        if len(x) > 1:
            lengths, steps = lengths_from(self.proto.srclayers[1], x[1], self.steps), xp.arange(self.steps)[:, None]
            ctx.order = xp.where(steps < lengths, lengths - 1 - steps, steps), xp.arange(samples)
        return self._reversed(ctx, "y", x[0])

    def backward(self, ctx: Context, dy: Array) -> Any:
        dx = self._reversed(ctx, "dx", dy)
        return dx if len(self.proto.srclayers) == 1 else (dx, None)

    def _reversed(self, ctx: Context, key: str, rows: Array) -> Array:
        by_step = self.steps, len(rows) // self.steps, *rows.shape[1:]
        result = ctx.buffer(key, rows.shape)
        result.reshape(by_step)[...] = rows.reshape(by_step)[ctx.order]
        return result


def _check_lengths(layer: Layer, lengths: Sequence[Shape]) -> None:
    if lengths and prod(lengths[0]) != 1:
        raise layer.problem("the second source must have one length per sequence", f"samples of shape {lengths[0]}")


def bidirectional(source: Layer, onwards: Layer, back: Layer, name: str | None = None) -> Layer:
    """The features of two recurrent layers side by side: `onwards` reads the source from the first to the last time
    step, `back` from the last to the first (Schuster & Paliwal 1997).

    onwards, back: recurrent layers without sources. name: of the result, a Concate.

        both = bidirectional(words, GRU(dim_hidden=64), GRU(dim_hidden=64))
    """
    return Concate(name, concate_dim=1)(onwards(source), Reverse()(back(Reverse()(source))))


class OneHot(Layer):
    """y[i, x[i]] = 1, else 0.   x: (B, 1) symbols in [0, V) -> y: (B, V).   onehot_conf: vocab_size (V)."""

    type: ClassVar[str] = "kOneHot"
    conf_field: ClassVar[str | None] = "onehot_conf"
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self._size = _vocabulary(self)
        if prod(shape) != 1:
            hint = "Read sequences step by step: unroll_conn_type: kUnrollOneToAll."
            raise self.problem("the source must have one symbol per row", f"samples of shape {shape}", hint)
        return (self._size,)

    def forward(self, ctx: Context, *x: Array) -> Array:
        rows = symbols(self, ctx, x[0], self._size)
        return ctx.ops.one_hot(rows, ctx.buffer("y", (rows.shape[0], self._size)))

    def check(self, ctx: Context) -> None:
        check_symbols(self, ctx.symbols, self._size)

    def backward(self, ctx: Context, dy: Array) -> Array:
        return None


class Embedding(Layer):
    """y = W[x].   x: (B, K) symbols in [0, V), W: (V, D) -> y: (B, D) for K = 1, else a sequence (B, K, D), or with
    pool SUM or MEAN the sum or mean over the K symbols, (B, D).

    Symbols that are padding_idx give zeros, do not count in a mean, and get no gradient.
    embedding_conf: vocab_size (V), feature_dim (D), pool, padding_idx.
    """

    type: ClassVar[str] = "kEmbedding"
    conf_field: ClassVar[str | None] = "embedding_conf"
    rowwise: ClassVar[bool] = True
    splits_features: ClassVar[bool] = True

    @property
    def step_axes(self) -> int:  # type: ignore[override]
        return 0 if self.conf.pool else 1

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self._size, self._count, features = _vocabulary(self), prod(shape), self.conf.feature_dim
        if self.conf.HasField("padding_idx") and not 0 <= self.conf.padding_idx < self._size:
            raise self.problem(f"padding_idx must lie in [0, {self._size}), its vocab_size", self.conf.padding_idx)
        axis = 1 if self.partition.splits else None
        self.table = self.declare("table", (self._size, features), features, features, axis=axis)
        own = self.table.shape[1]
        return (own,) if self._count == 1 or self.conf.pool else (self._count, own)

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.rows = symbols(self, ctx, x[0], self._size)
        y = ctx.buffer("y", (len(ctx.rows), self.table.shape[1]))
        ctx.ops.embed(self.table.value, ctx.rows, y)
        ctx.kept = None
        if self.conf.HasField("padding_idx"):
            ctx.kept = ctx.rows != self.conf.padding_idx
            y *= ctx.kept[:, None]
        by_sample = y.reshape(len(x[0]), self._count, -1)
        if not self.conf.pool:
            return by_sample if self._count > 1 else y
        ctx.share = self._share(ctx, len(x[0]))
        return by_sample.sum(axis=1) * ctx.share

    def _share(self, ctx: Context, samples: int) -> Any:
        """What each symbol of a sample counts for."""
        if self.conf.pool == EmbeddingProto.SUM:
            return 1
        if ctx.kept is None:
            return 1 / self._count
        counts = ctx.kept.reshape(samples, -1).sum(axis=1, keepdims=True).astype(ctx.ops.dtype)
        return 1 / ctx.ops.xp.maximum(counts, 1)

    def check(self, ctx: Context) -> None:
        check_symbols(self, ctx.symbols, self._size)

    def backward(self, ctx: Context, dy: Array) -> Any:
        if self.conf.pool:
            dy = (dy * ctx.share).repeat(self._count, axis=0)
        dy = dy.reshape(len(ctx.rows), -1)
        if ctx.kept is not None:
            dy *= ctx.kept[:, None]
        if not self.table.claim():
            self.table.grad[...] = 0
        ctx.ops.embed_backward(dy, ctx.rows, self.table.grad)


def _vocabulary(layer: Layer) -> int:
    """The layer's vocab_size. Raises ConfigError if it is not given."""
    if layer.conf.vocab_size < 1:
        raise layer.problem("vocab_size must be at least 1", layer.conf.vocab_size)
    return layer.conf.vocab_size


def symbols(layer: Layer, ctx: Context, x: Array, size: int) -> Array:
    """The symbols on the device: (B,) integers. Raises DataError for a symbol outside [0, size), in training where
    that is fast; elsewhere `check_symbols` does, and their rows are -1."""
    ctx.symbols = x.reshape(-1)
    if not looks_at_values(ctx):
        return ctx.ops.table_rows(ctx.symbols, size)
    check_symbols(layer, ctx.symbols, size)
    return ctx.symbols.astype("int64")


def check_symbols(layer: Layer, x: Array, size: int) -> None:
    """Raise DataError for a symbol that is no integer in [0, size)."""
    rows = x.astype("int64")
    if (rows != x).any():
        raise DataError(
            f"layer {layer.name!r}: symbols must be integers; {layer.proto.srclayers[0]!r} gave others. "
            "Leave mean_value, std_value, mean_file and std_file out of its data layer."
        )
    if rows.size and not (int(rows.min()) >= 0 and int(rows.max()) < size):
        raise DataError(
            f"layer {layer.name!r}: symbols must lie in [0, {size}), its vocab_size; "
            f"{layer.proto.srclayers[0]!r} gave {int(rows.min())} to {int(rows.max())}"
        )
