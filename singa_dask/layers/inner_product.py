"""The fully connected layer.   B samples, I inputs, O outputs."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


class InnerProduct(Layer):
    """y = x W + b; the source is flattened.   x: (B, ...) -> y: (B, O).

    innerproduct_conf: num_output, bias_term, transpose (store W as (O, I), so that `share_from` can tie it to the W
    of a layer in the opposite direction).
    """

    type: ClassVar[str] = "kInnerProduct"
    conf_field: ClassVar[str | None] = "innerproduct_conf"
    rowwise: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        inputs, outputs = prod(shape), self.conf.num_output
        if outputs < 1:
            raise self.problem("innerproduct_conf.num_output must be at least 1", outputs)
        weight_shape = (outputs, inputs) if self.conf.transpose else (inputs, outputs)
        self.weight = self.declare("weight", weight_shape, inputs, outputs)
        self.bias = self.declare("bias", (outputs,), inputs, outputs) if self.conf.bias_term else None
        return (outputs,)

    def _weight(self) -> Array:
        return self.weight.value.T if self.conf.transpose else self.weight.value

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x_shape, rows = x[0].shape, x[0].shape[0]
        ctx.x_BI = x[0].reshape(rows, -1)
        bias = None if self.bias is None else self.bias.value
        return ctx.ops.affine(ctx.x_BI, self._weight(), bias, out=ctx.buffer("y", (rows, self.conf.num_output)))

    def backward(self, ctx: Context, dy: Array) -> Array:
        ops, weight = ctx.ops, self.weight
        left, right = (dy, ctx.x_BI) if self.conf.transpose else (ctx.x_BI, dy)
        ops.gemm(left.T, right, out=weight.grad, accumulate=weight.claim())
        if self.bias is not None:
            ops.column_sums(dy, self.bias.grad, accumulate=self.bias.claim())
        if not ctx.needs_input_grad:
            return None
        dx = ops.gemm(dy, self._weight().T, out=ctx.buffer("dx", ctx.x_BI.shape))
        return dx.reshape(ctx.x_shape)
