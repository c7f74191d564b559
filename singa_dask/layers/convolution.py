"""Two-dimensional convolution.   B samples, H, W, C height, width, channels; OH, OW output size; O filters."""

from __future__ import annotations

from typing import ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.geometry import window_of
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Form
from singa_dask.ops.arrays import Array


class Convolution(Layer):
    """y[oh, ow] = b + sum over i, j of x[oh stride + i - pad, ow stride + j - pad] W[i, j].

    x: (B, H, W, C), W: (kh, kw, C, O), b: (O,) -> y: (B, OH, OW, O), OH = floor((H + 2 pad - kh) / stride) + 1.

    convolution_conf: num_filters, kernel, pad, stride (or kernel_x, kernel_y, ... for width and height), bias_term,
    workspace_byte_limit (MB for im2col's buffer, if it is used).
    """

    type: ClassVar[str] = "kConvolution"
    conf_field: ClassVar[str | None] = "convolution_conf"
    rowwise: ClassVar[bool] = True
    splits_features: ClassVar[bool] = True

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self.window = window_of(self, shape)
        filters, channels, area = self.conf.num_filters, shape[2], self.window.area
        if filters < 1:
            raise self.problem("convolution_conf.num_filters must be at least 1", filters)
        fans = area * channels, area * filters
        split = self.partition.makes == Form.COLUMNS
        first, last = self.partition.own(filters) if split else (0, filters)
        whole = *self.window.kernel, channels, filters
        self.weight = self.declare("weight", whole, *fans, axis=3 if split else None)
        own = 0 if split else None
        self.bias = self.declare("bias", (filters,), *fans, axis=own) if self.conf.bias_term else None
        self._shape = (*self.window.output_size(*shape[:2]), last - first)
        return self._shape

    def _workspace(self, ctx: Context) -> Array:
        limit_nbytes = self.conf.workspace_byte_limit << 20
        shape = ctx.ops.workspace_shape(ctx.x.shape, self.window, self._shape[-1], limit_nbytes)
        return ctx.scratch.of(ctx.ops, shape)

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x = x[0]
        bias = None if self.bias is None else self.bias.value
        y = ctx.buffer("y", (ctx.x.shape[0], *self._shape))
        return ctx.ops.convolve(ctx.x, self.weight.value, bias, self.window, y, self._workspace(ctx))

    def backward(self, ctx: Context, dy: Array) -> Array:
        dx = None
        if self.partition.splits and ctx.needs_input_grad:  # other workers wait for it
            dx = self._input_gradient(ctx, dy)
            ctx.send_gradient(dx)
        ops, weight, bias, workspace = ctx.ops, self.weight, self.bias, self._workspace(ctx)
        ops.convolve_backward_weight(ctx.x, dy, self.window, weight.grad, workspace, accumulate=weight.claim())
        if bias is not None:
            ops.column_sums(dy.reshape(-1, dy.shape[-1]), bias.grad, accumulate=bias.claim())
        return self._input_gradient(ctx, dy) if dx is None and ctx.needs_input_grad else dx

    def _input_gradient(self, ctx: Context, dy: Array) -> Array:
        dx, workspace = ctx.buffer("dx", ctx.x.shape), self._workspace(ctx)
        return ctx.ops.convolve_backward_input(dy, self.weight.value, self.window, dx, workspace)
