"""The fully connected layer.   B samples, I inputs, O outputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from singa_dask.functions.products import matmul
from singa_dask.functions.shapes import IMAGES, flatten
from singa_dask.layers.biased import Biased
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import UNBOUNDED, Array, Bounds


class InnerProduct(Biased):
    """y = x W + b; the source is flattened.   x: (B, ...) -> y: (B, O).

    innerproduct_conf: num_output, bias_term, transpose (store W as (O, I), so that `share_from` can tie it to the W
    of a layer in the opposite direction). `partition_dim: 1` splits the outputs or the inputs over the workers.
    """

    type: ClassVar[str] = "kInnerProduct"
    conf_field: ClassVar[str | None] = "innerproduct_conf"
    rowwise: ClassVar[bool] = True
    step_axes: ClassVar[int] = 2
    splits_features: ClassVar[bool] = True

    @property
    def output_axis(self) -> int:
        """The axis of the weight as it is stored along which its outputs lie."""
        return 0 if self.conf.transpose else 1

    def shardings(self, dim: int, sources: Sequence[Sharding], axis: int | None = None) -> tuple[Sharding, Sharding]:
        """Its inputs are split where their features are split already and it has fewer outputs: the partial sums are
        fewer values than its inputs. A parameter's partition_dim overrides this."""
        if dim != 1 or not self.splits_features:
            return super().shardings(dim, sources, axis)
        asked = [param.HasField("partition_dim") for param in self.proto.param]
        if axis is None and any(asked):  # a bias is split with the outputs
            axis = self.proto.param[0].partition_dim if asked[0] else self.output_axis
        splits_inputs = axis != self.output_axis
        if axis is None:
            splits_inputs = sources[0] is Sharding.FEATURES and self.conf.num_output < prod(self.partition.sources[0])
        return (Sharding.FEATURES, Sharding.PARTIAL) if splits_inputs else (Sharding.REPLICATED, Sharding.FEATURES)

    def setup(self, *src: Shape) -> Shape:
        (local,) = self.sources(src)
        partition = self.partition
        shape = partition.sources[0] if partition.sources else local
        self._lead = self.lead(shape)
        inputs, outputs = shape[-1] if self._lead else prod(shape), self.conf.num_output
        if outputs < 1:
            raise self.problem("innerproduct_conf.num_output must be at least 1", outputs)
        splits_inputs, splits_outputs = partition.makes is Sharding.PARTIAL, partition.makes is Sharding.FEATURES
        axis = 1 - self.output_axis if splits_inputs else self.output_axis if splits_outputs else None
        outer = prod(shape[:-1]) if splits_inputs and not self._lead else 1
        weight_shape = (outputs, inputs) if self.conf.transpose else (inputs, outputs)
        self.weight = self.declare("weight", weight_shape, inputs, outputs, axis=axis, outer=outer)
        own = 0 if splits_outputs else None
        self.bias = self.declare("bias", (outputs,), inputs, outputs, axis=own) if self.conf.bias_term else None
        # Partial sums of the workers are added: one of them adds the bias.
        self._adds_bias = self.bias is not None and not (splits_inputs and partition.rank > 0)
        self._outputs = self.weight.shape[self.output_axis]
        return (*self._lead, self._outputs)

    def _weight(self) -> Array:
        return self.weight.value.T if self.conf.transpose else self.weight.value

    def formula(self, x: Any, weight: Any, bias: Any = None) -> Any:
        y = matmul(flatten(x) if x.ndim in IMAGES else x, weight.T if self.conf.transpose else weight)
        return y if bias is None else y + bias

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x_shape, rows = x[0].shape, x[0].shape[0]
        places = prod(self._lead)
        ctx.x_BI = x[0].reshape(rows * places, prod(x[0].shape[1:]) // places)  # there may be no rows here
        ctx.y = self._product(ctx, ctx.buffer("y", (rows * places, self._outputs)), self._added)
        return self._output_of(ctx.y.reshape(rows, *self._lead, self._outputs))

    def unbounded(self, ctx: Context) -> Array:
        y = self._product(ctx, ctx.ops.empty(ctx.y.shape), UNBOUNDED)
        return y.reshape(ctx.x_shape[0], *self._lead, self._outputs)

    def _product(self, ctx: Context, y: Array, bounds: Bounds | None) -> Array:
        """y = the output within bounds; without its bias if they are None."""
        bias = self.bias.value if self.bias is not None and self._adds_bias and bounds is not None else None
        if bias is None or bounds is None or bounds is UNBOUNDED:
            return ctx.ops.affine(ctx.x_BI, self._weight(), bias, out=y)
        return ctx.ops.add_bias(ctx.ops.affine(ctx.x_BI, self._weight(), None, out=y), bias, bounds)

    def backward(self, ctx: Context, dy: Array) -> Array:
        dx, dy = None, dy.reshape(len(ctx.x_BI), self._outputs)
        self._bounded_gradient(ctx, dy)
        if self.partition.splits and ctx.needs_input_grad:  # other workers wait for it
            dx = self._input_gradient(ctx, dy)
            ctx.send_gradient(dx)
        ops, weight = ctx.ops, self.weight
        left, right = (dy, ctx.x_BI) if self.conf.transpose else (ctx.x_BI, dy)
        ops.gemm(left.T, right, out=weight.grad, accumulate=weight.claim())
        if self._adds_bias:
            self._bias_gradient(ctx, dy)
        return self._input_gradient(ctx, dy) if dx is None and ctx.needs_input_grad else dx

    def _input_gradient(self, ctx: Context, dy: Array) -> Array:
        dx = ctx.ops.gemm(dy, self._weight().T, out=ctx.buffer("dx", ctx.x_BI.shape))
        return dx.reshape(ctx.x_shape)
