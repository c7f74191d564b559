"""The top classes, and their accuracy.   B samples, N classes."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from singa_dask.layers.base import OutputLayer
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.labels import class_labels, refuse_targets
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


class ArgSort(OutputLayer):
    """y = indices of the topk largest elements, the largest first.   x: (B, ...) of N elements -> y: (B, topk).

    argsort_conf: topk.
    """

    type: ClassVar[str] = "kArgSort"
    conf_field: ClassVar[str | None] = "argsort_conf"
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        self._classes = prod(self.sources(src)[0])
        if not 1 <= self.conf.topk <= self._classes:
            raise self.problem(f"argsort_conf.topk must lie between 1 and {self._classes}", self.conf.topk)
        return (self.conf.topk,)

    def forward(self, ctx: Context, *x: Array) -> Array:
        return ctx.ops.argsort_topk(x[0].reshape(x[0].shape[0], self._classes), self.conf.topk)


class Accuracy(ArgSort):
    """ArgSort that also measures accuracy. Sources: x and the layer with the labels.

    Metric: accuracy, the fraction of rows whose label is among the topk largest.   argsort_conf: topk.
    """

    type: ClassVar[str] = "kAccuracy"
    label_sources: ClassVar[tuple[int, ...]] = (1,)
    num_sources: ClassVar[tuple[int, int | None]] = (2, 2)

    def setup(self, *src: Shape) -> Shape:
        refuse_targets(self)
        return super().setup(*src)

    def forward(self, ctx: Context, *x: Array) -> Array:
        scores = x[0].reshape(x[0].shape[0], self._classes)
        labels = class_labels(self, ctx, x[0], x[1], self._classes)
        ctx.correct, ctx.rows = ctx.ops.count_topk(scores, labels, self.conf.topk), scores.shape[0]
        return super().forward(ctx, scores)

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        return {"accuracy": Metric(float(ctx.correct), ctx.rows)}
