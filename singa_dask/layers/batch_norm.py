"""Batch normalisation.   C channels or features, N = rows of the group's mini-batch x positions per row."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Param, Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops import Ops
from singa_dask.ops.arrays import Array
from singa_dask.ops.normalisation import UNBOUNDED, Bounds, GroupSum


class BatchNorm(Layer):
    """y = scale (x - mean) / sqrt(var + epsilon) + bias, channel by channel.   x: (B, ..., C) -> y: the same shape.

    In kTrain mean and var are over the N elements of a channel on all workers of the group (Ioffe & Szegedy 2015). The
    running statistics become factor * running + (1 - factor) * batch, with the unbiased variance; other phases use
    them. Parameters: scale, bias, mean, var; servers sum the updates of the last two.   bm_conf: factor,
    epsilon.
    A worker with FEATURES has all N elements of its channels, and the parameters of these channels only.
    bounds: set by a net where only a ReLU reads y: those of its output, which the layer then has itself.
    """

    type: ClassVar[str] = "kBM"
    conf_field: ClassVar[str | None] = "bm_conf"
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH, Sharding.FEATURES)
    bounds: Bounds = UNBOUNDED

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        if not 0 <= self.conf.factor < 1:
            raise self.problem("bm_conf.factor must lie in [0, 1)", self.conf.factor)
        if self.conf.epsilon <= 0:
            raise self.problem("bm_conf.epsilon must be above 0", self.conf.epsilon)
        channels = self.partition.sources[0][-1] if self.partition.splits else shape[-1]
        self.scale = self._declare("scale", channels, 1.0)
        self.bias = self._declare("bias", channels, 0.0)
        self.mean = self._declare("mean", channels, 0.0)
        self.var = self._declare("var", channels, 1.0)
        self.mean.statistic = self.var.statistic = True
        return shape

    def _declare(self, role: str, channels: int, value: float) -> Param:
        return self.declare(role, (channels,), 0, 0, value=value, axis=0 if self.partition.splits else None)

    def forward(self, ctx: Context, *x: Array) -> Array:
        ops, xp = ctx.ops, ctx.ops.xp
        ctx.x, ctx.x_shape = x[0].reshape(-1, x[0].shape[-1]), x[0].shape
        if ctx.step.phase & Phase.kTrain:
            ctx.of = ops.batch_statistics(ctx.x, self.scale.value, self.conf.epsilon, self._group_sum(ctx))
            about, factor = ctx.of.about, ctx.of.factor
        else:
            inverse = 1 / xp.sqrt(self.var.value + self.conf.epsilon)
            about, factor = self.mean.value.copy(), (self.scale.value * inverse).astype(ctx.x.dtype)
        ctx.affine = about, factor, self.bias.value.copy()
        return self._normalised(ctx, ctx.buffer("y", x[0].shape), self.bounds)

    def rectifies(self, ops: Ops) -> bool:
        return True

    def unbounded(self, ctx: Context) -> Array:
        """The output of the last forward call without the bounds."""
        return self._normalised(ctx, ctx.ops.empty(ctx.x_shape), UNBOUNDED)

    def _normalised(self, ctx: Context, out: Array, bounds: Bounds) -> Array:
        about, factor, bias = ctx.affine
        ctx.ops.normalise_channels(ctx.x, about, factor, bias, out.reshape(ctx.x.shape), bounds)
        return out

    def backward(self, ctx: Context, dy: Array) -> Array:
        rows, share = dy.reshape(ctx.x.shape), self._share(ctx)
        grads = [(param.grad, param.claim()) for param in (self.scale, self.bias, self.mean, self.var)]
        values = self.scale.value, self.mean.value, self.var.value
        clip = None if self.bounds is UNBOUNDED else (self.bias.value, self.bounds)
        ctx.ops.batch_norm_gradients(rows, ctx.x, ctx.of, values, grads, share, self._group_sum(ctx), clip)
        return dy

    def _share(self, ctx: Context) -> float:
        """This worker's share of what servers subtract: (1 - factor) (running - batch), averaged over time steps.

        Where a step calls the layer several times, the running statistics follow each call after the other. The last
        call comes first here, and what an earlier one has changed was multiplied by the factor since.
        """
        share = (1 - self.conf.factor) * len(ctx.x) / ctx.of.rows / self.proto.num_instances
        return share * self.conf.factor**self.mean.contributions if self.proto.num_instances == 1 else share

    def _group_sum(self, ctx: Context) -> GroupSum | None:
        """The sum over all rows of the group, in float64, of an array's sum over the worker's rows."""
        if self.partition.splits or ctx.group.size == 1:
            return None
        return lambda array: ctx.ops.asarray(ctx.group.sum(array), np.float64)
