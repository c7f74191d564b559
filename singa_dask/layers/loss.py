"""Losses.   B samples of this worker, T samples of the group's mini-batch (step.total_rows), N classes."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from singa_dask.layers.base import LossLayer
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.labels import class_labels, refuse_targets, target_rows
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Form
from singa_dask.layers.softmax import softmax_of_columns
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
        self._classes = classes
        return (own,)

    def forward(self, ctx: Context, *x: Array) -> Array:
        logits = x[0].reshape(x[0].shape[0], prod(x[0].shape[1:]))
        ctx.x_shape = x[0].shape
        ctx.targets = class_labels(self, ctx, x[0], x[1], self._classes)
        ctx.y = ctx.buffer("y", logits.shape)
        if self.partition.splits:
            ctx.loss, ctx.correct = self._of_columns(ctx, logits)
        else:
            ctx.loss, ctx.correct = ctx.ops.softmax_cross_entropy(logits, ctx.targets, self.conf.topk, ctx.y)
        return ctx.y

    def _of_columns(self, ctx: Context, x: Array) -> tuple[Array, Array]:
        """`softmax_cross_entropy` of the logits of all workers, of which x, (B, own columns), are this worker's."""
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
        return (xp.log(total) - (value - maximum)).sum(dtype="float64"), (among & (value == value)).sum()

    def backward(self, ctx: Context, dy: Any) -> Any:
        dx = ctx.buffer("dx", ctx.y.shape)
        scale = self.conf.scale / ctx.step.total_rows
        if self.partition.splits:
            ctx.ops.xp.multiply(ctx.y, scale, out=dx)
            dx[ctx.ops.xp.arange(len(dx)), ctx.columns] -= scale * ctx.own
            return dx, None
        return ctx.ops.softmax_cross_entropy_backward(ctx.y, ctx.targets, scale, dx).reshape(ctx.x_shape), None

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        rows = ctx.y.shape[0]
        return {"loss": Metric(float(ctx.loss) * self.conf.scale, rows), "accuracy": Metric(float(ctx.correct), rows)}


class EuclideanLoss(LossLayer):
    """loss = sum over a sample of (x - t)^2 / 2; the output is x.   x: (B, ...), t: (B, ...) with as many elements.

    Sources: prediction x, and the layer with the target t: an input layer's target if it has a target_shape, else the
    layer's output. Gradient for x: (x - t) / T, as in SINGA, whose reported loss is twice ours.
    No gradient flows into the target. Metric: loss.
    """

    type: ClassVar[str] = "kEuclideanLoss"
    target_sources: ClassVar[tuple[int, ...]] = (1,)
    num_sources: ClassVar[tuple[int, int | None]] = (2, 2)
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        prediction, target = self.sources(src)
        if prod(prediction) != prod(target):
            first, second = self.proto.srclayers
            hint = f"Let {first!r} have {prod(target)} outputs."
            if 1 not in self.targets:
                hint += f" Or set store_conf.target_shape, if {second!r} reads samples with targets of other sizes."
            raise self.problem("prediction and target differ in size", f"{prediction} and {target}", hint)
        return prediction

    def forward(self, ctx: Context, *x: Array) -> Array:
        xp = ctx.ops.xp
        target_rows(self, x[0], x[1])
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
