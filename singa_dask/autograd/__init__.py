"""Layers on arrays, and gradients of what they computed, for training loops of one's own. SINGA 3.x's names.

    class CNN:
        def __init__(self):
            self.conv1 = autograd.Conv2d(1, 20, 5)
            self.linear1 = autograd.Linear(20 * 12 * 12, 10)

        def forward(self, x):
            y = autograd.relu(self.conv1(x))
            return self.linear1(autograd.flatten(y))

    autograd.training = True
    loss = autograd.softmax_cross_entropy(model.forward(tx), ty)
    for p, g in autograd.backward(loss): ...

The classes make layers of singa_dask.layers, and the functions call such layers. So both also work on layers, in the
`forward` of a Module that becomes a net. On arrays, a layer raises ConfigError where these have other channels or
features than its in_channels, in_features, num_features or input_size.

training: whether calls are remembered for `backward`; batch normalisation and dropout follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from singa_dask import layers, tensor
from singa_dask.autograd.tape import Function, Tape, computed, parameters_of, restart_names
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.layers.module import Module
from singa_dask.tensor import Parameter, Tensor

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AvgPool2d",
    "BatchNorm2d",
    "Conv2d",
    "Dropout",
    "Layer",
    "Linear",
    "MaxPool2d",
    "ReLU",
    "SeparableConv2d",
    "add",
    "add_bias",
    "backward",
    "cat",
    "computed",
    "div",
    "dropout",
    "flatten",
    "gelu",
    "matmul",
    "mean_square_error",
    "mul",
    "negative",
    "parameters_of",
    "relu",
    "reshape",
    "set_seed",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy",
    "split",
    "sub",
    "tanh",
]

training = False
Layer = Module  # SINGA's base class of layers that hold layers
_seed = 0


def seed() -> int:
    """Of initial parameters and of dropout."""
    return _seed


def set_seed(number: int) -> None:
    """Seed the initial parameters of layers that are called for the first time from now on, dropout, and what tensors
    draw.

    Layers without a name are numbered from 1 again, since initial parameters depend on names.
    """
    global _seed
    _seed = number
    tensor.set_seed(number)
    restart_names()


def backward(loss: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The parameters from which a loss was computed, each with its gradient of the mean loss over the rows. Tensors
    that were made with stores_grad=True are parameters too.

    A pair comes as soon as its gradient is complete: the last layer's first. The gradient is valid until the next
    backward pass. Raises TrainingError if the loss has gone backward already.
    """
    tape = Tape(loss)
    for param in tape.backward(tape.rows):
        of = tape.tensors[param] if param in tape.tensors else Parameter(param, loss.device)
        yield of, Tensor.made(param.grad, loss.device, None, requires_grad=False)


# Layers


def Conv2d(
    in_channels: int,
    out_channels: int,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    group: int = 1,
    bias: bool = True,
) -> layers.Layer:
    """A convolution of images with in_channels channels. group: the number of groups; a filter reads the channels of
    its group."""
    window = _window(kernel=kernel_size, stride=stride, pad=padding, dilation=dilation)
    conv = layers.Convolution(num_filters=out_channels, groups=group, bias_term=bias, **window)
    return _for(conv, in_channels, "channels")


class SeparableConv2d(Module):
    """A convolution of each channel by itself, and one of 1 x 1 over the channels that it gives."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = False,
    ) -> None:
        self.depthwise_conv = Conv2d(
            in_channels, in_channels, kernel_size, stride, padding, group=in_channels, bias=bias
        )
        self.point_conv = Conv2d(in_channels, out_channels, 1, bias=bias)

    def __call__(self, x: Any) -> Any:  # outside a module its layers are numbered, as others are
        return self.point_conv(self.depthwise_conv(x))

    forward = __call__


def Linear(in_features: int, out_features: int, bias: bool = True) -> layers.Layer:
    """y = x W + b."""
    return _for(layers.InnerProduct(num_output=out_features, bias_term=bias), in_features, "features")


def MaxPool2d(kernel_size: Any, stride: Any = None, padding: Any = 0) -> layers.Layer:
    """The maximum of each window."""
    return layers.Pooling(pool="MAX", **_window(kernel=kernel_size, stride=stride or kernel_size, pad=padding))


def AvgPool2d(kernel_size: Any, stride: Any = None, padding: Any = 0) -> layers.Layer:
    """The mean of each window."""
    return layers.Pooling(pool="AVG", **_window(kernel=kernel_size, stride=stride or kernel_size, pad=padding))


def BatchNorm2d(num_features: int, momentum: float = 0.9) -> layers.Layer:
    """Batch normalisation; momentum: the share of the running statistics that stays."""
    return _for(layers.BatchNorm(factor=momentum), num_features, "channels")


def ReLU() -> layers.Layer:
    """max(x, 0)."""
    return layers.ReLU()


def Dropout(ratio: float = 0.5) -> layers.Layer:
    """Dropout; ratio: the share of elements that become zero."""
    return layers.Dropout(dropout_ratio=ratio)


def RNN(input_size: int, hidden_size: int, bias: bool = True) -> layers.Layer:
    """Tanh units. Called on a list of time steps (B, input_size) and maybe an initial state (B, hidden_size), it gives
    the list of states; on one time step and the state before it, the state."""
    return _for(layers.RNN(dim_hidden=hidden_size, bias_term=bias), input_size, "features")


def GRU(input_size: int, hidden_size: int, bias: bool = True) -> layers.Layer:
    """Gated units; called as RNN is."""
    return _for(layers.GRU(dim_hidden=hidden_size, bias_term=bias), input_size, "features")


def LSTM(input_size: int, hidden_size: int, bias: bool = True) -> layers.Layer:
    """Long short-term memory; called on a list of time steps as RNN is. The cell starts at zero."""
    return _for(layers.LSTM(dim_hidden=hidden_size, bias_term=bias), input_size, "features")


def _for(layer: layers.Layer, size: int, unit: str) -> layers.Layer:
    layer.source_size = size, unit
    return layer


# Functions


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return _applied(layers.ReLU, x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _applied(layers.Sigmoid, x)


def tanh(x: Any) -> Any:
    """tanh(x)."""
    return _applied(layers.Tanh, x)


def gelu(x: Any) -> Any:
    """x Φ(x)."""
    return _applied(layers.GELU, x)


def softmax(x: Any) -> Any:
    """exp(x) / sum exp(x), row by row."""
    return _applied(layers.Softmax, x)


def dropout(x: Any, ratio: float = 0.5) -> Any:
    """x with a share of its elements set to zero in training."""
    return _applied(layers.Dropout, x, dropout_ratio=ratio)


def add(a: Any, b: Any) -> Any:
    """a + b."""
    return _applied(layers.Add, a, b)


def add_bias(x: Tensor, b: Tensor, axis: int = 0) -> Tensor:
    """x + b of tensors: of x (M, N), b (N,) is added to each row, or with axis=1, b (M,) to each column.

    Raises DataError for other shapes, ConfigError for layers.
    """
    if any(isinstance(each, layers.Layer | str) for each in (x, b)):
        hint = "Layers have biases of their own: bias=True."
        raise ConfigError(Problem("add_bias", "adds tensors, not layers", f"{x!r}, {b!r}", hint))
    if axis not in (0, 1):
        raise DataError(f"add_bias: axis must be 0 or 1. Received: {axis}.")
    return _applied(_AddToColumns if axis else _AddToRows, x, b)


def mul(a: Any, b: Any) -> Any:
    """a b, element by element."""
    return _applied(layers.Mul, a, b)


def sub(a: Any, b: Any) -> Any:
    """a - b."""
    return _applied(layers.Sub, a, b)


def div(a: Any, b: Any) -> Any:
    """a / b, element by element."""
    return _applied(layers.Div, a, b)


def negative(x: Tensor) -> Tensor:
    """-x."""
    return -x


def cat(xs: Any, axis: int = 1) -> Any:
    """The sources one after the other: their rows (axis 0), channels or features (1), or later axes, as in
    Tensor.shape."""
    return _applied(layers.Concate, *xs, concate_dim=axis)


def split(x: Any, axis: int, parts: int | Sequence[int]) -> Any:
    """A tuple of pieces along an axis, as of `cat`. parts: their sizes, or a number of equal pieces, of which the last
    one also has the remainder.

    Of layers the axis is above 0: a net does not divide its mini-batch.
    """
    given = {"num_slices": parts} if isinstance(parts, int) else {"sizes": tuple(parts)}
    if isinstance(x, layers.Layer | str):
        count = parts if isinstance(parts, int) else len(parts)
        return tuple(layers.Slice(slice_dim=axis, piece=i, **given)(x) for i in range(count))
    return _applied(layers.Slice, x, slice_dim=axis, **given)


def reshape(x: Any, shape: Any) -> Any:
    """The rows of x in another shape (B, ...). One size may be -1; of layers the first one, B, must be.

    Raises ConfigError for another number of rows or elements.
    """
    wanted = [int(size) for size in shape]
    if isinstance(x, layers.Layer | str):
        rows = -1
    else:
        rows = len(x)
        if wanted.count(-1) == 1 and (known := -prod(wanted)):
            wanted[wanted.index(-1)] = int(np.prod(x.shape)) // known
    if len(wanted) < 2 or wanted[0] != rows:
        hint = "Samples stay apart: only what follows the rows can change."
        received = f"{tuple(shape)} of " + (repr(x) if rows < 0 else f"shape {tuple(x.shape)}")
        raise ConfigError(Problem("reshape.shape", f"must begin with {rows} and have more sizes", received, hint))
    return _applied(layers.Reshape, x, shape=tuple(wanted[1:]))


def matmul(a: Any, b: Any) -> Any:
    """The product of two matrices of arrays, (M, K) and (K, N). Raises DataError for other shapes, ConfigError for
    layers: a net has no matrices but parameters."""
    if isinstance(a, layers.Layer | str) or isinstance(b, layers.Layer | str):
        hint = "Use InnerProduct (autograd.Linear) for a matrix of parameters, or Attention."
        raise ConfigError(Problem("matmul", "multiplies arrays and tensors, not layers", f"{a!r}, {b!r}", hint))
    return _applied(_MatMul, a, b)


def flatten(x: Any) -> Any:
    """x as rows of features. Of a layer it is the layer itself: fully connected layers flatten their source."""
    if isinstance(x, layers.Layer | str):
        return x
    return _applied(_Flatten, x)


def softmax_cross_entropy(x: Any, t: Any) -> Any:
    """The mean of -log softmax(x)[t] over the rows. t: classes (B,), or one-hot (B, N)."""
    return _applied(layers.SoftmaxLoss, x, t)


def mean_square_error(x: Any, t: Any) -> Any:
    """The mean over the rows of the mean squared difference."""
    return _applied(layers.MSELoss, x, t)


_functions: dict[Any, layers.Layer] = {}


def _applied(kind: type[layers.Layer], *x: Any, **settings: Any) -> Any:
    """A layer without parameters, called on x: a new node of a net, or one layer for all arrays."""
    if all(isinstance(each, layers.Layer | str) for each in x):
        return kind(**settings)(*x)
    key = kind, tuple(settings.items())
    if key not in _functions:
        _functions[key] = kind(**settings)
    return _functions[key](*x)


class _Flatten(layers.Layer):
    """y = x as rows of features."""

    rowwise = True

    def setup(self, *src: Any) -> Any:
        return (prod(src[0]),)

    def forward(self, ctx: Any, *x: Any) -> Any:
        ctx.x_shape = x[0].shape
        return x[0].reshape(len(x[0]), -1)

    def backward(self, ctx: Any, dy: Any) -> Any:
        return dy.reshape(ctx.x_shape)


class _MatMul(Function):
    """y = a b.   a: (M, K), b: (K, N)."""

    num_sources = (2, 2)

    def setup(self, *src: Any) -> Any:
        return self.sources(src)[1]

    def forward(self, ctx: Any, *x: Any) -> Any:
        a, b = ctx.x = x
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != len(b):
            raise DataError(f"matmul takes matrices (M, K) and (K, N). Received: {a.shape} and {b.shape}.")
        return ctx.ops.xp.matmul(a, b)

    def backward(self, ctx: Any, dy: Any) -> Any:
        a, b = ctx.x
        return ctx.ops.xp.matmul(dy, b.T), ctx.ops.xp.matmul(a.T, dy)


class _AddToRows(Function):
    """y = x + b.   x: (M, N), b: (N,)."""

    num_sources = (2, 2)
    axis = 0

    def setup(self, *src: Any) -> Any:
        return self.sources(src)[0]

    def forward(self, ctx: Any, *x: Any) -> Any:
        given, bias = x
        if given.ndim != 2 or bias.shape != (given.shape[1 - self.axis],):
            message = f"add_bias takes x (M, N) and b {'(M,)' if self.axis else '(N,)'}"
            raise DataError(f"{message} with axis={self.axis}. Received: {given.shape} and {bias.shape}.")
        return given + (bias[:, None] if self.axis else bias)

    def backward(self, ctx: Any, dy: Any) -> Any:
        return dy, dy.sum(self.axis)


class _AddToColumns(_AddToRows):
    """y = x + b.   x: (M, N), b: (M,)."""

    axis = 1


def _window(**sizes: Any) -> dict[str, Any]:
    """The settings of a window: sizes are numbers, or (height, width)."""
    settings: dict[str, Any] = {}
    for name, size in sizes.items():
        height, width = size if isinstance(size, tuple | list) else (size, size)
        settings |= {name: height} if height == width else {f"{name}_y": height, f"{name}_x": width}
    return settings
