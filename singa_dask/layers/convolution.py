"""Convolution of images, volumes and sequences, and its transpose.

B samples, H, W, C height, width, channels; OH, OW output size; O filters, G groups. Volumes are (D, H, W, C). A
sequence (L, C) is computed as an image of height 1.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.biased import Biased
from singa_dask.layers.context import Context
from singa_dask.layers.geometry import as_image, check_fits, window_of
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops import Ops
from singa_dask.ops.arrays import UNBOUNDED, Array, Bounds

# Columns are kept from the forward to the backward call where they take at most 1 / KEPT of workspace_byte_limit.
KEPT = 16


class _Convolution(Biased):
    """Base of layers with a sliding window of weights; with groups, they are not split."""

    conf_field: ClassVar[str | None] = "convolution_conf"
    rowwise: ClassVar[bool] = True
    filter_axis: ClassVar[int]  # of the weight, from its end

    @property
    def splits_features(self) -> bool:  # type: ignore[override]
        return bool(self.conf.groups == 1)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        self.window = window_of(self, shape)
        self._image, self._axes, channels = as_image(shape), len(shape) - 1, shape[-1]
        filters, groups = self.conf.num_filters, self.conf.groups
        if filters < 1:
            raise self.problem("convolution_conf.num_filters must be at least 1", filters)
        if groups < 1 or channels % groups or filters % groups:
            message = f"convolution_conf.groups must divide the {channels} channels of its source and the num_filters"
            raise self.problem(message, f"groups: {groups}, num_filters: {filters}")
        size = self._size()
        split = self.partition.makes == Sharding.FEATURES
        kernel = self.window.kernel[1:] if len(shape) == 2 else self.window.kernel
        whole = *kernel, *self._channels(channels, filters, groups)
        fans = self.window.area * channels // groups, self.window.area * filters // groups
        axis = len(whole) + self.filter_axis if split else None
        self.weight = self.declare("weight", whole, *fans, axis=axis)
        own = 0 if split else None
        self.bias = self.declare("bias", (filters,), *fans, axis=own) if self.conf.bias_term else None
        self._output = *size, self.weight.shape[self.filter_axis] if split else filters
        self._shape = self._output[1:] if len(shape) == 2 else self._output
        return self._shape

    def _of_image(self, weight: Array) -> Array:
        """A weight as that of images or volumes."""
        return weight.reshape(*self.window.kernel, *weight.shape[-2:])

    def scratch_size(self, ops: Ops, rows: int) -> int:
        return prod(self._workspace_shape(ops, rows))

    def _workspace_shape(self, ops: Ops, rows: int) -> Shape:
        (image, filters), limit_nbytes = self._columns(), self.conf.workspace_byte_limit << 20
        return ops.workspace_shape((rows, *image), self.window, filters, limit_nbytes, self.conf.groups)

    def _workspace(self, ctx: Context) -> Array:
        return ctx.scratch.of(ctx.ops, self._workspace_shape(ctx.ops, len(ctx.x)))

    def _leaves_columns(self, ops: Ops, rows: int, workspace: Shape) -> bool:
        """Whether its calls of `Ops.convolve` leave the columns of all images in a workspace of this shape."""
        if not ops.launches:
            return False
        (image, filters), groups = self._columns(), self.conf.groups
        weight = *self.window.kernel, image[-1] // groups, filters
        return ops.leaves_columns((rows, *image), weight, self.window, workspace)

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x, ctx.x_shape = x[0].reshape(len(x[0]), *self._image), x[0].shape
        ctx.y = self._slide(ctx, ctx.buffer("y", (len(ctx.x), *self._output)), self._added)
        return self._output_of(ctx.y.reshape(len(ctx.y), *self._shape))

    def unbounded(self, ctx: Context) -> Array:
        y = self._slide(ctx, ctx.ops.empty((len(ctx.x), *self._output)), UNBOUNDED)
        return y.reshape(len(y), *self._shape)

    # What a subclass implements:

    def _slide(self, ctx: Context, y: Array, bounds: Bounds | None) -> Array:
        """y = the output for ctx.x within bounds; without its bias if they are None."""
        raise NotImplementedError

    def _columns(self) -> tuple[Shape, int]:
        """The shape of the images that a window slides over, and how many channels it makes."""
        raise NotImplementedError

    def _size(self) -> Shape:
        """The output's size without channels. Raises ConfigError if the settings do not fit."""
        raise NotImplementedError

    def _channels(self, channels: int, filters: int, groups: int) -> Shape:
        """The last two axes of the weight."""
        raise NotImplementedError


class Convolution(_Convolution):
    """y[oh, ow] = b + sum over i, j of x[oh stride + i dilation - pad, ow stride + j dilation - pad] W[i, j].

    x: (B, H, W, C), W: (kh, kw, C / G, O), b: (O,) -> y: (B, OH, OW, O), OH = floor((H + 2 pad - reach) / stride) + 1
    with reach = (kh - 1) dilation + 1. Of volumes W is (kd, kh, kw, C / G, O), of sequences (k, C / G, O). A filter
    reads the channels of its group.

    convolution_conf: num_filters, kernel, pad, stride, dilation (or kernel_x, kernel_y, kernel_z, ... for width,
    height and depth), groups, bias_term, workspace_byte_limit (MB for im2col's buffer, if it is used; on a GPU, a
    layer keeps one of up to a sixteenth of it for the backward pass).
    """

    type: ClassVar[str] = "kConvolution"
    filter_axis: ClassVar[int] = -1

    def _size(self) -> Shape:
        if self.conf.output_pad:
            hint = "Leave it out: only a kTransposedConvolution reads it."
            raise self.problem("convolution_conf.output_pad is not read", self.conf.output_pad, hint)
        check_fits(self, self.window, self._image[:-1])
        return self.window.output_size(*self._image[:-1])

    def _channels(self, channels: int, filters: int, groups: int) -> Shape:
        return channels // groups, filters

    def _columns(self) -> tuple[Shape, int]:
        return self._image, self._output[-1]

    def reads_pending(self) -> bool:  # by im2col
        return self.window.area > 1 or max(self.window.stride) > 1 or any(self.window.pad)

    def kept_size(self, ops: Ops, rows: int) -> int:
        if not ops.launches or self.partition.splits:
            return 0
        shape, limit_nbytes = self._workspace_shape(ops, rows), self.conf.workspace_byte_limit << 20
        kept = prod(shape) * ops.dtype.itemsize <= limit_nbytes // KEPT and self._leaves_columns(ops, rows, shape)
        return prod(shape) if kept else 0

    def forward(self, ctx: Context, *x: Array) -> Array:
        keeps = ctx.step.phase & Phase.kTrain and self.kept_size(ctx.ops, len(x[0]))
        ctx.columns = ctx.buffer("columns", self._workspace_shape(ctx.ops, len(x[0]))) if keeps else None
        return super().forward(ctx, *x)

    def _slide(self, ctx: Context, y: Array, bounds: Bounds | None) -> Array:
        bias = None if bounds is None or self.bias is None else self.bias.value
        weight, own = self._of_image(self.weight.value), None if bounds is UNBOUNDED else bias
        ctx.ops.convolve(ctx.x, weight, bias if own is None else None, self.window, y, self._workspace(ctx))
        if own is not None and bounds is not None:
            ctx.ops.add_bias(y.reshape(-1, y.shape[-1]), own, bounds)
        return y

    def _workspace(self, ctx: Context) -> Array:
        return super()._workspace(ctx) if ctx.columns is None else ctx.columns

    def backward(self, ctx: Context, dy: Array) -> Array:
        dx, dy = None, dy.reshape(len(dy), *self._output)
        ops, rows, dweight = ctx.ops, dy.reshape(-1, dy.shape[-1]), self._of_image(self.weight.grad)
        self._bounded_gradient(ctx, rows)
        if self.partition.splits and ctx.needs_input_grad:  # other workers wait for it
            dx = self._input_gradient(ctx, dy)
            ctx.send_gradient(dx)
        more = self.weight.claim()
        if ctx.columns is None:
            ops.convolve_backward_weight(ctx.x, dy, self.window, dweight, self._workspace(ctx), accumulate=more)
        else:
            ops.columns_backward_weight(ctx.columns, dy, self.conf.groups, dweight, accumulate=more)
        self._bias_gradient(ctx, rows)
        return self._input_gradient(ctx, dy) if dx is None and ctx.needs_input_grad else dx

    def _input_gradient(self, ctx: Context, dy: Array) -> Array:
        weight, workspace = self._of_image(self.weight.value), self._workspace(ctx)
        if ctx.onto is not None:
            ctx.ops.add_input_gradient(dy, weight, self.window, ctx.onto.reshape(ctx.x.shape), workspace)
            return ctx.onto
        dx = ctx.buffer("dx", ctx.x.shape)
        return ctx.ops.convolve_backward_input(dy, weight, self.window, dx, workspace).reshape(ctx.x_shape)


class TransposedConvolution(_Convolution):
    """y = b + the transpose of a convolution: x[h, w] W[i, j] is added to y[h stride + i dilation - pad, w stride + j
    dilation - pad].   x: (B, H, W, C), W: (kh, kw, O / G, C), b: (O,) -> y: (B, OH, OW, O),
    OH = (H - 1) stride - 2 pad + (kh - 1) dilation + 1 + output_pad.

    Volumes, sequences and convolution_conf as for Convolution, and output_pad, which is less than the stride.
    """

    type: ClassVar[str] = "kTransposedConvolution"
    filter_axis: ClassVar[int] = -2

    def _size(self) -> Shape:
        axes, extra = len(self._image) - 1, self.conf.output_pad
        more = (0,) * (axes - self._axes) + (extra,) * self._axes
        if extra < 0 or any(e >= s for e, s in zip(more, self.window.stride, strict=True) if e):
            raise self.problem("convolution_conf.output_pad must lie between 0 and stride - 1", extra)
        by_axis = zip(self._image, self.window.reach, self.window.stride, self.window.pad, more, strict=False)
        size = tuple((n - 1) * s - 2 * p + r + e for n, r, s, p, e in by_axis)
        if min(size) < 1:
            message = f"pad {self.window.pad} leaves nothing of an output of {size} for images {self._image[:-1]}"
            raise self.problem(message, hint="Use less padding.")
        return size

    def _channels(self, channels: int, filters: int, groups: int) -> Shape:
        return filters // groups, channels

    def _columns(self) -> tuple[Shape, int]:
        return self._output, self._image[-1]

    def _slide(self, ctx: Context, y: Array, bounds: Bounds | None) -> Array:
        weight, bias = self._of_image(self.weight.value), None if self.bias is None else self.bias.value
        own = UNBOUNDED if bounds is None else bounds
        return ctx.ops.convolve_transposed(ctx.x, weight, bias, self.window, y, self._workspace(ctx), own)

    def backward(self, ctx: Context, dy: Array) -> Array:
        dy, ops, dx = dy.reshape(len(dy), *self._output), ctx.ops, None
        rows = dy.reshape(-1, dy.shape[-1])
        self._bounded_gradient(ctx, rows)
        if ctx.needs_input_grad:
            dx, weight = ctx.buffer("dx", ctx.x.shape), self._of_image(self.weight.value)
            dx = ops.convolve(dy, weight, None, self.window, dx, self._workspace(ctx)).reshape(ctx.x_shape)
            if self.partition.splits:  # other workers wait for it
                ctx.send_gradient(dx)
        dweight, workspace, more = self._of_image(self.weight.grad), self._workspace(ctx), self.weight.claim()
        if dx is not None and self._leaves_columns(ops, len(dy), workspace.shape):
            ops.columns_backward_weight(workspace, ctx.x, self.conf.groups, dweight, accumulate=more)
        else:
            ops.convolve_backward_weight(dy, ctx.x, self.window, dweight, workspace, accumulate=more)
        self._bias_gradient(ctx, rows)
        return dx
