"""The formulas of layers, written out with loops, in float64.   B rows, channels last."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from singa_dask.ops.random import random_bits, stream_key


def normalised(x: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    axes = tuple(range(x.ndim - 1))
    return (x - x.mean(axis=axes)) / np.sqrt(x.var(axis=axes) + epsilon)


def longer(x: np.ndarray, value: float, more: int) -> np.ndarray:
    """Images with more rows and columns of this value at the end."""
    return np.pad(x, ((0, 0), *((0, more),) * (x.ndim - 2), (0, 0)), constant_values=value)


def grouped(groups: int, epsilon: float) -> Callable[..., np.ndarray]:
    def formula(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
        blocks = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
        mean, var = (f(blocks, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
        return ((blocks - mean) / np.sqrt(var + epsilon)).reshape(x.shape) * scale + bias

    return formula


def convolve(
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    pad: tuple[int, ...],
    dilation: tuple[int, ...] | None = None,
    groups: int = 1,
) -> Callable[..., np.ndarray]:
    gaps = dilation or (1,) * len(kernel)

    def formula(x: np.ndarray, w: np.ndarray, b: Any = 0) -> np.ndarray:
        padded = np.pad(x, ((0, 0), *((p, p) for p in pad), (0, 0)))
        by_axis = zip(padded.shape[1:-1], kernel, stride, gaps, strict=True)
        size = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in by_axis]
        channels, filters = x.shape[-1] // groups, w.shape[-1] // groups
        y = np.zeros((len(x), *size, w.shape[-1]))
        for place in itertools.product(*map(range, size)):
            for offset in itertools.product(*map(range, kernel)):
                at = tuple(p * s + o * d for p, s, o, d in zip(place, stride, offset, gaps, strict=True))
                for g in range(groups):
                    read, made = slice(g * channels, (g + 1) * channels), slice(g * filters, (g + 1) * filters)
                    y[(slice(None), *place, made)] += (
                        padded[(slice(None), *at, read)] @ w[(*offset, slice(None), made)]
                    )
        return y + b

    return formula


def transposed(
    kernel: tuple[int, ...], stride: int, pad: int, dilation: int = 1, more: int = 0, groups: int = 1
) -> Callable[..., np.ndarray]:
    def formula(x: np.ndarray, w: np.ndarray, b: Any = 0) -> np.ndarray:
        size = [(n - 1) * stride + (k - 1) * dilation + 1 + more for n, k in zip(x.shape[1:-1], kernel, strict=True)]
        filters, channels = w.shape[-2], x.shape[-1] // groups
        y = np.zeros((len(x), *size, filters * groups))
        for place in itertools.product(*map(range, x.shape[1:-1])):
            for offset in itertools.product(*map(range, kernel)):
                at = tuple(p * stride + o * dilation for p, o in zip(place, offset, strict=True))
                for g in range(groups):
                    read, made = slice(g * channels, (g + 1) * channels), slice(g * filters, (g + 1) * filters)
                    y[(slice(None), *at, made)] += x[(slice(None), *place, read)] @ w[offset][:, read].T
        inner = tuple(slice(pad, n - pad) for n in size)
        return y[(slice(None), *inner)] + b

    return formula


def pool(
    reduce: Callable[..., np.ndarray], kernel: Any, stride: Any, pad: Any, fill: float
) -> Callable[..., np.ndarray]:
    """kernel, stride, pad: of every axis, or one for all."""

    def formula(x: np.ndarray) -> np.ndarray:
        axes = tuple(range(1, x.ndim - 1))  # of sequences, images or volumes
        kernels, strides, pads = (np.broadcast_to(each, len(axes)).tolist() for each in (kernel, stride, pad))
        padded = np.pad(x, ((0, 0), *((p, p) for p in pads), (0, 0)), constant_values=fill)
        by_axis = zip(padded.shape[1:-1], kernels, strides, strict=True)
        y = np.empty((len(x), *((n - k) // s + 1 for n, k, s in by_axis), x.shape[-1]))
        for place in itertools.product(*map(range, y.shape[1:-1])):
            window = (slice(n * s, n * s + k) for n, s, k in zip(place, strides, kernels, strict=True))
            y[(slice(None), *place)] = reduce(padded[(slice(None), *window)], axis=axes)
        return y

    return formula


def between(x: np.ndarray) -> np.ndarray:
    """Twice as many lines; each lies a quarter of the way between two, the outer ones on the edge."""
    above, below = x[:, np.r_[0, : x.shape[1] - 1]], x[:, np.r_[1 : x.shape[1], x.shape[1] - 1]]
    return np.stack([0.75 * x + 0.25 * above, 0.75 * x + 0.25 * below], axis=2).reshape(len(x), -1, *x.shape[2:])


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


def lrn(size: int, alpha: float, beta: float, knorm: float) -> Callable[[np.ndarray], np.ndarray]:
    def formula(x: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        for c in range(x.shape[-1]):
            around = x[..., max(0, c - size // 2) : c + size // 2 + 1]
            y[..., c] = x[..., c] * (knorm + alpha / size * (around**2).sum(axis=-1)) ** -beta
        return y

    return formula


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def over_time(
    cell: Callable[..., Any], gates: int, carried: int = 1, *, whole: bool = False
) -> Callable[..., np.ndarray]:
    """Every row a time step of its own: cell(a step's input sums, its state sums, the state) -> the state after.

    whole: whether all of the state is the output."""

    def formula(x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        given, params = (rest[:1], rest[1:]) if len(rest) not in (2 * gates, 3 * gates) else ((), rest)
        input_weights, state_weights, biases = params[:gates], params[gates : 2 * gates], params[2 * gates :]
        units, h = len(state_weights[0]), []
        state = [given[0] if given else np.zeros((1, units)), *[np.zeros((1, units))] * (carried - 1)]
        if given and given[0].shape[1] > units:
            state = np.split(given[0], carried, axis=1)
        steps = x[:, None] if not given else x[None]
        for row in steps:
            ax = [row.reshape(len(row), -1) @ w.T + (biases[k] if biases else 0) for k, w in enumerate(input_weights)]
            ah = [state[0] @ w.T for w in state_weights]
            state = list(cell(ax, ah, *state))
            h.append(np.concatenate(state, axis=1) if whole else state[0])
        return np.concatenate(h)

    return formula


def gru(ax: Any, ah: Any, h: np.ndarray) -> Any:
    z, r = sigmoid(ax[0] + ah[0]), sigmoid(ax[1] + ah[1])
    return ((1 - z) * np.tanh(ax[2] + r * ah[2]) + z * h,)


def lstm(ax: Any, ah: Any, h: np.ndarray, cell: np.ndarray) -> Any:
    i, f, o = (sigmoid(ax[k] + ah[k]) for k in range(3))
    cell = f * cell + i * np.tanh(ax[3] + ah[3])
    return o * np.tanh(cell), cell


def attention(causal: bool = False, rotary: float = 0) -> Callable[..., np.ndarray]:
    """Of x (B, T, C), to itself or a memory (B, S, C), of which some positions are `seen` (B, S)."""

    def formula(
        x: np.ndarray, w: np.ndarray, b: np.ndarray, wo: np.ndarray, bo: Any, memory: Any = None, seen: Any = None
    ) -> np.ndarray:
        heads, read = len(wo), x if memory is None else memory
        w, b = w.reshape(x.shape[-1], -1, w.shape[-1]), b.reshape(-1, b.shape[-1])
        share = (w.shape[1] - heads) // 2  # of k and v
        own = np.split(np.arange(w.shape[1]), (heads, heads + share))
        q, k, v = (
            np.einsum("btc,cnd->bntd", rows, w[:, i]) + b[i][:, None]
            for rows, i in zip((x, read, read), own, strict=True)
        )
        if rotary:
            q, k = turned(q, rotary), turned(k, rotary)
        k, v = (each.repeat(heads // share, axis=1) for each in (k, v))
        scores = np.einsum("bntd,bnsd->bnts", q, k) / np.sqrt(w.shape[-1])
        if causal:
            scores = np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf)
        if seen is not None:
            scores = np.where(seen[:, None, None], scores, -np.inf)
        return np.einsum("bnts,bnsd,ndc->btc", softmax(scores), v, wo) + bo

    return formula


def turned(x: np.ndarray, base: float) -> np.ndarray:
    """Features i and i + D / 2 as complex numbers, times exp(i t base^(-2 i / D)).   x: (B, N, T, D)."""
    half = x.shape[-1] // 2
    turns = np.exp(1j * np.arange(x.shape[2])[:, None] * base ** (-2 * np.arange(half) / x.shape[-1]))
    y = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate([y.real, y.imag], axis=-1)


def dropout(x: np.ndarray) -> np.ndarray:
    bits = random_bits(np, stream_key(11, 3, "drop"), 0, x.size).reshape(x.shape)
    return np.where(bits / 2.0**64 < 0.25, 0, x / 0.75)
