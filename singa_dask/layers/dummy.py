"""A layer for tests of nets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array
from singa_dask.ops.random import random_bits


class Dummy(Layer):
    """With `input`, the same numbers in [0, 1) at every step; otherwise y = x.

    dummy_conf: input, output (ignored), shape (with `input`: batch, then one sample; images as channels,
    height, width).
    """

    type: ClassVar[str] = "kDummy"
    conf_field: ClassVar[str | None] = "dummy_conf"
    num_sources: ClassVar[tuple[int, int | None]] = (0, 1)

    @property
    def takes(self) -> tuple[Sharding, ...]:  # type: ignore[override]
        return (Sharding.BATCH,) if self.conf.input else (Sharding.BATCH, Sharding.REPLICATED, Sharding.FEATURES)

    @property
    def rowwise(self) -> bool:  # type: ignore[override]
        return not self.conf.input

    def follow(self, before: Sequence[Any]) -> tuple[Layer, ...]:
        return () if self.conf.input else super().follow(before)

    def setup(self, *src: Shape) -> Shape:
        self.sources(src)
        if not self.conf.input:
            if not src:
                raise self.problem("Dummy needs a source or dummy_conf.input", hint="Set input: true and shape.")
            return src[0]
        shape = tuple(self.conf.shape)
        if src or len(shape) < 2 or min(shape) < 1:
            raise self.problem("dummy_conf.input needs a shape (batch, then one sample) and no source", shape)
        bits = random_bits(np, 0, 0, int(np.prod(shape))) >> np.uint64(40)
        values = (bits / float(1 << 24)).reshape(shape)
        self._values = np.ascontiguousarray(np.moveaxis(values, 1, -1)) if len(shape) == 4 else values
        return self._values.shape[1:]

    def forward(self, ctx: Context, *x: Array) -> Array:
        if x:
            return x[0]
        y = ctx.buffer("y", self._values.shape)
        y[...] = ctx.ops.asarray(self._values, ctx.ops.dtype)
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        return None if self.conf.input else dy
