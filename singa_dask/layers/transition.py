"""Layers between two layers that are partitioned differently. Each is the adjoint of another.

    rows -> whole, columns -> whole      all-gather; SINGA's kBridgeSrc, kBridgeDst and kConcate
    whole -> rows, whole -> columns      the own share is cut out; SINGA's kSplit and kSlice
    rows <-> columns                     all-to-all; kSlice, kBridgeSrc, kBridgeDst and kConcate
    partial -> rows, partial -> columns  reduce-scatter
    partial -> whole                     reduce-scatter, then all-gather

The backward pass converts the gradient between the shardings of gradients (`Sharding.of_gradient`). An activation is
seen as (T, B, M, C): T time steps, B rows, M positions, C features; rows are divided along B, columns along C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any, ClassVar

from singa_dask.errors import TrainingError
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context, Step
from singa_dask.layers.partition import Shape, Sharding, even_bounds
from singa_dask.ops.arrays import Array

_AXIS = {Sharding.BATCH: 1, Sharding.FEATURES: 3}


@dataclass(frozen=True)
class _ActivationBounds:
    """Of an activation on all workers. whole: (T, B, M, C). bounds: where each worker's share begins, by sharding."""

    whole: tuple[int, int, int, int]
    bounds: dict[Sharding, tuple[int, ...]]
    rank: int

    def local(self, sharding: Sharding, rank: int | None = None) -> tuple[int, ...]:
        """The shape of a worker's array, by default this one's."""
        if sharding not in _AXIS:
            return self.whole
        return self.part(self.whole, sharding, self.rank if rank is None else rank)

    def part(self, shape: tuple[int, ...], sharding: Sharding, rank: int) -> tuple[int, ...]:
        """The shape of a worker's share of an array of this shape."""
        size = self.bounds[sharding][rank + 1] - self.bounds[sharding][rank]
        return *shape[: _AXIS[sharding]], size, *shape[_AXIS[sharding] + 1 :]

    def shares(self, sharding: Sharding) -> list[tuple[slice, ...]]:
        """Where every worker's share lies along the axis of `sharding`."""
        lead = (slice(None),) * _AXIS[sharding]
        return [(*lead, slice(start, stop)) for start, stop in pairwise(self.bounds[sharding])]

    def contiguous(self, sharding: Sharding) -> bool:
        """Whether every worker's share of the whole array is one block of memory."""
        return sharding is Sharding.BATCH and self.whole[0] == 1


class _Converter:
    """Converts this worker's array of one layout between shardings."""

    def __init__(self, ctx: Context, layout: _ActivationBounds, key: str) -> None:
        self._ctx, self._layout, self._key = ctx, layout, key

    def convert(self, x: Array, source: Sharding, target: Sharding) -> Array:
        """x in the layout's local shape of `source` -> in that of `target`."""
        if source in _AXIS and target in _AXIS:
            return self._exchange(x, source, target)
        if source is Sharding.REPLICATED:
            return self._ctx.ops.xp.ascontiguousarray(x[self._layout.shares(target)[self._layout.rank]])
        if source is Sharding.PARTIAL and target is Sharding.REPLICATED:
            return self._gather(self._sum(x, Sharding.BATCH), Sharding.BATCH)
        if source is Sharding.PARTIAL:
            return self._sum(x, target)
        return self._gather(x, source) if target is Sharding.REPLICATED else self._pad(x, source)

    def _gather(self, x: Array, sharding: Sharding) -> Array:
        layout, out = self._layout, self._buffer("out", self._layout.whole, x.dtype)
        shapes = [layout.local(sharding, rank) for rank in range(self._size)]
        packed = out.reshape(-1) if layout.contiguous(sharding) else self._buffer("packed", (out.size,), x.dtype)
        counts = [prod(shape) for shape in shapes]
        start = sum(counts[: layout.rank])
        packed[start : start + x.size] = x.reshape(-1)
        self._ctx.group.all_gather(packed, counts)
        if not layout.contiguous(sharding):
            _unpack(packed, shapes, out, layout.shares(sharding))
        return out

    def _sum(self, x: Array, sharding: Sharding) -> Array:
        return self.start_sum(x, sharding)()

    def start_sum(self, x: Array, sharding: Sharding) -> Callable[[], Array]:
        """Start to sum x, which is PARTIAL. Returns what waits for this worker's share of the sum."""
        packed, counts = self._packed(x, sharding)
        out = self._buffer("sum", self._layout.local(sharding), x.dtype)
        wait = self._ctx.group.start_reduce_scatter(packed, out.reshape(-1), counts)

        def result() -> Array:
            wait()
            return out

        return result

    def _exchange(self, x: Array, source: Sharding, target: Sharding) -> Array:
        layout = self._layout
        packed, counts = self._packed(x, target)
        out = self._buffer("out", layout.local(target), x.dtype)
        shapes = [layout.part(layout.local(target), source, rank) for rank in range(self._size)]
        received = self._buffer("received", (out.size,), x.dtype)
        self._ctx.group.all_to_all(packed, counts, received, [prod(shape) for shape in shapes])
        _unpack(received, shapes, out, layout.shares(source))
        return out

    def _pad(self, x: Array, sharding: Sharding) -> Array:
        out = self._buffer("out", self._layout.whole, x.dtype)
        out[...] = 0
        out[self._layout.shares(sharding)[self._layout.rank]] = x
        return out

    def _packed(self, x: Array, sharding: Sharding) -> tuple[Array, list[int]]:
        """Every worker's share of x along the axis of `sharding`, one after the other, and their sizes."""
        parts = [x[share] for share in self._layout.shares(sharding)]
        counts = [part.size for part in parts]
        if self._layout.contiguous(sharding):
            return x.reshape(-1), counts
        packed, start = self._buffer("packed", (x.size,), x.dtype), 0
        for part in parts:
            packed[start : start + part.size].reshape(part.shape)[...] = part
            start += part.size
        return packed, counts

    @property
    def _size(self) -> int:
        return len(self._layout.bounds[Sharding.FEATURES]) - 1

    def _buffer(self, key: str, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._ctx.buffer(f"{self._key}.{key}", shape, dtype)


def _unpack(packed: Array, shapes: list[tuple[int, ...]], out: Array, shares: list[tuple[slice, ...]]) -> None:
    start = 0
    for shape, share in zip(shapes, shares, strict=True):
        size = prod(shape)
        out[share] = packed[start : start + size].reshape(shape)
        start += size


class Transition(Layer):
    """y = x in another sharding: from what its source makes to what its destinations read.   (`partition`)

    Inserted by net/partition.py. Collective.
    """

    known_by_type: ClassVar[bool] = True
    type: ClassVar[str] = "kTransition"

    def setup(self, *src: Shape) -> Shape:
        (whole,) = self.partition.sources
        return self._local(whole)

    def _local(self, whole: Shape) -> Shape:
        if self.partition.makes is not Sharding.FEATURES:
            return whole
        first, last = self.partition.own(whole[-1])
        return *whole[:-1], last - first

    def forward(self, ctx: Context, *x: Array) -> Array:
        return self._forward(ctx, x[0], self.partition.sources[0])

    @property
    def sent(self) -> tuple[float, float]:
        return self.partition.transition

    @property
    def sums_gradients(self) -> bool:
        """Whether the backward pass sums the workers' gradients, which can begin before the layer above is done."""
        return self.partition.makes is Sharding.REPLICATED and self.partition.reads in _AXIS

    def start_backward(self, ctx: Context, dy: Array) -> None:
        """Begin the backward pass. `backward` must follow."""
        converter = _Converter(ctx, ctx.layout, "dx")
        ctx.started = converter.start_sum(dy.reshape(ctx.layout.whole), self.partition.reads)

    def backward(self, ctx: Context, dy: Array) -> Array:
        if ctx.started is not None:
            return ctx.started().reshape(ctx.x_shape)
        reads, makes = self.partition.reads.of_gradient, self.partition.makes.of_gradient
        dx = _Converter(ctx, ctx.layout, "dx").convert(dy.reshape(ctx.layout.local(makes)), makes, reads)
        return dx.reshape(ctx.x_shape)

    def _forward(self, ctx: Context, x: Array, whole: Shape) -> Array:
        """x, (rows, ...) of samples of shape `whole`, converted."""
        if ctx.group.size != self.partition.size:
            raise TrainingError(
                f"the net is partitioned over {self.partition.size} workers, and must be used by that many. Received: "
                f"{ctx.group.size}. Checkpoints hold whole parameters: load one into a net that is not partitioned."
            )
        reads, makes = self.partition.reads, self.partition.makes
        rows = self._row_bounds(ctx.step, x.shape[0] // self.steps)
        columns = even_bounds(whole[-1] if whole else 1, self.partition.size)
        shape = self.steps, rows[-1], prod(whole[:-1]), columns[-1]
        ctx.layout = _ActivationBounds(shape, {Sharding.BATCH: rows, Sharding.FEATURES: columns}, self.partition.rank)
        ctx.x_shape, ctx.started = x.shape, None
        y = _Converter(ctx, ctx.layout, "y").convert(x.reshape(ctx.layout.local(reads)), reads, makes)
        first = rows[self.partition.rank] if makes is Sharding.BATCH else 0
        counts = tuple(last - first for first, last in pairwise(rows))
        step = ctx.step
        ctx.output_step = Step(step.phase, step.number, step.seed, first, step.total_rows, counts)
        return y.reshape(y.shape[0] * y.shape[1], *self._local(whole))

    def _row_bounds(self, step: Step, rows: int) -> tuple[int, ...]:
        """Where each worker's rows begin. rows: of this worker if it reads BATCH, else of all.

        Layers that slice or concatenate the mini-batch change the number of rows, which are then divided evenly.
        """
        bounds = tuple(accumulate(step.counts, initial=0))
        if self.partition.reads is Sharding.BATCH or bounds[-1] == rows:
            return bounds
        return even_bounds(rows, self.partition.size)


class LabelTransition(Transition):
    """The labels of the source, of this worker's rows or of all rows, for layers that read the other.

    Class labels (B,) -> (B,), targets (B, ...) -> (B, ...).

    Inserted by net/partition.py. Collective.
    """

    type: ClassVar[str] = "kLabelTransition"
    passes_labels: ClassVar[bool] = True
    label_sources: ClassVar[tuple[int, ...]] = (0,)

    def setup(self, *src: Shape) -> Shape:
        return self.targets.get(0, ())

    def forward(self, ctx: Context, *x: Array) -> Array:
        if x[0] is None:
            ctx.labels = None
            return ctx.ops.empty((0,))
        labels = ctx.ops.xp.ascontiguousarray(x[0] if x[0].ndim > 1 else x[0].reshape(-1, 1))
        ctx.labels = self._forward(ctx, labels, labels.shape[1:]).reshape(-1, *x[0].shape[1:])
        return ctx.labels

    @property
    def sent(self) -> tuple[float, float]:
        forward, _ = super().sent
        return (forward if self.targets else 2 * forward), 0.0  # class labels have 8 bytes

    def backward(self, ctx: Context, dy: Array) -> Any:
        return None
