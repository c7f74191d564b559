"""Losses.   B samples of this worker, T samples of the group's mini-batch (step.total_rows), N classes."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np

from singa_dask.layers.base import LossLayer
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.labels import class_labels, refuse_targets, target_rows
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Form
from singa_dask.layers.softmax import softmax_of_columns
from singa_dask.layers.weights import check_weights, sample_weights
from singa_dask.ops.arrays import Array


class SoftmaxLoss(LossLayer):
    """loss = -scale log softmax(x)[label]; the output is softmax(x).   x: (B, ...) of N elements -> (B, N).

    Sources: x, the layer with the labels, and optionally one with a weight per row, (B,) or (B, 1). A row's loss is
    multiplied by its weight and by the class_weight of its label; both are 1 if not given.
    Gradient for x: scale weight (softmax(x) - onehot(label)) / T; the weights get none.
    Metrics: loss, the sum of the weighted losses divided by the number of rows; accuracy, the fraction of rows whose
    label is among the topk largest outputs, whatever their weights.
    softmaxloss_conf: topk, scale, class_weight. Raises DataError if a weight is negative or not finite.
    """

    type: ClassVar[str] = "kSoftmaxLoss"
    conf_field: ClassVar[str | None] = "softmaxloss_conf"
    compares: ClassVar[str] = "classes"
    label_sources: ClassVar[tuple[int, ...]] = (1,)
    num_sources: ClassVar[tuple[int, int | None]] = (2, 3)
    output_sources: ClassVar[tuple[int, ...] | None] = (0,)
    undivided_sources: ClassVar[tuple[int, ...]] = (2,)
    rowwise: ClassVar[bool] = True

    @property
    def takes(self) -> tuple[Form, ...]:  # type: ignore[override]
        # The columns of images are channels, which are not consecutive classes.
        vectors = self.partition.sources and len(self.partition.sources[0]) == 1
        return (Form.ROWS, Form.COLUMNS) if vectors else (Form.ROWS,)

    @property
    def sent(self) -> tuple[float, float]:
        others = self.partition.size - 1
        return (3.0 * others + 2 * self.partition.others if self.partition.splits else 0.0), 0.0

    def setup(self, *src: Shape) -> Shape:
        own = prod(self.sources(src)[0])
        classes = self.partition.sources[0][0] if self.partition.splits else own
        refuse_targets(self)
        if not 1 <= self.conf.topk <= classes:
            raise self.problem(f"softmaxloss_conf.topk must lie between 1 and {classes}", self.conf.topk)
        if len(src) > 2:
            check_weights(self, src[2])
        factors = self.conf.class_weight
        if factors and len(factors) != classes:
            hint = "Give one factor per class, in the order of the classes, or leave it out."
            message = f"softmaxloss_conf.class_weight must have {classes} factors: the layer has {classes} outputs"
            raise self.problem(message, f"{len(factors)} factors", hint)
        self._factors = np.array(factors) if factors else None
        self._classes = classes
        return (own,)

    def forward(self, ctx: Context, *x: Array) -> Array:
        logits = x[0].reshape(x[0].shape[0], prod(x[0].shape[1:]))
        ctx.x_shape = x[0].shape
        ctx.targets = class_labels(self, ctx, x[0], x[1], self._classes)
        ctx.y = ctx.buffer("y", logits.shape)
        ctx.sample_weights = sample_weights(self, ctx, x[2].reshape(-1), len(logits)) if len(x) > 2 else None
        ctx.weights = self._weights(ctx)
        if self.partition.splits:
            ctx.loss, ctx.correct = self._of_columns(ctx, logits)
        else:
            ctx.loss, ctx.correct = ctx.ops.softmax_cross_entropy(logits, ctx.targets, self.conf.topk, ctx.y)
            if ctx.weights is not None:
                ctx.loss = _summed(self._losses(ctx, logits), ctx.weights)
        return ctx.y

    def _weights(self, ctx: Context) -> Array:
        """The factor for each row's loss, (B,); None for 1."""
        if self._factors is None:
            return ctx.sample_weights
        weights = ctx.ops.asarray(self._factors, ctx.ops.dtype)[ctx.targets]
        return weights if ctx.sample_weights is None else weights * ctx.sample_weights

    @staticmethod
    def _losses(ctx: Context, x: Array) -> Array:
        """-log softmax(x)[label], (B,), after softmax(x): the largest output is exp(0) / sum."""
        return x.max(axis=1) - x[ctx.ops.xp.arange(len(x)), ctx.targets] - ctx.ops.xp.log(ctx.y.max(axis=1))

    def _of_columns(self, ctx: Context, x: Array) -> tuple[Array, Array]:
        """The weighted loss and the number of correct rows, from the logits of all workers. x: (B, own columns)."""
        xp, group, labels = ctx.ops.xp, ctx.group, ctx.targets.astype("int64")
        bounds, rows = xp.asarray(self.partition.bounds(self._classes)), xp.arange(len(labels))
        first, last = self.partition.own(self._classes)
        ctx.own, ctx.columns = (first <= labels) & (labels < last), xp.clip(labels - first, 0, last - first - 1)
        maximum, total, logits = softmax_of_columns(ctx, x, ctx.y, x[rows, ctx.columns])
        value = logits[xp.searchsorted(bounds, labels, side="right") - 1, 0, rows]
        # As count_topk ranks them.
        larger, equal = x > value[:, None], x == value[:, None]
        larger |= equal & (xp.arange(first, last) < labels[:, None])
        among = group.sum(larger.sum(axis=1).astype(x.dtype)) < self.conf.topk
        return _summed(xp.log(total) - (value - maximum), ctx.weights), (among & (value == value)).sum()

    def backward(self, ctx: Context, dy: Any) -> Any:
        dx = ctx.buffer("dx", ctx.y.shape)
        scale = self.conf.scale / ctx.step.total_rows
        if self.partition.splits:
            ctx.ops.xp.multiply(ctx.y, scale, out=dx)
            dx[ctx.ops.xp.arange(len(dx)), ctx.columns] -= scale * ctx.own
        else:
            ctx.ops.softmax_cross_entropy_backward(ctx.y, ctx.targets, scale, dx)
        if ctx.weights is not None:
            dx *= ctx.weights[:, None]
        return _for_first(self, dx.reshape(ctx.x_shape))

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        rows = ctx.y.shape[0]
        return {"loss": Metric(float(ctx.loss) * self.conf.scale, rows), "accuracy": Metric(float(ctx.correct), rows)}

    def compared(self, ctx: Context) -> tuple[Array, Array, Array]:
        return ctx.y, ctx.targets, ctx.sample_weights


class EuclideanLoss(LossLayer):
    """loss = sum over a sample of w (x - t)^2 / 2; the output is x.   x: (B, ...), t: (B, ...) with as many elements.

    Sources: prediction x; the layer with the target t: an input layer's target if it has a target_shape, else the
    layer's output; and optionally weights w (else 1): one per sample, (B,) or (B, 1), or a mask with one per value of
    t, or per position of an image. Where w is 0, t may be NaN.
    Gradient for x: w (x - t) / T, as in SINGA, whose reported loss is twice ours; target and weights get none.
    Metric: loss, the sum over the samples divided by their number.
    Raises DataError if a target is missing, or a weight is negative or not finite.
    """

    type: ClassVar[str] = "kEuclideanLoss"
    target_sources: ClassVar[tuple[int, ...]] = (1,)
    compares: ClassVar[str] = "values"
    num_sources: ClassVar[tuple[int, int | None]] = (2, 3)
    output_sources: ClassVar[tuple[int, ...] | None] = (0,)
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        prediction, target = self.sources(src)[:2]
        if prod(prediction) != prod(target):
            first, second = self.proto.srclayers[:2]
            hint = f"Let {first!r} have {prod(target)} outputs."
            if 1 in self.targets:
                hint += f" Or set has_label: false, if the net is to reproduce the samples of {second!r}."
            else:
                hint += f" Or set store_conf.target_shape, if {second!r} reads samples with targets of other sizes."
            raise self.problem("prediction and target differ in size", f"{prediction} and {target}", hint)
        if len(src) > 2:
            check_weights(self, src[2], target)
        return prediction

    def forward(self, ctx: Context, *x: Array) -> Array:
        xp = ctx.ops.xp
        target_rows(self, x[0], x[1])
        ctx.difference = ctx.buffer("difference", x[0].shape)
        xp.subtract(x[0], x[1].reshape(x[0].shape), out=ctx.difference)
        flat = ctx.difference.reshape(-1)
        ctx.compared, ctx.sample_weights, ctx.weighted = x[:2], None, ctx.difference
        if len(x) > 2:
            ctx.weighted = self._weighted(ctx, x[1].shape, x[2])
        ctx.loss = 0.5 * xp.dot(flat, ctx.weighted.reshape(-1))
        return x[0]

    def _weighted(self, ctx: Context, shape: Shape, weights: Array) -> Array:
        """w (x - t), in the shape of x. shape: of t."""
        weights = sample_weights(self, ctx, weights, shape[0])
        if weights.size == prod(shape):
            weights = weights.reshape(shape)
        elif weights.size == shape[0]:
            weights = weights.reshape(-1, *[1] * (len(shape) - 1))
        ctx.sample_weights = weights
        difference = ctx.difference.reshape(shape)
        difference[ctx.ops.xp.broadcast_to(weights == 0, shape)] = 0
        return (weights * difference).reshape(ctx.difference.shape)

    def backward(self, ctx: Context, dy: Any) -> Any:
        dx = ctx.buffer("dx", ctx.difference.shape)
        return _for_first(self, ctx.ops.xp.multiply(ctx.weighted, 1 / ctx.step.total_rows, out=dx))

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        return {"loss": Metric(float(ctx.loss), ctx.difference.shape[0])}

    def compared(self, ctx: Context) -> tuple[Array, Array, Array]:
        return *ctx.compared, ctx.sample_weights


def _summed(losses: Array, weights: Array) -> Array:
    return (losses if weights is None else losses * weights).sum(dtype="float64")


def _for_first(layer: LossLayer, dx: Array) -> tuple[Any, ...]:
    """The gradients for the sources, of which only the first gets one."""
    return dx, *(None,) * (len(layer.proto.srclayers) - 1)
