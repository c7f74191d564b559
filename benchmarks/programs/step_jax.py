"""Program: the same training step in jax, compiled, from the same initial parameters."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tools.contest import absent, serve
from tools.workloads import LEARNING_RATE, MOMENTUM, WARM_UP, WORKLOADS, PlainLayer, Workload, data_of, plain_net

try:
    import jax
    from jax import lax
    from jax import numpy as jnp
except ImportError:
    absent("jax is not installed")

# What `output` computes: chains of these, over images or symbols.
KINDS = {"Convolution", "InnerProduct", "Pooling", "LRN", "RNN", "GRU", "LSTM", "OneHot", "STanh", "ReLU"}

Array = Any
Values = list[list[Array]]


def values_of(layer: PlainLayer) -> list[Array]:
    """The layer's parameters; of a recurrent one those of all gates side by side, as its step reads them."""
    if layer.kind not in CELLS:
        return [jnp.asarray(value) for value in layer.values]
    count = len(layer.values) // 3
    together = (np.concatenate(layer.values[start : start + count]) for start in range(0, 3 * count, count))
    return [jnp.asarray(value.T) for value in together]


def output(layer: PlainLayer, values: Sequence[Array], x: Array) -> Array:
    """What `layer` makes of x. Images are (batch, height, width, channels), as ours are."""
    conf = layer.conf
    match layer.kind:
        case "Convolution":
            pad, formats = (conf["pad"],) * 2, ("NHWC", "HWIO", "NHWC")
            strides = (conf["stride"],) * 2
            return lax.conv_general_dilated(x, values[0], strides, (pad, pad), dimension_numbers=formats) + values[1]
        case "InnerProduct":
            return x.reshape(x.shape[0], -1) @ values[0] + values[1]
        case "Pooling":
            windows = partial(_windows, x, size=conf["kernel"], stride=conf["stride"])
            return windows(lax.add, 0.0) / conf["kernel"] ** 2 if conf["pool"] else windows(lax.max, -jnp.inf)
        case "LRN":
            size = conf["local_size"]
            around = [(0, 0)] * 3 + [(size // 2, size // 2)]
            sums = lax.reduce_window(x * x, 0.0, lax.add, (1, 1, 1, size), (1, 1, 1, 1), around)
            return x * (conf["knorm"] + conf["alpha"] / size * sums) ** -conf["beta"]
        case "RNN" | "GRU" | "LSTM":
            return over_time(layer.kind, values, x)
        case "OneHot":
            return jax.nn.one_hot(x, conf["vocab_size"])
        case "STanh":
            return 1.7159047 * jnp.tanh(0.6666667 * x)
    return {"ReLU": jax.nn.relu}[layer.kind](x)


def _windows(x: Array, of: Callable[..., Array], start: float, size: int, stride: int) -> Array:
    return lax.reduce_window(x, start, of, (1, size, size, 1), (1, stride, stride, 1), "VALID")


def rnn(ax: Array, ah: Array, state: Sequence[Array]) -> tuple[Array, ...]:
    return (jnp.tanh(ax + ah),)


def gru(ax: Array, ah: Array, state: Sequence[Array]) -> tuple[Array, ...]:
    units = state[0].shape[1]
    z, r = jnp.split(jax.nn.sigmoid((ax + ah)[:, : 2 * units]), 2, axis=1)
    c = jnp.tanh(ax[:, 2 * units :] + r * ah[:, 2 * units :])
    return (z * state[0] + (1 - z) * c,)


def lstm(ax: Array, ah: Array, state: Sequence[Array]) -> tuple[Array, ...]:
    i, f, o, g = jnp.split(ax + ah, 4, axis=1)
    cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


# By kind: the state after a step, from the inputs' and the state's part of the gates and the state before; and how
# many arrays that is, the output first.
CELLS: dict[str, tuple[Callable[..., tuple[Array, ...]], int]] = {"RNN": (rnn, 1), "GRU": (gru, 1), "LSTM": (lstm, 2)}


def over_time(kind: str, values: Sequence[Array], x: Array) -> Array:
    """A recurrent layer from a state of zero; x: (time steps, batch, inputs). The outputs as rows, one time step after
    another."""
    cell, count = CELLS[kind]
    of_inputs, of_state, bias = values
    ax = x @ of_inputs + bias

    def step(state: tuple[Array, ...], ax: Array) -> tuple[tuple[Array, ...], Array]:
        after = cell(ax, state[0] @ of_state, state)
        return after, after[0]

    begin = (jnp.zeros((x.shape[1], of_state.shape[0]), x.dtype),) * count
    return lax.scan(step, begin, ax)[1].reshape(-1, of_state.shape[0])


def step_of(workload: Workload) -> Callable[[], float]:
    """A training step, which returns the loss; parameters and velocities stay where they are."""
    layers = plain_net(workload)
    if not {layer.kind for layer in layers} <= KINDS or len(workload.shape) not in (1, 3):
        absent("this program has chains of few kinds of layers only")
    features, labels = data_of(workload)
    x = jnp.asarray(features[:, :-1].T.astype(np.int32) if workload.cell else features)
    y = jnp.asarray(labels.astype(np.int32))

    def loss_of(values: Values, x: Array, y: Array) -> Array:
        for layer, own in zip(layers, values, strict=True):
            x = output(layer, own, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], axis=1).mean()

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(values: Values, velocities: Values, x: Array, y: Array) -> tuple[Values, Values, Array]:
        loss, gradients = jax.value_and_grad(loss_of)(values, x, y)
        velocities = jax.tree.map(lambda v, g: MOMENTUM * v - LEARNING_RATE * g, velocities, gradients)
        return jax.tree.map(jnp.add, values, velocities), velocities, loss

    values = [values_of(layer) for layer in layers]
    velocities = jax.tree.map(jnp.zeros_like, values)

    def step() -> float:
        nonlocal values, velocities
        values, velocities, loss = update(values, velocities, x, y)
        return float(loss)

    return step


def main(name: str, threads: int) -> None:
    os.environ["NPROC"] = str(threads)  # how many threads jax starts on a CPU
    jax.config.update("jax_platforms", "cpu")
    step = step_of(WORKLOADS[name])
    serve(step, [step() for _ in range(WARM_UP)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
