"""Losses.   B samples of this worker, T samples of the group's mini-batch (step.total_rows), N classes."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from singa_dask.layers.base import LossLayer
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.labels import class_labels
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


class SoftmaxLoss(LossLayer):
    """loss = -scale log softmax(x)[label]; the output is softmax(x).   x: (B, ...) of N elements -> (B, N).

    Sources: x, and the layer with the labels. Gradient for x: scale (softmax(x) - onehot(label)) / T.
    Metrics: loss; accuracy, the fraction of rows whose label is among the topk largest outputs.
    softmaxloss_conf: topk, scale.
    """

    type: ClassVar[str] = "kSoftmaxLoss"
    conf_field: ClassVar[str | None] = "softmaxloss_conf"
    label_sources: ClassVar[tuple[int, ...]] = (1,)
    num_sources: ClassVar[tuple[int, int | None]] = (2, 2)
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        classes = prod(self.sources(src)[0])
        if not 1 <= self.conf.topk <= classes:
            raise self.problem(f"softmaxloss_conf.topk must lie between 1 and {classes}", self.conf.topk)
        self._classes = classes
        return (classes,)

    def forward(self, ctx: Context, *x: Array) -> Array:
        logits = x[0].reshape(x[0].shape[0], -1)
        ctx.x_shape = x[0].shape
        ctx.targets = class_labels(self, ctx, x[0], x[1], self._classes)
        ctx.y = ctx.buffer("y", logits.shape)
        ctx.loss, ctx.correct = ctx.ops.softmax_cross_entropy(logits, ctx.targets, self.conf.topk, ctx.y)
        return ctx.y

    def backward(self, ctx: Context, dy: Any) -> Any:
        dx = ctx.buffer("dx", ctx.y.shape)
        scale = self.conf.scale / ctx.step.total_rows
        return ctx.ops.softmax_cross_entropy_backward(ctx.y, ctx.targets, scale, dx).reshape(ctx.x_shape), None

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        rows = ctx.y.shape[0]
        return {"loss": Metric(float(ctx.loss) * self.conf.scale, rows), "accuracy": Metric(float(ctx.correct), rows)}


class EuclideanLoss(LossLayer):
    """loss = sum over a sample of (x - t)^2 / 2; the output is x.   x: (B, ...), t: (B, ...) with as many elements.

    Sources: prediction x, target t. Gradient for x: (x - t) / T, as in SINGA, whose reported loss is twice ours.
    No gradient flows into the target. Metric: loss.
    """

    type: ClassVar[str] = "kEuclideanLoss"
    num_sources: ClassVar[tuple[int, int | None]] = (2, 2)
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        prediction, target = self.sources(src)
        if prod(prediction) != prod(target):
            raise self.problem("prediction and target differ in size", f"{prediction} and {target}")
        return prediction

    def forward(self, ctx: Context, *x: Array) -> Array:
        xp = ctx.ops.xp
        ctx.difference = ctx.buffer("difference", x[0].shape)
        xp.subtract(x[0], x[1].reshape(x[0].shape), out=ctx.difference)
        flat = ctx.difference.reshape(-1)
        ctx.loss = 0.5 * xp.dot(flat, flat)
        return x[0]

    def backward(self, ctx: Context, dy: Any) -> Any:
        dx = ctx.buffer("dx", ctx.difference.shape)
        return ctx.ops.xp.multiply(ctx.difference, 1 / ctx.step.total_rows, out=dx), None

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        return {"loss": Metric(float(ctx.loss), ctx.difference.shape[0])}
