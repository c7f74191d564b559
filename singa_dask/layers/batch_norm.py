"""Batch normalisation.   C channels or features, N = rows of the group's mini-batch x positions per row."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Param, Shape
from singa_dask.layers.partition import Form
from singa_dask.ops.arrays import Array


class BatchNorm(Layer):
    """y = scale (x - mean) / sqrt(var + epsilon) + bias, channel by channel.   x: (B, ..., C) -> y: the same shape.

    In kTrain mean and var are over the N elements of a channel on all workers of the group (Ioffe & Szegedy 2015). The
    running statistics become factor * running + (1 - factor) * batch, with the unbiased variance; other phases use
    them. Parameters: scale, bias, mean, var; servers sum the updates of the last two.   bm_conf: factor,
    epsilon.
    A worker with COLUMNS has all N elements of its channels, and the parameters of these channels only.
    """

    type: ClassVar[str] = "kBM"
    conf_field: ClassVar[str | None] = "bm_conf"
    takes: ClassVar[tuple[Form, ...]] = (Form.ROWS, Form.COLUMNS)

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
        y, ctx.x = ctx.buffer("y", x[0].shape), x[0].reshape(-1, x[0].shape[-1])
        if ctx.step.phase & Phase.kTrain:
            # About the first row, as the squares of a large mean would hide the variance.
            about = ctx.x[:1].sum(axis=0)
            total, squares = ops.channel_moments(ctx.x, about)
            # Count the rows: layers below may have sliced or concatenated the batch.
            sums = self._group_sum(ctx, xp.append(total + len(ctx.x) * about.astype("float64"), float(len(ctx.x))))
            ctx.count = float(sums[-1])
            ctx.batch_mean = sums[:-1] / ctx.count
            away = about - ctx.batch_mean
            ctx.batch_var = self._group_sum(ctx, squares + away * (2 * total + len(ctx.x) * away)) / ctx.count
            ctx.about = ctx.batch_mean.astype(ctx.x.dtype)
            ctx.inverse = 1 / xp.sqrt(ctx.batch_var + self.conf.epsilon)
        else:
            ctx.about, ctx.inverse = self.mean.value, 1 / xp.sqrt(self.var.value + self.conf.epsilon)
        factor = (self.scale.value * ctx.inverse).astype(ctx.x.dtype)
        ops.normalise_channels(ctx.x, ctx.about, factor, self.bias.value, y.reshape(ctx.x.shape))
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        """dx = scale inverse (dy - mean(dy) - normal mean(dy normal)), the means over the group's N elements, with
        inverse = 1 / sqrt(var + epsilon) and normal = (x - mean) inverse."""
        ops, dy_NC = ctx.ops, dy.reshape(ctx.x.shape)
        sums = ops.channel_products(dy_NC, ctx.x, ctx.about)
        sums[1] *= ctx.inverse
        self._add(self.bias, sums[0])
        self._add(self.scale, sums[1])
        self._learn_statistics(ctx, len(dy_NC))
        means, factor = self._group_sum(ctx, sums) / ctx.count, self.scale.value * ctx.inverse
        weights = (factor, -factor * ctx.inverse * means[1], -factor * means[0])
        ops.batch_norm_backward(dy_NC, ctx.x, ctx.about, *(each.astype(dy.dtype) for each in weights))
        return dy

    def _learn_statistics(self, ctx: Context, elements: int) -> None:
        """This worker's share of what servers subtract: (1 - factor) (running - batch), averaged over time steps.

        Where a step calls the layer several times, the running statistics follow each call after the other. The last
        call comes first here, and what an earlier one has changed was multiplied by the factor since.
        """
        share = (1 - self.conf.factor) * elements / ctx.count / self.proto.num_instances
        if self.proto.num_instances == 1:
            share *= self.conf.factor**self.mean.contributions
        unbiased = ctx.batch_var * (ctx.count / max(1, ctx.count - 1))
        self._add(self.mean, share * (self.mean.value - ctx.batch_mean))
        self._add(self.var, share * (self.var.value - unbiased))

    @staticmethod
    def _add(param: Param, gradient: Array) -> None:
        if param.claim():
            param.grad += gradient.astype(param.grad.dtype)
        else:
            param.grad[...] = gradient

    def _group_sum(self, ctx: Context, array: Array) -> Array:
        """The sum over all rows of the group, in float64. `array` is the sum over the worker's rows."""
        return array if self.partition.splits else ctx.ops.asarray(ctx.group.sum(array), np.float64)
