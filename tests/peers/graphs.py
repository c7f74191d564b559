"""Random graphs of layers and functions with shared inputs and layers, as Modules."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from singa_dask import Module, autograd, layers

WIDTH, ROWS, INPUTS, MOST = 4, 6, 8, 1e6

UNARY: Mapping[str, Callable[[Any], Any]] = {
    "tanh": autograd.tanh,
    "sigmoid": autograd.sigmoid,
    "relu": autograd.relu,
    "gelu": autograd.gelu,
    "softplus": autograd.softplus,
    "sin": autograd.sin,
    "exp": lambda x: autograd.exp(autograd.tanh(x)),
    "log": lambda x: autograd.log(1 + x * x),
    "sqrt": lambda x: autograd.sqrt(0.5 + autograd.abs(x)),
    "square": lambda x: x**2,
    "scaled": lambda x: 2 - x / 3,
    "clipped": lambda x: autograd.clip(x, -1.5, 1.5),
    "centred": lambda x: x - autograd.mean(x, axis=1, keepdims=True),
    "softmax": lambda x: autograd.exp(x - autograd.logsumexp(x, axis=1, keepdims=True)),
    "largest": lambda x: x - autograd.max(x, axis=1, keepdims=True),
    "rolled": lambda x: autograd.concatenate([x[:, 1:], x[:, :1]], axis=1),
    "folded": lambda x: autograd.flatten(autograd.transpose(autograd.reshape(x, (-1, 2, WIDTH // 2)), (0, 2, 1))),
    "padded": lambda x: autograd.pad(x[:, 1:-1], ((0, 0), (1, 1))),
    "switched": lambda x: autograd.where(x > 0, x, 0.1 * x),
}
BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (1 + y * y),
    "maximum": autograd.maximum,
    "minimum": autograd.minimum,
    "joined": lambda x, y: autograd.concatenate([x[:, : WIDTH // 2], y[:, WIDTH // 2 :]], axis=1),
    "einsum": lambda x, y: x * autograd.expand_dims(autograd.einsum("bi,bi->b", x, y), 1),
}
LAYERS: Mapping[str, Callable[[], Any]] = {
    "InnerProduct": lambda: layers.InnerProduct(num_output=WIDTH),
    "LayerNorm": lambda: layers.LayerNorm(),
    "BatchNorm": lambda: layers.BatchNorm(),
}


class Graph(Module):
    """A drawn program: each operation reads values before it, and layers may be called several times."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        kinds = ["InnerProduct", *draw.choices([*LAYERS], k=draw.randint(1, 3))]
        self.parts = [LAYERS[kind]() for kind in kinds]
        self.last = layers.InnerProduct(num_output=2)
        self.program: list[tuple[str, Any, tuple[int, ...]]] = []
        for place in range(2, 2 + draw.randint(4, 10)):
            kind = draw.choice(("unary", "unary", "binary", "layer"))
            # Of the last three: most values are used.
            read = tuple(draw.choice(range(max(0, place - 3), place)) for _ in range(1 + (kind == "binary")))
            chosen = draw.randrange(len(self.parts)) if kind == "layer" else draw.choice([*globals()[kind.upper()]])
            self.program.append((kind, chosen, read))

    def forward(self, x: Any) -> Any:
        values = [x[:, :WIDTH], x[:, WIDTH:]]
        for kind, chosen, read in self.program:
            function = self.parts[chosen] if kind == "layer" else {**UNARY, **BINARY}[chosen]
            values.append(function(*(values[place] for place in read)))
        return self.last(values[-1] + 0.5 * values[-2])


def data(seed: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(steps, ROWS, INPUTS)), draw.normal(size=(steps, ROWS, 2))
