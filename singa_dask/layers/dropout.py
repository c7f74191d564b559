"""Dropout."""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array
from singa_dask.ops.random import Columns, stream_key


class Dropout(Layer):
    """y = x mask / (1 - dropout_ratio), mask 0 with probability dropout_ratio; y = x outside kTrain.

    x: (B, ...) -> y: the same shape.   dropout_conf: dropout_ratio.   (Srivastava et al. 2014, scaled while training)
    The mask is a function of (seed, step, layer, time step, row, element of the whole sample).
    """

    type: ClassVar[str] = "kDropout"
    conf_field: ClassVar[str | None] = "dropout_conf"
    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        if not 0 <= self.conf.dropout_ratio < 1:
            raise self.problem("dropout_conf.dropout_ratio must lie in [0, 1)", self.conf.dropout_ratio)
        whole, self._first_column = shape, 0
        if self.partition.splits:
            (whole,) = self.partition.sources
            self._first_column, _ = self.partition.own(whole[-1])
        self._features, self._columns = prod(whole), Columns(shape[-1], whole[-1])
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        step = ctx.step
        ctx.dropping = bool(step.phase & Phase.kTrain) and self.conf.dropout_ratio > 0
        if not ctx.dropping:
            return x[0]
        first = step.first_row * self._features + self._first_column
        y = ctx.buffer("y", x[0].shape)
        ctx.mask = ctx.buffer("mask", x[0].shape, np.uint8)
        for t in range(self.steps):
            name = self.name if self.steps == 1 else f"{t}#{self.name}"  # same draws as in the unrolled net
            key = stream_key(step.seed, step.number, name)
            rows = slice(t * len(y) // self.steps, (t + 1) * len(y) // self.steps)
            ctx.ops.dropout(x[0][rows], self.conf.dropout_ratio, key, first, y[rows], ctx.mask[rows], self._columns)
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        if not ctx.dropping:
            return dy
        return ctx.ops.dropout_backward(dy, ctx.mask, self.conf.dropout_ratio, out=dy)
