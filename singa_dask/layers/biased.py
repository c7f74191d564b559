"""Layers that add a bias to products."""

from __future__ import annotations

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Param
from singa_dask.ops import Ops
from singa_dask.ops.arrays import UNBOUNDED, Array, Bounds
from singa_dask.ops.pending import Pending


class Biased(Layer):
    """Base of layers whose output is y = product + bias; ctx.y is y.

    A net sets the following where calls are launches: elsewhere the bias is added where the product is written.
    bounds: where only a ReLU reads y, those of its output, which the layer then has itself. leaves_bias: where the one
    layer that reads the output adds the bias as it reads: then the output is Pending, and ctx.y the product.
    """

    bias: Param | None
    bounds: Bounds = UNBOUNDED
    leaves_bias: bool = False

    def rectifies(self, ops: Ops) -> bool:
        return ops.launches and self.bias is not None

    def unbounded(self, ctx: Context) -> Array:
        """The output of the last forward call without the bounds."""
        raise NotImplementedError

    @property
    def _added(self) -> Bounds | None:
        """The bounds of the product with its bias; None where this is left to the reader."""
        return None if self.leaves_bias else self.bounds

    def _output_of(self, y: Array) -> Array:
        """The layer's output, of ctx.y."""
        return Pending(y, self.bias.value, self.bounds) if self.leaves_bias and self.bias is not None else y

    def _bounded_gradient(self, ctx: Context, dy: Array) -> None:
        """Where the layer has bounds, turns the gradient for y into that for the product, and writes that of the
        bias; before dy is read.   dy: (rows, O)."""
        if self.bias is not None and self.bounds is not UNBOUNDED:
            y, more, own = ctx.y.reshape(dy.shape), self.bias.claim(), self.bias.value if self.leaves_bias else None
            ctx.ops.add_bias_backward(y, dy, self.bounds, self.bias.grad, accumulate=more, b=own)

    def _bias_gradient(self, ctx: Context, dy: Array) -> None:
        """Where it has none, writes the gradient of the bias.   dy: (rows, O)."""
        if self.bias is not None and self.bounds is UNBOUNDED:
            ctx.ops.column_sums(dy, self.bias.grad, accumulate=self.bias.claim())
