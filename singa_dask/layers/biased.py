"""Layers that add a bias to products."""

from __future__ import annotations

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Param
from singa_dask.ops import Ops
from singa_dask.ops.arrays import UNBOUNDED, Array, Bounds


class Biased(Layer):
    """Base of layers whose output is y = product + bias; ctx.y is y.

    bounds: set by a net where only a ReLU reads y: those of its output, which the layer then has itself. Only where
    calls are launches: elsewhere the pass that adds the bias is not one of its own.
    """

    bias: Param | None
    bounds: Bounds = UNBOUNDED

    def rectifies(self, ops: Ops) -> bool:
        return ops.launches and self.bias is not None

    def unbounded(self, ctx: Context) -> Array:
        """The output of the last forward call without the bounds."""
        raise NotImplementedError

    def _bounded_gradient(self, ctx: Context, dy: Array) -> None:
        """Where the layer has bounds, turns the gradient for y into that for the product, and writes that of the
        bias; before dy is read.   dy: (rows, O)."""
        if self.bias is not None and self.bounds is not UNBOUNDED:
            y, more = ctx.y.reshape(dy.shape), self.bias.claim()
            ctx.ops.add_bias_backward(y, dy, self.bounds, self.bias.grad, accumulate=more)

    def _bias_gradient(self, ctx: Context, dy: Array) -> None:
        """Where it has none, writes the gradient of the bias.   dy: (rows, O)."""
        if self.bias is not None and self.bounds is UNBOUNDED:
            ctx.ops.column_sums(dy, self.bias.grad, accumulate=self.bias.claim())
