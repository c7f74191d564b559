"""Losses of classes.   B samples of this worker, T samples of the group's mini-batch (step.total_rows), N classes."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np

from singa_dask.errors import DataError
from singa_dask.layers.base import LossLayer
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.labels import check_classes, class_labels, looks_at_values, target_rows, without_ignored
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.layers.softmax import softmax_of_columns
from singa_dask.layers.weights import check_weights, sample_weights
from singa_dask.ops.arrays import Array

# By how much the sum of shares may miss 1.
_ADD_UP = 1e-3


class SoftmaxLoss(LossLayer):
    """loss = -scale sum_j q_j log softmax(x)_j,  q = (1 - label_smoothing) onehot(label) + label_smoothing / N; the
    output is softmax(x).   x: (B, ...) of N elements -> (B, N).   (Label smoothing: Szegedy et al. 2016.)

    Labels of positions, such as the pixels of an image: x: (B, ..., N), labels (B, ...) -> (B, ..., N). The loss of a
    row is the mean over its P positions; below, each position is then a row, and T counts P times as many.

    If the source has targets of the shape of x in place of labels, these are q, the share of each class, before
    label_smoothing. The class with the largest share is the label that accuracy compares.

    Sources: x, the layer with the labels, and optionally one with a weight per row, (B,) or (B, 1), or per position.
    A row's loss is multiplied by its weight and by the class_weight of its label; both are 1 if not given. The weight
    is 0 where the label is ignore_label, which may be any number.
    Gradient for x: scale weight (softmax(x) sum_j q_j - q) / T; the weights and q get none.
    Metrics: loss, the sum of the weighted losses divided by the number of rows; accuracy, the fraction of rows, which
    count by their weights, whose label is among the topk largest outputs.
    softmaxloss_conf: topk, scale, class_weight, label_smoothing, ignore_label. Raises DataError if a weight is
    negative or not finite, a label no class, or shares negative or of another sum than 1.
    """

    type: ClassVar[str] = "kSoftmaxLoss"
    conf_field: ClassVar[str | None] = "softmaxloss_conf"
    compares: ClassVar[str] = "classes"
    takes_shares: ClassVar[bool] = True
    takes_units: ClassVar[bool] = False
    label_sources: ClassVar[tuple[int, ...]] = (1,)
    num_sources: ClassVar[tuple[int, int | None]] = (2, 3)
    output_sources: ClassVar[tuple[int, ...] | None] = (0,)
    undivided_sources: ClassVar[tuple[int, ...]] = (2,)
    rowwise: ClassVar[bool] = True

    @property
    def takes(self) -> tuple[Sharding, ...]:  # type: ignore[override]
        # The columns of images are channels, which are not consecutive classes.
        vectors = self.partition.sources and len(self.partition.sources[0]) == 1 and not self.targets
        return (Sharding.BATCH, Sharding.FEATURES) if vectors else (Sharding.BATCH,)

    @property
    def sent(self) -> tuple[float, float]:
        others, sums = self.partition.size - 1, 1 + (self.conf.label_smoothing > 0)
        return (3.0 * others + 2 * sums * self.partition.others if self.partition.splits else 0.0), 0.0

    def setup(self, *src: Shape) -> Shape:
        scores, positions = self.sources(src)[0], self.targets.get(1)
        shape: Shape = (prod(scores),)
        self._places, self._reads_shares = 1, positions == scores
        if self._reads_shares:
            shape, self._places, positions = scores, prod(scores[:-1]), scores[:-1] or None
            if self.conf.class_weight or self.conf.HasField("ignore_label"):
                hint = "Give weights as a third source in place of class_weight and ignore_label."
                raise self.problem("its source has a share of each class, and no labels", hint=hint)
        elif positions is not None:
            if positions not in (scores[:-1], (*scores[:-1], 1)):
                message = "needs the scores of each class at each position of the labels"
                hint = (
                    "Let a Convolution with kernel: 1, or an InnerProduct of each step, have an output for each class."
                )
                raise self.problem(message, f"scores {scores}, labels {positions}", hint)
            shape, self._places = scores, prod(positions)
        elif len(scores) == 2 and scores[0] > 1:
            hint = f"Take a step, such as x[:, -1], or a mean. Labels of each step have label_shape: [{scores[0]}]."
            raise self.problem("has scores of each step and one label a sample", f"scores {scores}, labels ()", hint)
        classes = self.partition.sources[0][0] if self.partition.splits else shape[-1]
        if not 1 <= self.conf.topk <= classes:
            raise self.problem(f"softmaxloss_conf.topk must lie between 1 and {classes}", self.conf.topk)
        if len(src) > 2:
            check_weights(self, src[2], positions)
        factors = self.conf.class_weight
        if factors and len(factors) != classes:
            hint = "Give one factor per class, in the order of the classes, or leave it out."
            message = f"softmaxloss_conf.class_weight must have {classes} factors: the layer has {classes} outputs"
            raise self.problem(message, f"{len(factors)} factors", hint)
        self._factors = np.array(factors) if factors else None
        self._classes, self._smoothing, self._width = classes, self.conf.label_smoothing, shape[-1]
        self._by_channel = scores[-1:] == shape[-1:]
        return shape

    def reads_pending(self) -> bool:
        weighted = len(self.proto.srclayers) > 2 or self._factors is not None or self.conf.HasField("ignore_label")
        return self._by_channel and not (weighted or self._reads_shares or self.partition.splits)

    def forward(self, ctx: Context, *x: Array) -> Array:
        logits = x[0].reshape(len(x[0]) * self._places, self._width)
        ctx.x_shape = x[0].shape
        labels, counts = x[1], None
        if self._reads_shares:
            target_rows(self, x[0], labels)
            ctx.shares = ctx.ops.asarray(labels, ctx.ops.dtype).reshape(logits.shape)
            labels = ctx.shares.argmax(axis=1)
        if self.conf.HasField("ignore_label") and labels is not None:
            labels, counts = without_ignored(ctx, labels, self.conf.ignore_label)
        weighted = counts is not None or len(x) > 2 or self._factors is not None
        within = looks_at_values(ctx) or weighted or self.partition.splits
        ctx.targets = class_labels(self, ctx, logits, labels, self._classes, within=within)
        ctx.y = ctx.buffer("y", logits.shape)
        ctx.sample_weights = self._of_positions(ctx, x[2], len(x[0])) if len(x) > 2 else None
        if counts is not None:
            ctx.sample_weights = counts if ctx.sample_weights is None else counts * ctx.sample_weights
        ctx.weights = self._weights(ctx)
        if self.partition.splits:
            ctx.numbers = self._of_columns(ctx, logits)
        elif self._reads_shares:
            ctx.numbers = self._of_shares(ctx, logits)
        else:
            ctx.numbers = ctx.ops.softmax_cross_entropy(logits, ctx.targets, self.conf.topk, ctx.y, self._smoothing)
            if ctx.weights is not None:
                loss, correct = ctx.numbers
                loss = _summed(self._losses(ctx, logits), ctx.weights)
                if ctx.sample_weights is not None:
                    correct = _summed(self._hits(ctx, logits), ctx.sample_weights)
                ctx.numbers = loss, correct
        return ctx.y if self._places == 1 else ctx.y.reshape(ctx.x_shape)

    def _of_positions(self, ctx: Context, weights: Array, rows: int) -> Array:
        """The weights of samples or positions, one for each row of the scores."""
        weights = sample_weights(self, ctx, weights, rows)
        by_row = weights.reshape(rows, prod(weights.shape[1:]))
        return ctx.ops.xp.broadcast_to(by_row, (rows, self._places)).reshape(-1)

    def _hits(self, ctx: Context, x: Array) -> Array:
        """Whether the label of each row is among the topk largest outputs, (B,)."""
        xp, labels = ctx.ops.xp, ctx.targets
        value = x[xp.arange(len(x)), labels]
        if self.conf.topk == 1:
            return (x.argmax(axis=1) == labels) & (value == value)
        larger = _larger(xp, x, value, xp.arange(self._classes), labels)
        return (larger.sum(axis=1) < self.conf.topk) & (value == value)

    def _weights(self, ctx: Context) -> Array:
        """The factor for each row's loss, (B,); None for 1."""
        if self._factors is None:
            return ctx.sample_weights
        weights = ctx.ops.asarray(self._factors, ctx.ops.dtype)[ctx.targets]
        return weights if ctx.sample_weights is None else weights * ctx.sample_weights

    def _losses(self, ctx: Context, x: Array) -> Array:
        """The loss of each row, (B,), after softmax(x): the largest output is exp(0) / sum."""
        value = self._smoothed(x[ctx.ops.xp.arange(len(x)), ctx.targets], x.mean(axis=1))
        return x.max(axis=1) - value - ctx.ops.xp.log(ctx.y.max(axis=1))

    def _smoothed(self, value: Array, mean: Array) -> Array:
        """sum_j q_j x_j of each row, from x[label] and the mean of x."""
        return value + self._smoothing * (mean - value) if self._smoothing else value

    def _of_shares(self, ctx: Context, x: Array) -> tuple[Array, Array]:
        """The weighted loss and the number of correct rows; NaN for shares that are none."""
        xp, q = ctx.ops.xp, ctx.shares
        ctx.total = q.sum(axis=1, keepdims=True)
        if looks_at_values(ctx):
            self._check_shares(q)
        else:
            right = (q >= 0) & (abs(ctx.total - 1) <= _ADD_UP)
            q = xp.where(right, q, xp.asarray(np.nan, x.dtype))
        ctx.q = self._smoothed(q, ctx.total / self._classes)
        ctx.ops.softmax(x, ctx.y)
        # As in _losses: the largest output is exp(0) / sum.
        logs = x - x.max(axis=1, keepdims=True) + xp.log(ctx.y.max(axis=1, keepdims=True))
        losses = _summed(-(ctx.q * logs).sum(axis=1), ctx.weights)
        return losses, _summed(self._hits(ctx, x), ctx.sample_weights)

    def _check_shares(self, shares: Array) -> None:
        sums = shares.sum(axis=1)
        if not ((shares >= 0).all() and (abs(sums - 1) <= _ADD_UP).all()):
            raise DataError(
                f"layer {self.proto.srclayers[1]!r}: the shares of classes must add up to 1, and none be negative. "
                f"Received: {float(shares.min()):g} to {float(shares.max()):g}, sums up to {float(sums.max()):g}. "
                "Leave normalise_target out. For several classes of a sample, use BCELoss."
            )

    def _of_columns(self, ctx: Context, x: Array) -> tuple[Array, Array]:
        """The weighted loss and the number of correct rows, from the logits of all workers. x: (B, own columns)."""
        xp, group, labels = ctx.ops.xp, ctx.group, ctx.targets.astype("int64")
        bounds, rows = xp.asarray(self.partition.bounds(self._classes)), xp.arange(len(labels))
        first, last = self.partition.own(self._classes)
        ctx.own, ctx.columns = (first <= labels) & (labels < last), xp.clip(labels - first, 0, last - first - 1)
        maximum, total, logits = softmax_of_columns(ctx, x, ctx.y, x[rows, ctx.columns])
        value = logits[xp.searchsorted(bounds, labels, side="right") - 1, 0, rows]
        larger = _larger(xp, x, value, xp.arange(first, last), labels)
        among = group.sum(larger.sum(axis=1).astype(x.dtype)) < self.conf.topk
        mean = group.sum(x.sum(axis=1)) / self._classes if self._smoothing else value
        losses = xp.log(total) - (self._smoothed(value, mean) - maximum)
        return _summed(losses, ctx.weights), _summed(among & (value == value), ctx.sample_weights)

    def backward(self, ctx: Context, dy: Any) -> Any:
        dx = ctx.buffer("dx", ctx.y.shape)
        scale = self.conf.scale / (ctx.step.total_rows * self._places)
        if self.partition.splits:
            ctx.ops.xp.multiply(ctx.y, scale, out=dx)
            dx[ctx.ops.xp.arange(len(dx)), ctx.columns] -= scale * (1 - self._smoothing) * ctx.own
            if self._smoothing:
                dx -= scale * self._smoothing / self._classes
        elif self._reads_shares:
            ctx.ops.xp.subtract(ctx.y * ctx.total, ctx.q, out=dx)
            dx *= scale
        else:
            ctx.ops.softmax_cross_entropy_backward(ctx.y, ctx.targets, scale, dx, self._smoothing)
        if ctx.weights is not None:
            dx *= ctx.weights[:, None]
        return for_first(self, dx.reshape(ctx.x_shape))

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        judged = len(ctx.y) if ctx.sample_weights is None else float(ctx.sample_weights.sum(dtype="float64"))
        loss, correct = ctx.ops.floats(ctx.numbers)
        return {
            "loss": Metric(loss * self.conf.scale / self._places, ctx.x_shape[0]),
            "accuracy": Metric(correct, judged),
        }

    def check(self, ctx: Context) -> None:
        if self._reads_shares:
            self._check_shares(ctx.shares)
        check_classes(self, ctx.targets, self._classes)

    def compared(self, ctx: Context) -> tuple[Array, Array, Array]:
        return ctx.y, ctx.targets, ctx.sample_weights


def _larger(xp: Any, x: Array, value: Array, places: Array, labels: Array) -> Array:
    """Which outputs rank before that of the label, as count_topk ranks them.   x: (B, N); places: of its columns"""
    return (x > value[:, None]) | ((x == value[:, None]) & (places < labels[:, None]))


def _summed(losses: Array, weights: Array) -> Array:
    return (losses if weights is None else losses * weights).sum(dtype="float64")


def for_first(layer: LossLayer, dx: Array) -> tuple[Any, ...]:
    """The gradients for the sources, of which only the first gets one."""
    return dx, *(None,) * (len(layer.proto.srclayers) - 1)
