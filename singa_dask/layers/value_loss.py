"""Losses of values.   B samples of this worker, T samples of the group's mini-batch (step.total_rows), K values of a
target."""

from __future__ import annotations

from abc import abstractmethod
from math import prod
from typing import Any, ClassVar

import numpy as np

from singa_dask.errors import DataError
from singa_dask.job.job_pb2 import ErrorLossProto
from singa_dask.layers.base import LossLayer
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.labels import target_rows
from singa_dask.layers.loss import for_first
from singa_dask.layers.param import Shape
from singa_dask.layers.weights import check_weights, same_order, sample_weights
from singa_dask.ops.arrays import Array
from singa_dask.ops.pending import settled


class ValueLoss(LossLayer):
    """loss = c sum over a sample of w f(x, t).   x: (B, ...), t: (B, ...) with as many elements, K a sample,
    and with the positions of x if both have some.

    Sources: prediction x; the layer with the target t: an input layer's target if it has a target_shape, else the
    layer's output; and optionally weights w (else 1): one per sample, (B,) or (B, 1), or a mask with one per value of
    t, or per position of an image. Where w is 0, t may be NaN.
    c: `factor` times the conf's scale, divided by K with `reduction: MEAN`. Gradient for x: c w f'(x, t) / T;
    target and weights get none. Metric: loss, the sum over the samples divided by their number.
    Raises DataError if a target is missing, or a weight is negative or not finite.
    """

    target_sources: ClassVar[tuple[int, ...]] = (1,)
    compares: ClassVar[str] = "values"
    num_sources: ClassVar[tuple[int, int | None]] = (2, 3)
    output_sources: ClassVar[tuple[int, ...] | None] = (0,)
    rowwise: ClassVar[bool] = True
    factor: ClassVar[float] = 1.0

    def setup(self, *src: Shape) -> Shape:
        prediction, target = self.sources(src)[:2]
        if prod(prediction) != prod(target):
            first, second = self.proto.srclayers[:2]
            hint = f"Let {first!r} have {prod(target)} outputs."
            if 1 in self.targets:
                hint += f" Or set has_label: false, if the net is to reproduce the samples of {second!r}."
            else:
                hint += f" Or set store_conf.target_shape, if {second!r} reads samples with targets of other sizes."
                hint += " Labels of classes are no targets: give them as numbers, y.astype(float) or --target."
            raise self.problem("prediction and target differ in size", f"{prediction} and {target}", hint)
        if len(prediction) > 2 and not same_order(prediction, target):
            message = "prediction and target have as many values, and not at the same positions"
            hint = "Give targets with the height and the width of the prediction: transpose them, or set channels."
            raise self.problem(message, f"{prediction} and {target} (height, width, channels)", hint)
        if len(src) > 2:
            check_weights(self, src[2], target)
        self._factor = self.factor
        if self.conf_field is not None:
            averages = self.conf.reduction == ErrorLossProto.MEAN
            self._factor *= self.conf.scale / (prod(target) if averages else 1)
        return prediction

    def forward(self, ctx: Context, *x: Array) -> Array:
        target_rows(self, x[0], x[1])
        ctx.sample_weights = weights = None
        if len(x) > 2:
            ctx.sample_weights = self._spread(ctx, x[1].shape, x[2])
            weights = ctx.ops.xp.broadcast_to(ctx.sample_weights, x[1].shape).reshape(x[0].shape)
        y, ctx.slope, loss = self.compare(ctx, x[0], x[1].reshape(x[0].shape), weights)
        ctx.compared, ctx.loss = (y, x[1]), loss
        return y

    @abstractmethod
    def compare(self, ctx: Context, x: Array, t: Array, weights: Array) -> tuple[Array, Array, Array]:
        """The output, w f'(x, t) in the shape of x, and the sum of w f(x, t). weights: in the shape of x, or None."""

    def _spread(self, ctx: Context, shape: Shape, weights: Array) -> Array:
        """The weights in a shape that can be broadcast to that of the target, `shape`."""
        weights = sample_weights(self, ctx, weights, shape[0])
        if weights.size == prod(shape):
            return weights.reshape(shape)
        return weights.reshape(-1, *[1] * (len(shape) - 1)) if weights.size == shape[0] else weights

    def backward(self, ctx: Context, dy: Any) -> Any:
        dx = ctx.buffer("dx", ctx.slope.shape)
        return for_first(self, ctx.ops.xp.multiply(ctx.slope, self._factor / ctx.step.total_rows, out=dx))

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        return {"loss": Metric(float(self._factor * ctx.ops.to_host(ctx.loss)), ctx.slope.shape[0])}

    def compared(self, ctx: Context) -> tuple[Array, Array, Array]:
        y, t = ctx.compared
        return settled(y, ctx.ops), t, ctx.sample_weights


class ErrorLoss(ValueLoss):
    """A loss of the error e = x - t with f(e) = f'(e) (e - rest f'(e)); the output is x."""

    rest: ClassVar[float] = 0.5

    def compare(self, ctx: Context, x: Array, t: Array, weights: Array) -> tuple[Array, Array, Array]:
        dot = ctx.ops.xp.dot
        error = ctx.ops.xp.subtract(x, t, out=ctx.buffer("error", x.shape))
        if weights is not None:
            error[weights == 0] = 0
        slope = self.slope(ctx, error)
        weighted = slope if weights is None else weights * slope
        loss = dot(error.reshape(-1), weighted.reshape(-1))
        if self.rest:
            loss = loss - self.rest * (loss if slope is error else dot(slope.reshape(-1), weighted.reshape(-1)))
        return x, weighted, loss

    @abstractmethod
    def slope(self, ctx: Context, error: Array) -> Array:
        """f'(e): an array of its own, or e itself."""


class EuclideanLoss(ErrorLoss):
    """loss = sum over a sample of w (x - t)^2 / 2; the output is x.

    Sources and weights as of ValueLoss. Gradient for x: w (x - t) / T, as in SINGA, whose reported loss is twice ours.
    """

    type: ClassVar[str] = "kEuclideanLoss"

    def reads_pending(self) -> bool:
        return len(self.proto.srclayers) == 2

    def compare(self, ctx: Context, x: Array, t: Array, weights: Array) -> tuple[Array, Array, Array]:
        if weights is not None:
            return super().compare(ctx, x, t, weights)
        error = ctx.buffer("error", x.shape)
        return x, error, ctx.ops.half_squares(x, t, error)

    def slope(self, ctx: Context, error: Array) -> Array:
        return error


class MSELoss(EuclideanLoss):
    """loss = mean over a sample of w (x - t)^2, or the sum; the output is x.   mseloss_conf: reduction [MEAN], scale
    [1].

    Sources and weights as of ValueLoss.
    """

    type: ClassVar[str] = "kMSELoss"
    conf_field: ClassVar[str | None] = "mseloss_conf"
    factor: ClassVar[float] = 2.0


class MAELoss(ErrorLoss):
    """loss = mean over a sample of w |x - t|, or the sum; the output is x.   maeloss_conf: reduction [MEAN], scale
    [1].

    Sources and weights as of ValueLoss. Where x = t, the gradient is 0.
    """

    type: ClassVar[str] = "kMAELoss"
    conf_field: ClassVar[str | None] = "maeloss_conf"
    rest: ClassVar[float] = 0.0

    def slope(self, ctx: Context, error: Array) -> Array:
        return ctx.ops.xp.sign(error, out=ctx.buffer("slope", error.shape))


class HuberLoss(ErrorLoss):
    """loss = mean over a sample of w h(x - t), or the sum; the output is x.

        h(e) = e^2 / 2 where |e| <= delta, else delta (|e| - delta / 2)            (Huber 1964)

    huberloss_conf: reduction [MEAN], delta [1], scale [1]. Sources and weights as of ValueLoss.
    """

    type: ClassVar[str] = "kHuberLoss"
    conf_field: ClassVar[str | None] = "huberloss_conf"

    def setup(self, *src: Shape) -> Shape:
        if self.conf.delta <= 0:
            raise self.problem("huberloss_conf.delta must be above 0", self.conf.delta, "Leave it out for 1.")
        return super().setup(*src)

    def slope(self, ctx: Context, error: Array) -> Array:
        return ctx.ops.xp.clip(error, -self.conf.delta, self.conf.delta, out=ctx.buffer("slope", error.shape))


class BCELoss(ValueLoss):
    """loss = -mean over a sample of w (p t log s + (1 - t) log(1 - s)), or the sum, with s = sigmoid(x), the output.

    Binary cross-entropy of logits x with targets t from 0 to 1, one of each class. p: pos_weight, of each value, 1 if
    not given. With label_smoothing e, t is replaced by (1 - e) t + e / 2. Sources and weights as of ValueLoss.
    Gradient for x: c w ((1 - t + p t) s - p t) / T. Metrics: loss; accuracy, the share of values, of those whose
    weight is not 0, that are on the target's side of 1 / 2.
    bceloss_conf: reduction [MEAN], pos_weight, label_smoothing [0], scale [1]. Raises DataError for a target
    outside [0, 1].
    """

    type: ClassVar[str] = "kBCELoss"
    conf_field: ClassVar[str | None] = "bceloss_conf"
    takes_units: ClassVar[bool] = False

    def setup(self, *src: Shape) -> Shape:
        prediction = super().setup(*src)
        given = list(self.conf.pos_weight)
        if given and len(given) != prod(prediction):
            message = f"bceloss_conf.pos_weight must have {prod(prediction)} factors: the layer has as many outputs"
            raise self.problem(message, f"{len(given)} factors", "Give one factor per output, or leave it out.")
        self._positive = np.array(given or [1.0] * prod(prediction))
        return prediction

    def compare(self, ctx: Context, x: Array, t: Array, weights: Array) -> tuple[Array, Array, Array]:
        xp, ops = ctx.ops.xp, ctx.ops
        if weights is not None:
            t = xp.where(weights == 0, xp.zeros_like(t), t)
        if t.size and not (t.min() >= 0 and t.max() <= 1):
            source = self.proto.srclayers[1]
            raise DataError(
                f"layer {self.name!r}: targets must lie in [0, 1]; {source!r} gave values from {float(t.min()):g} to "
                f"{float(t.max()):g}. Use MSELoss for other numbers, and no normalise_target."
            )
        agrees = (x > 0) == (t > 0.5)
        ctx.judged = agrees.size if weights is None else int((weights != 0).sum())
        ctx.correct = float((agrees if weights is None else agrees & (weights != 0)).sum())
        if self.conf.label_smoothing:
            t = t + self.conf.label_smoothing * (0.5 - t)
        y, slope, losses = (ctx.buffer(name, x.shape) for name in ("y", "slope", "losses"))
        rows = len(x), prod(x.shape[1:])
        flat = [array.reshape(rows) for array in (x, xp.ascontiguousarray(t), y, slope, losses)]
        ops.binary_cross_entropy(flat[0], flat[1], ops.asarray(self._positive, ops.dtype), flat[2:])
        if weights is None:
            return y, slope, losses.sum(dtype="float64")
        return y, weights * slope, (weights * losses).sum(dtype="float64")

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        return super().metrics(ctx) | {"accuracy": Metric(ctx.correct, ctx.judged)}
