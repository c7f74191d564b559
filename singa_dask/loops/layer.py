"""Layers under Apache SINGA's names: `from singa_dask import layer`.

    class Net(model.Model):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = layer.Conv2d(20, 5), layer.ReLU()
            self.flatten, self.linear = layer.Flatten(), layer.Linear(10)

They make layers of singa_dask.layers, or functions of singa_dask.autograd where there are no parameters: both work on
arrays, tensors and layers. Channels and features of the source may be left out; given, they are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from singa_dask import functions, layers
from singa_dask.errors import ConfigError, Problem
from singa_dask.layers.module import Module
from singa_dask.layers.naming import name_again
from singa_dask.loops import autograd
from singa_dask.loops.autograd import AvgPool2d, Dropout, MaxPool2d, ReLU

__all__ = [
    "LSTM",
    "RNN",
    "Add",
    "AvgPool2d",
    "BatchNorm2d",
    "Cat",
    "Conv2d",
    "CudnnRNN",
    "Dropout",
    "Embedding",
    "Flatten",
    "Layer",
    "Linear",
    "MaxPool2d",
    "MeanSquareError",
    "ReLU",
    "Reshape",
    "SeparableConv2d",
    "Sigmoid",
    "SoftMax",
    "SoftMaxCrossEntropy",
]


class Layer(Module):
    """A Module that can make parameters when it is first called.

        class Scale(layer.Layer):
            def initialize(self, x):
                self.factor = Tensor(x.shape[-1:], stores_grad=True)
                self.factor.set_value(1)

            def forward(self, x):
                return x * self.factor

    A job takes one that has been called on arrays; others are refused.
    """

    _initialized = False

    def initialize(self, *x: Any) -> None:
        """Make what depends on the sources. Called before the first `forward`, on arrays and tensors."""

    def register_layers(self, *parts: Any) -> None:
        """Make layers and modules a part of this one. Those in attributes, in their lists and dicts, and in the
        closures of functions that are attributes, are parts of it already."""
        self.registered = list(parts)

    def __call__(self, *x: Any) -> Any:
        self._first_call(x)
        return super().__call__(*x)

    def _first_call(self, x: Any) -> None:
        if self._initialized or type(self).initialize is Layer.initialize:
            return
        if any(isinstance(each, layers.Layer | str) for each in x):
            hint = "Call it on an array once before: net(x)."
            raise self._problem("makes parameters in `initialize`, which needs arrays", "layers", hint)
        self.initialize(*x)
        self._initialized = True
        name_again()


def Linear(*sizes: int, bias: bool = True) -> layers.Layer:
    """y = x W + b: Linear(out_features) or Linear(in_features, out_features)."""
    inside, (out, *more) = _sizes(1, sizes)
    return autograd.Linear(inside, out, *(more or (bias,)))


def Conv2d(
    *sizes: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    group: int = 1,
    bias: bool = True,
    activation: str = "NOTSET",
) -> Any:
    """A convolution: Conv2d(filters, kernel) or Conv2d(in_channels, filters, kernel, stride, padding).

    activation: "RELU" lets a ReLU follow. Raises ConfigError for another one.
    """
    inside, (out, kernel, *more) = _sizes(2, sizes)
    stride, padding = *more, *(stride, padding)[len(more) :]
    conv = autograd.Conv2d(inside, out, kernel, stride, padding, dilation, group, bias)
    if activation not in ("NOTSET", "RELU"):
        hint = "Call it on the output of the convolution: autograd.tanh(self.conv(x))."
        raise ConfigError(Problem("Conv2d.activation", "must be NOTSET or RELU", activation, hint))
    return conv if activation == "NOTSET" else _Rectified(conv)


class _Rectified(Module):
    """max(conv(x), 0)."""

    def __init__(self, conv: layers.Layer) -> None:
        self.conv = conv

    def forward(self, x: Any) -> Any:
        return autograd.relu(self.conv(x))


def SeparableConv2d(*sizes: Any, stride: Any = 1, padding: Any = 0, bias: bool = False) -> Module:
    """See autograd.SeparableConv2d. Raises ConfigError if the channels of the source are left out."""
    inside, (out, kernel, *more) = _sizes(2, sizes)
    if inside is None:
        hint = f"Write SeparableConv2d(in_channels, {out}, {kernel})."
        raise ConfigError(Problem("SeparableConv2d", "needs the channels of its source", hint=hint))
    stride, padding = *more, *(stride, padding)[len(more) :]
    return autograd.SeparableConv2d(inside, out, kernel, stride, padding, bias)


def BatchNorm2d(num_features: int | None = None, momentum: float = 0.9) -> layers.Layer:
    """Batch normalisation; momentum: the share of the running statistics that stays."""
    return autograd.BatchNorm2d(num_features, momentum)


def Embedding(input_dim: int, output_dim: int) -> layers.Layer:
    """W[x]; W is (input_dim, output_dim)."""
    return layers.Embedding(vocab_size=input_dim, feature_dim=output_dim)


def _sizes(least: int, sizes: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The channels or features of the source, None where they are left out, and the sizes that follow."""
    return (sizes[0], sizes[1:]) if len(sizes) > least else (None, sizes)


class RNN(Module):
    """Tanh units. hs, h = rnn([x1, x2, x3], h0), of time steps (B, input_size) and a state (B, hidden_size)."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        self.rnn = autograd.RNN(input_size, hidden_size, bias)

    def forward(self, xs: Any, h0: Any) -> Any:
        hs = self.rnn(list(xs), h0)
        return hs, hs[-1]


class LSTM(Module):
    """Long short-term memory. hs, h, c = lstm([x1, x2, x3], (h0, c0)); shapes as for RNN."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        self.lstm = autograd.LSTM(input_size, hidden_size, bias, return_cell=True)

    def forward(self, xs: Any, h0_c0: Any) -> Any:
        states = self.lstm(list(xs), functions.concatenate(h0_c0, axis=1))
        hs, cs = zip(*(functions.split(each, 1, 2) for each in states), strict=True)
        return list(hs), hs[-1], cs[-1]


class CudnnRNN(Module):
    """Recurrent layers over (B, T, features): the states of the last layer, or without return_sequences the last one.

    rnn_mode: lstm, gru, tanh. dropout: between layers. Raises ConfigError for another mode.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = True,
        dropout: float = 0,
        bidirectional: bool = False,
        rnn_mode: str = "lstm",
        return_sequences: bool = True,
    ) -> None:
        kinds = {"lstm": layers.LSTM, "gru": layers.GRU, "tanh": layers.RNN, "vanilla": layers.RNN}
        if rnn_mode not in kinds:
            raise ConfigError(Problem("CudnnRNN.rnn_mode", f"must be one of {', '.join(kinds)}", rnn_mode))
        if not batch_first:
            hint = "Give it (B, T, features): autograd.swapaxes(x, 0, 1)."
            raise ConfigError(Problem("CudnnRNN.batch_first", "must be true", "false", hint))
        make = partial(kinds[rnn_mode], dim_hidden=hidden_size, bias_term=bias)
        self.onwards = [make() for _ in range(num_layers)]
        self.back = [make() for _ in range(num_layers if bidirectional else 0)]
        self.dropout, self.return_sequences = Dropout(dropout), return_sequences

    def forward(self, x: Any) -> Any:
        for i, onwards in enumerate(self.onwards):
            x = self.dropout(x) if i and self.dropout.conf.dropout_ratio else x
            x = layers.bidirectional(x, onwards, self.back[i]) if self.back else onwards(x)
        return x if self.return_sequences else x[:, -1]


# Functions, which have no parameters


def Sigmoid() -> layers.Layer:
    """1 / (1 + exp(-x))."""
    return layers.Sigmoid()


def Flatten() -> Any:
    """autograd.flatten."""
    return functions.flatten


def Reshape() -> Any:
    """autograd.reshape: called on x and a shape."""
    return functions.reshape


def Add() -> Any:
    """autograd.add: called on a and b."""
    return functions.add


def Cat(axis: int = 0) -> Any:
    """autograd.cat along an axis: called on a list."""
    return partial(functions.cat, axis=axis)


def SoftMax() -> Any:
    """autograd.softmax."""
    return functions.softmax


def SoftMaxCrossEntropy() -> Any:
    """autograd.softmax_cross_entropy: called on scores and labels."""
    return autograd.softmax_cross_entropy


def MeanSquareError() -> Any:
    """autograd.mse_loss: called on predictions and targets."""
    return autograd.mse_loss
