"""Weights of samples, and masks, for losses.   B samples."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from operator import mul

from singa_dask.errors import DataError
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.layers.param import Shape
from singa_dask.ops.arrays import Array


def same_order(one: Shape, other: Shape) -> bool:
    """Whether arrays of these shapes have the same values at the same places: axes of one are one axis of the other,
    as all are in a vector, and as (8, 12) is to (8, 6, 2), but not to (6, 8, 2)."""
    first, second = (set(accumulate(reversed(shape), mul)) | {1} for shape in (one, other))
    return max(first) == max(second) and (first <= second or second <= first)


def check_weights(layer: Layer, weights: Shape, target: Shape | None = None) -> None:
    """Check the sample shape of a loss's third source: one weight, or a mask for a target of shape `target`.

    A mask has one value per value of the target, in its order, or per position of a target with channels: (H, W, 1)
    for (H, W, C).
    Raises ConfigError for any other shape.
    """
    masks = [] if target is None else [target, (*target[:-1], 1)]
    if prod(weights) == 1 or weights in masks or (target is not None and same_order(weights, target)):
        return
    expected = "one weight per sample" + "".join(f" or a mask {shape}" for shape in dict.fromkeys(masks))
    hint = "Leave the third source out, or let it be a kRecordInput with the column of the weights."
    raise layer.problem(f"the third source must give {expected}", f"{layer.proto.srclayers[2]!r}: {weights}", hint)


def sample_weights(layer: Layer, ctx: Context, weights: Array, rows: int) -> Array:
    """The weights on the device, (B, ...) as they come. Raises DataError if one is negative or not finite, or if there
    are not as many rows of them as of the prediction."""
    xp, name = ctx.ops.xp, layer.proto.srclayers[2]
    weights = ctx.ops.asarray(weights, ctx.ops.dtype)
    if len(weights) != rows:
        raise DataError(
            f"layer {layer.name!r}: {layer.proto.srclayers[0]!r} gives {rows} rows, but {name!r} gives "
            f"{len(weights)} weights."
        )
    if weights.size and not (weights.min() >= 0 and xp.isfinite(weights.max())):
        wrong = xp.argwhere(~((weights >= 0) & xp.isfinite(weights)))[0].tolist()
        raise DataError(
            f"layer {layer.name!r}: weights must be finite and not negative; {name!r} gave "
            f"{float(weights[tuple(wrong)])} in row {wrong[0]} of a mini-batch. Use 0 to leave a sample out."
        )
    return weights
