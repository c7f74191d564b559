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

import importlib
import sys
from types import ModuleType
from typing import Any

from singa_dask import functions, layers
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.functions import *  # noqa: F403
from singa_dask.functions import broadcast_to as expand
from singa_dask.functions.primitive import function
from singa_dask.layers.computing import computed
from singa_dask.layers.kept import parameters_of
from singa_dask.layers.module import Module
from singa_dask.tensors.gradients import backward, grad
from singa_dask.tensors.state import no_grad, state

__all__ = [
    *functions.__all__,
    "AvgPool2d",
    "BatchNorm2d",
    "Conv2d",
    "Dropout",
    "GRU",
    "LSTM",
    "Layer",
    "Linear",
    "MaxPool2d",
    "RNN",
    "ReLU",
    "SeparableConv2d",
    "add_bias",
    "backward",
    "checkpoint",
    "computed",
    "dropout",
    "embedding",
    "expand",
    "gelu",
    "grad",
    "mean_square_error",
    "mse_loss",
    "no_grad",
    "parameters_of",
    "relu",
    "set_seed",
    "sigmoid",
    "softmax_cross_entropy",
    "tanh",
    "unsqueeze",
]

Layer = Module  # SINGA's base class of layers that hold layers
set_seed = state.set_seed


class _Autograd(ModuleType):
    """This module, with `training`."""

    @property
    def training(self) -> bool:
        return state.training

    @training.setter
    def training(self, value: bool) -> None:
        state.training = bool(value)

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Autograd


# Layers


def Conv2d(
    in_channels: int | None,
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


def Linear(in_features: int | None, out_features: int, bias: bool = True) -> layers.Layer:
    """y = x W + b."""
    return _for(layers.InnerProduct(num_output=out_features, bias_term=bias), in_features, "features")


def MaxPool2d(kernel_size: Any, stride: Any = None, padding: Any = 0) -> layers.Layer:
    """The maximum of each window."""
    return layers.Pooling(pool="MAX", **_window(kernel=kernel_size, stride=stride or kernel_size, pad=padding))


def AvgPool2d(kernel_size: Any, stride: Any = None, padding: Any = 0) -> layers.Layer:
    """The mean of each window."""
    return layers.Pooling(pool="AVG", **_window(kernel=kernel_size, stride=stride or kernel_size, pad=padding))


def BatchNorm2d(num_features: int | None, momentum: float = 0.9) -> layers.Layer:
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


def LSTM(input_size: int, hidden_size: int, bias: bool = True, return_cell: bool = False) -> layers.Layer:
    """Long short-term memory; called on a list of time steps as RNN is. The cell starts at zero, unless return_cell
    lets states be h and c side by side."""
    lstm = layers.LSTM(dim_hidden=hidden_size, bias_term=bias, return_cell=return_cell)
    return _for(lstm, input_size, "features")


def _for(layer: layers.Layer, size: int | None, unit: str) -> layers.Layer:
    layer.source_size = None if size is None else (size, unit)
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


def dropout(x: Any, ratio: float = 0.5) -> Any:
    """x with a share of its elements set to zero in training."""
    return _applied(layers.Dropout, x, dropout_ratio=ratio)


@function
def add_bias(x: Any, b: Any, axis: int = 0) -> Any:
    """x + b: of x (M, N), b (N,) is added to each row, or with axis=1, b (M,) to each column.

    Raises DataError for other shapes.
    """
    if axis not in (0, 1):
        raise DataError(f"add_bias: axis must be 0 or 1. Received: {axis}.")
    if len(x.shape) != 2 or tuple(b.shape) != (x.shape[1 - axis],):
        message = f"add_bias takes x (M, N) and b {'(M,)' if axis else '(N,)'}"
        raise DataError(f"{message} with axis={axis}. Received: {tuple(x.shape)} and {tuple(b.shape)}.")
    return x + (functions.expand_dims(b, 1) if axis else b)


def checkpoint(function: Any, *x: Any) -> Any:
    """Raises ConfigError: PyTorch's function of this name computes a part of the net again in the backward pass."""
    message = "activation checkpointing is not offered"
    raise ConfigError(
        Problem("checkpoint", message, repr(function), "Call the function, with fewer rows or more workers.")
    )


def softmax_cross_entropy(x: Any, t: Any) -> Any:
    """The mean of -log softmax(x)[t] over the rows. t: classes (B,), or one-hot (B, N)."""
    return _applied(layers.SoftmaxLoss, x, t)


def mean_square_error(x: Any, t: Any) -> Any:
    """The mean over the rows of the mean squared difference."""
    return _applied(layers.MSELoss, x, t)


mse_loss = mean_square_error


def embedding(x: Any, w: Any) -> Any:
    """The rows of a table w (V, D) at the symbols x (B, ...): (B, ..., D)."""
    return functions.take(w, x)


@function
def unsqueeze(x: Any, axis: Any = -1) -> Any:
    """x with an axis of size 1 at each of these places of the result."""
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    for each in sorted(each % (len(x.shape) + len(axes)) for each in axes):
        x = functions.expand_dims(x, each)
    return x


_functions: dict[Any, layers.Layer] = {}


def _applied(kind: type[layers.Layer], *x: Any, **settings: Any) -> Any:
    """A layer without parameters, called on x: a new node of a net, or one layer for all arrays."""
    if all(isinstance(each, layers.Layer | str) for each in x):
        return kind(**settings)(*x)
    key = kind, tuple(settings.items())
    if key not in _functions:
        _functions[key] = kind(**settings)
    return _functions[key](*x)


def _window(**sizes: Any) -> dict[str, Any]:
    """The settings of a window: sizes are numbers, or (height, width)."""
    settings: dict[str, Any] = {}
    for name, size in sizes.items():
        height, width = size if isinstance(size, tuple | list) else (size, size)
        settings |= {name: height} if height == width else {f"{name}_y": height, f"{name}_x": width}
    return settings
