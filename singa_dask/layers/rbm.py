"""The two layers of a restricted Boltzmann machine.   B rows, V visible units, H hidden units.

    E(v, h) = -v W h' - v a' - h b'          (Smolensky 1986; Hinton 2002)

W: (V, H), a: (V,), b: (H,). Forward computes the positive phase, v and p(h | v); `algorithms/cd.py` runs the chain.
An InnerProduct from V to H has a weight of the same shape, so a net can reuse the W and b of an RBM.

When an RBM is split, each worker has its share of the hidden units, with their columns of W and elements of b. All
workers have the visible units and a. h W' is then a sum over the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context, Metric
from singa_dask.layers.param import Param, Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array
from singa_dask.ops.random import Columns, stream_key


class RBM(Layer):
    """Base of both layers.   rbm_conf: hdim (H), bias_term, gaussian (linear units with unit variance)."""

    known_by_type: ClassVar[bool] = True
    conf_field: ClassVar[str | None] = "rbm_conf"
    weight: Param
    bias: Param | None

    def follow(self, before: Sequence[Any]) -> tuple[Layer, ...]:
        hint = 'RBMVis("vis", ["data", "hid"]), RBMHid("hid", "vis").'
        raise self.problem("the two layers of an RBM read each other: name their srclayers", hint=hint)

    def shardings(self, dim: int, sources: Sequence[Sharding], axis: int | None = None) -> tuple[Sharding, Sharding]:
        """Both layers of a split RBM read all rows of all visible units. The hidden layer makes its share of the
        hidden units.

        Raises ConfigError if the job splits one with fewer hidden units than workers.
        """
        if dim == 1 and self.conf.hdim >= self.partition.size:
            return Sharding.REPLICATED, Sharding.FEATURES if self.splits_features else Sharding.REPLICATED
        if self.proto.partition_dim == 1:
            message = f"cannot be split over {self.partition.size} workers: it has {self.conf.hdim} hidden units"
            raise self.problem(message, "partition_dim: 1", "Set partition_dim: 0 for both layers of the RBM.")
        return Sharding.BATCH, Sharding.BATCH

    @property
    def split(self) -> bool:
        """Whether this worker has only its share of the hidden units."""
        return self.partition.reads is Sharding.REPLICATED and self.partition.size > 1

    def _declare(self, visible: int, units: int, bias_axis: int | None) -> None:
        hidden = self.conf.hdim
        if hidden < 1:
            raise self.problem("rbm_conf.hdim must be at least 1", hidden)
        weight_axis, bias_axis = (1, bias_axis) if self.split else (None, None)
        self.weight = self.declare("weight", (visible, hidden), visible, hidden, axis=weight_axis)
        self.bias = None
        if self.conf.bias_term:
            self.bias = self.declare("bias", (units,), visible, hidden, axis=bias_axis)

    def _mean(self, ctx: Context, x: Array, weight: Array, key: str, partial: bool = False) -> Array:
        """The units' expected values, given those of the other layer. partial: whether x is this worker's share."""
        bias = None if self.bias is None or (partial and self.partition.rank > 0) else self.bias.value
        mean = ctx.ops.affine(x, weight, bias, out=ctx.buffer(key, (x.shape[0], weight.shape[1])))
        if partial:
            mean = ctx.group.sum(mean)
        return mean if self.conf.gaussian else ctx.ops.sigmoid(mean, mean)

    def backward(self, ctx: Context, dy: Any) -> Any:
        raise self.problem("no gradient goes through an RBM", hint="Train it with train_one_batch { alg: kCD }.")


class RBMVis(RBM):
    """The visible units: forward passes on its source, flattened.   x: (B, ...) of V elements -> (B, V).

    Metric: squared_error, the sum over a row of (v - reconstruction)^2.
    """

    type: ClassVar[str] = "kRBMVis"

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        visible = prod(shape)
        self._declare(visible, visible, None)
        return (visible,)

    @property
    def sent(self) -> tuple[float, float]:
        """The reconstruction of one step of Gibbs sampling, summed over the workers."""
        return (2 * self.partition.others * prod(self.partition.sources[0]) if self.split else 0.0), 0.0

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.error = None
        ctx.data = x[0].reshape(x[0].shape[0], -1)
        return ctx.data

    def reconstruct(self, ctx: Context, hidden: Array) -> Array:
        """E(v | h): sigmoid(h W' + a), or h W' + a for gaussian units. Not sampled (Hinton & Salakhutdinov 2006)."""
        return self._mean(ctx, hidden, self.weight.value.T, "reconstruction", partial=self.split)

    def measure(self, ctx: Context, reconstruction: Array) -> None:
        """Store the squared error of the reconstruction."""
        difference = (ctx.data - reconstruction).reshape(-1)
        ctx.error = ctx.ops.xp.dot(difference, difference)

    def metrics(self, ctx: Context) -> dict[str, Metric]:
        return {} if ctx.error is None else {"squared_error": Metric(float(ctx.error), ctx.data.shape[0])}


class RBMHid(RBM):
    """The hidden units: forward computes p(h = 1 | v), or the mean for gaussian units.   v: (B, V) -> (B, H)."""

    type: ClassVar[str] = "kRBMHid"
    splits_features: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self._declare(prod(shape), self.conf.hdim, 0)
        return (self.weight.shape[1],)

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.mean = self._mean(ctx, x[0].reshape(x[0].shape[0], -1), self.weight.value, "positive")
        return ctx.mean

    def infer(self, ctx: Context, visible: Array) -> Array:
        """E(h | v) of the negative phase."""
        return self._mean(ctx, visible, self.weight.value, "negative")

    def sample(self, ctx: Context, mean: Array, number: int) -> Array:
        """h ~ p(h | v): the `number`-th draw of this step, a function of (seed, step, layer, row, unit)."""
        step, out, hidden, unit = ctx.step, ctx.buffer("sample", mean.shape), self.conf.hdim, 0
        key = stream_key(step.seed, step.number, f"{self.name}/{step.phase}/{number}")
        draw = ctx.ops.normal if self.conf.gaussian else ctx.ops.bernoulli
        if self.split:
            unit, _ = self.partition.own(hidden)
        return draw(mean, key, step.first_row * hidden + unit, out, Columns(mean.shape[1], hidden))
