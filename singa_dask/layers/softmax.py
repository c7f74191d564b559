"""Softmax."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array


class Softmax(Layer):
    """y = exp(x) / sum of exp(x) over each of num_softmax_per_instance equal parts of a flattened sample.

    x: (B, ...) -> y: the same shape.   softmax_conf: num_softmax_per_instance.
    """

    type: ClassVar[str] = "kSoftmax"
    conf_field: ClassVar[str | None] = "softmax_conf"
    rowwise: ClassVar[bool] = True
    step_axes: ClassVar[int] = 2

    @property
    def takes(self) -> tuple[Sharding, ...]:  # type: ignore[override]
        shardings = Sharding.BATCH, Sharding.REPLICATED
        return (*shardings, Sharding.FEATURES) if self.conf.num_softmax_per_instance == 1 else shardings

    @property
    def sent(self) -> tuple[float, float]:
        if not self.partition.splits:
            return 0.0, 0.0
        return 2.0 * (self.partition.size - 1), 2 * self.partition.others

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        parts = self.conf.num_softmax_per_instance
        if parts < 1 or prod(shape) % parts:
            raise self.problem(f"num_softmax_per_instance must divide a sample's {prod(shape)} elements", parts)
        self._width = shape[-1] if self.lead(shape) else prod(shape) // parts
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        y = ctx.buffer("y", x[0].shape)
        rows, ctx.y = x[0].reshape(-1, self._width), y.reshape(-1, self._width)
        if self.partition.splits:
            softmax_of_columns(ctx, rows, ctx.y)
        else:
            ctx.ops.softmax(rows, ctx.y)
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        rows = dy.reshape(-1, self._width)
        if not self.partition.splits:
            return ctx.ops.softmax_backward(ctx.y, rows, out=rows).reshape(dy.shape)
        rows -= ctx.group.sum((ctx.y * rows).sum(axis=1))[:, None]
        rows *= ctx.y
        return dy


def softmax_of_columns(ctx: Context, x: Array, out: Array, *more: Array) -> tuple[Array, Array, Array]:
    """out = the own columns of softmax(x), where each worker has some columns of x. Collective: one all-gather.

    x, out: (B, own columns). more: arrays (B,), which the workers exchange too.
    Returns each row's maximum over the columns of all workers, (B,); its sum of exp(x - maximum), (B,); and every
    worker's `more`, (workers, len(more), B).
    """
    xp, group = ctx.ops.xp, ctx.group
    # A worker may have nothing but -inf: exp(-inf + largest) must then be 0.
    largest = xp.maximum(x.max(axis=1), xp.finfo(x.dtype).min)
    xp.subtract(x, largest[:, None], out=out)
    xp.exp(out, out=out)
    every = ctx.buffer("rows", (group.size, 2 + len(more), len(x)), x.dtype)
    for i, own in enumerate([largest, out.sum(axis=1), *more]):
        every[group.rank, i] = own
    group.all_gather(every.reshape(-1), [every[0].size] * group.size)
    maximum = every[:, 0].max(axis=0)
    total = (every[:, 1] * xp.exp(every[:, 0] - maximum)).sum(axis=0)
    out *= (xp.exp(largest - maximum) / total)[:, None]
    return maximum, total, every[:, 2:]
