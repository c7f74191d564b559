"""Layers that only imported nets need."""

from __future__ import annotations

from typing import Any, ClassVar

from singa_dask.layers import Context, InnerProduct, Layer
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


class Constant(Layer):
    """y = value, for every row of x.   x: (B, ...) -> y: (B, *shape).   user_conf: shape, of images channels first.

    Parameter: value, drawn as zeros.
    """

    @property
    def torch_axes(self) -> dict[str, str]:
        """In PyTorch, images have their channels first."""
        names = [f"a{i}" for i in range(len(self.conf["shape"]))]
        return {"value": f"{' '.join(names)} -> {' '.join(self._channels_last(names))}"}

    def _channels_last(self, axes: Any) -> Any:
        return [*axes[1:], axes[0]] if len(axes) in (3, 4) else axes

    def setup(self, *src: Shape) -> Shape:
        self.sources(src)
        shape = tuple(self._channels_last(self.conf["shape"]))
        self.value = self.declare("value", shape, 0, 0, 0.0)
        return shape

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x = x[0]
        y = ctx.buffer("y", (len(x[0]), *self.value.shape))
        y[...] = self.value.value
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        gradient = dy.sum(axis=0)
        if self.value.claim():
            self.value.grad += gradient
        else:
            self.value.grad[...] = gradient
        return ctx.ops.zeros(ctx.x.shape) if ctx.needs_input_grad else None


class ProductWithTable(InnerProduct):
    """y = x W^T + b along the last axis, W the table of an Embedding.   x: (B, ..., I) -> y: (B, ..., O)."""

    type: ClassVar[str] = "kUserLayer"

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        return *shape[:-1], *super().setup(shape[-1:])

    def forward(self, ctx: Context, *x: Array) -> Array:
        y = super().forward(ctx, x[0].reshape(-1, x[0].shape[-1]))
        return y.reshape(*x[0].shape[:-1], y.shape[-1])

    def backward(self, ctx: Context, dy: Array) -> Array:
        dx = super().backward(ctx, dy.reshape(-1, dy.shape[-1]))
        return None if dx is None else dx.reshape(*dy.shape[:-1], dx.shape[-1])
