"""What both sides of a comparison start from: data and initial values, drawn by name."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod

import numpy as np

STEPS, ROWS = 5, 8


@dataclass(frozen=True)
class Data:
    """Numbers for each row of each mini-batch. kind: normal, uniform, binary (0.0 or 1.0), integers (from `low`, below
    `high`). shape: of a row. image: whether the shape is (channels, height, width); steps: whether its first axis is
    time, or that of nodes."""

    kind: str
    shape: tuple[int, ...] = ()
    high: int = 0
    low: int = 0
    image: bool = False
    steps: bool = False


def normal(*shape: int) -> Data:
    return Data("normal", shape)


def uniform(*shape: int) -> Data:
    return Data("uniform", shape)


def binary(*shape: int) -> Data:
    return Data("binary", shape)


def image(channels: int, height: int, width: int) -> Data:
    return Data("normal", (channels, height, width), image=True)


def mask(channels: int, height: int, width: int) -> Data:
    return Data("binary", (channels, height, width), image=True)


def integers(high: int, *shape: int, low: int = 0) -> Data:
    return Data("integers", shape, high, low)


def sequence(*shape: int, high: int = 0) -> Data:
    """Over time; integers if they have a bound."""
    return Data("integers" if high else "normal", shape, high, steps=True)


def batches(net: str, name: str, data: Data) -> np.ndarray:
    """(STEPS, ROWS, *shape): float32, or int64 of integers. Images have their channels first."""
    draw, shape = _draw(net, name), (STEPS, ROWS, *data.shape)
    match data.kind:
        case "normal":
            return draw.normal(size=shape).astype(np.float32)
        case "uniform":
            return draw.random(shape).astype(np.float32)
        case "binary":
            return draw.integers(0, 2, shape).astype(np.float32)
        case _:
            return draw.integers(data.low, data.high, shape)


def initial(net: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The initial values of a parameter of this name and shape in PyTorch, float32.

    Of several axes: normal, 1 / the number of inputs their variance. Vectors are near 0, or near 1 if they scale.
    """
    if "bias_hh" in name:  # the second bias of their recurrent layers, which is not trained either
        return np.zeros(shape, np.float32)
    draw, vector = _draw(net, name), len(shape) < 2
    value = draw.normal(size=shape) * (0.1 if vector else prod(shape[1:]) ** -0.5)
    if vector and name.endswith(("weight", "running_var", "factor")):
        value = 1 + np.abs(value)
    if name.endswith("norm3.weight"):  # the last layer of a residual branch: deep nets are chaotic otherwise
        value = value / 5
    return value.astype(np.float32)


def places(net: str, name: str, size: int) -> np.ndarray:
    """The flat places of the eight elements of a parameter that are compared: fewer if it has fewer."""
    return np.sort(_draw(net, f"{name} places").choice(size, min(8, size), replace=False))


def _draw(net: str, name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(f"{net}/{name}".encode()))
