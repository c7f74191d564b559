"""Layer and group normalisation.   B samples, P positions of an image, C channels or features."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.layers.partition import Sharding
from singa_dask.ops.arrays import Array


class _Norm(Layer):
    """Base of normalisations with means and variances of single samples, over blocks of the arrays as (R, P, G, K)."""

    rowwise: ClassVar[bool] = True
    takes: ClassVar[tuple[Sharding, ...]] = (Sharding.BATCH,)

    def setup(self, *src: Shape) -> Shape:
        (shape,) = self.sources(src)
        if self.conf.epsilon <= 0:
            raise self.problem(f"{self.conf_field}.epsilon must be above 0", self.conf.epsilon)
        channels = self.partition.sources[0][-1] if self.partition.splits else shape[-1]
        self._blocks = self._blocks_of(channels, shape)
        axis = 0 if self.partition.splits else None
        self.scale = self.declare("scale", (channels,), 0, 0, value=1.0, axis=axis)
        self.bias = self.declare("bias", (channels,), 0, 0, value=0.0, axis=axis)
        return shape

    def _blocks_of(self, channels: int, shape: Shape) -> Shape:
        """(P, G, K). channels: of all workers. shape: of the worker's samples."""
        raise NotImplementedError

    def forward(self, ctx: Context, *x: Array) -> Array:
        ctx.x = x[0].reshape(-1, *self._blocks)
        y, per_group = ctx.buffer("y", x[0].shape), (len(ctx.x), self._blocks[1])
        ctx.mean, ctx.inverse = ctx.buffer("mean", per_group), ctx.buffer("inverse", per_group)
        scale, bias = self._per_channel(self.scale.value), self._per_channel(self.bias.value)
        ctx.ops.group_norm(ctx.x, scale, bias, self.conf.epsilon, y.reshape(ctx.x.shape), ctx.mean, ctx.inverse)
        return y

    def backward(self, ctx: Context, dy: Array) -> Array:
        blocks, scale = dy.reshape(ctx.x.shape), self._per_channel(self.scale.value)
        grads = [(param.grad, param.claim()) for param in (self.scale, self.bias)]
        ctx.ops.group_norm_backward(ctx.x, scale, ctx.mean, ctx.inverse, blocks, grads)
        return dy

    def _per_channel(self, values: Array) -> Array:
        return values.reshape(self._blocks[1:])


class LayerNorm(_Norm):
    """y = scale (x - mean) / sqrt(var + epsilon) + bias, mean and var over the C features of a sample, or over the C
    channels at a position of an image   (Ba, Kiros & Hinton 2016).   x: (B, ..., C) -> y: the same shape.

    Parameters: scale, bias, both (C,).   layernorm_conf: epsilon.
    """

    type: ClassVar[str] = "kLayerNorm"
    conf_field: ClassVar[str | None] = "layernorm_conf"

    def _blocks_of(self, channels: int, shape: Shape) -> Shape:
        return 1, 1, channels


class GroupNorm(_Norm):
    """y = scale (x - mean) / sqrt(var + epsilon) + bias, mean and var over the P positions of a sample and the C / G
    channels of one of G groups   (Wu & He 2018).   x: (B, ..., C) -> y: the same shape.

    Parameters: scale, bias, both (C,).   groupnorm_conf: num_groups (G), epsilon. A worker with FEATURES has whole
    groups: G must be a multiple of the number of workers.
    """

    type: ClassVar[str] = "kGroupNorm"
    conf_field: ClassVar[str | None] = "groupnorm_conf"

    @property
    def takes(self) -> tuple[Sharding, ...]:  # type: ignore[override]
        whole_groups = self.conf.num_groups % self.partition.size == 0
        return (Sharding.BATCH, Sharding.FEATURES) if whole_groups else (Sharding.BATCH,)

    def _blocks_of(self, channels: int, shape: Shape) -> Shape:
        groups = self.conf.num_groups
        if groups < 1 or channels % groups:
            raise self.problem(f"groupnorm_conf.num_groups must divide the {channels} channels", groups)
        size = channels // groups
        return prod(shape[:-1]), shape[-1] // size, size
