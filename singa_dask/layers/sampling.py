"""Layers for sampling, where the output of a step is the input of the next one."""

from __future__ import annotations

import sys
from math import prod
from typing import Any, ClassVar

import numpy as np

from singa_dask.layers.base import Layer, OutputLayer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array
from singa_dask.ops.random import random_bits, stream_key
from singa_dask.output.streams import for_data


class RNNDummy(Layer):
    """y = the output of layer `dynamic_srclayer` at the previous forward call; at the first call, random numbers.

    With a source: y = x. rnn_dummy_conf: dynamic_srclayer, shape (batch, then one sample), low, high, integer. The
    random numbers lie in [low, high); `integer` rounds them down. `ctx.given` replaces the next output.
    """

    known_by_type: ClassVar[bool] = True
    type: ClassVar[str] = "kRNNDummy"
    conf_field: ClassVar[str | None] = "rnn_dummy_conf"
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH,)
    num_sources: ClassVar[tuple[int, int | None]] = (0, 1)

    def setup(self, *src: Shape) -> Shape:
        conf = self.conf
        if src:
            return self.sources(src)[0]
        if not conf.shape or not conf.low < conf.high:
            message = "without a source, needs a shape and low < high to draw the first output"
            raise self.problem(message, f"shape {list(conf.shape)}, low {conf.low:g}, high {conf.high:g}")
        if conf.shape[0] != 1:
            raise self.problem("generates one text: the first number of shape, the batch, must be 1", conf.shape[0])
        return tuple(conf.shape[1:]) or (1,)

    def forward(self, ctx: Context, *x: Array) -> Array:
        if x:
            return x[0]
        shape = (self.conf.shape[0], *(self.conf.shape[1:] or (1,)))
        given, ctx.given = getattr(ctx, "given", None), None
        if given is None and ctx.last_output is not None:
            given = ctx.last_output(self.conf.dynamic_srclayer)
        if given is None:
            given = self._draw(ctx, shape)
        return ctx.ops.asarray(given, ctx.ops.dtype).reshape(shape)

    def _draw(self, ctx: Context, shape: Shape) -> np.ndarray:
        conf, key = self.conf, stream_key(ctx.step.seed, ctx.step.number, self.name)
        uniform = (random_bits(np, key, 0, prod(shape)) >> np.uint64(11)) * 2.0**-53
        drawn = conf.low + (conf.high - conf.low) * uniform
        return np.floor(drawn) if conf.integer else drawn

    def backward(self, ctx: Context, dy: Array) -> Any:
        return dy if self.proto.srclayers else None


class CharRNNOutput(OutputLayer):
    """Writes its source's symbols as characters to standard output; y = x.   x: (B, 1).

    char_rnn_conf: vocab_path (a file with the vocabulary's characters in order, or a folder of text shards). `prepare`
    reads `vocabulary` from it.
    """

    type: ClassVar[str] = "kCharRNNOutput"
    conf_field: ClassVar[str | None] = "char_rnn_conf"

    def write(self, text: str) -> None:
        for_data(sys.stdout).write(text)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        if not (self.conf.vocab_path or self.conf.vocabulary):
            raise self.problem("char_rnn_conf.vocab_path is missing: it names the vocabulary")
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        vocabulary = self.conf.vocabulary
        self.write("".join(vocabulary[int(i)] for i in ctx.ops.to_host(x[0]).reshape(-1)))
        return x[0]
