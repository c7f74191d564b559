"""Labels and targets for losses and metrics."""

from __future__ import annotations

from typing import Any

from singa_dask.errors import DataError
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.base import Layer
from singa_dask.layers.context import Context
from singa_dask.ops.arrays import Array


def looks_at_values(ctx: Context) -> bool:
    """Whether a forward call looks at labels and symbols. Otherwise `Layer.check` does, once a loss is NaN."""
    return ctx.ops.sees_values or not ctx.step.phase & Phase.kTrain


def refuse_targets(layer: Layer) -> None:
    """Raise ConfigError if the layer, which reads class labels, would get targets."""
    for position, shape in layer.targets.items():
        hint = (
            "Use EuclideanLoss for numbers. If they are classes, write the shards with --label, or say their "
            "label_shape in place of target_shape."
        )
        received = f"{layer.proto.srclayers[position]!r} has targets of shape {shape}"
        raise layer.problem("reads class labels, but its source has targets", received, hint)


def target_rows(layer: Layer, x: Array, target: Any) -> None:
    """Raise DataError if there is no target, or not one for every row of x."""
    source = layer.proto.srclayers[1]
    if target is None:
        raise DataError(f"layer {layer.name!r} needs targets, but {source!r} was fed none")
    if len(target) != len(x):
        raise DataError(
            f"layer {layer.name!r}: {layer.proto.srclayers[0]!r} gives {len(x)} rows, but {source!r} gives "
            f"{len(target)} targets. Does a layer between them slice or join the batch (slice_dim, concate_dim 0)?"
        )


def without_ignored(ctx: Context, labels: Any, ignored: int) -> tuple[Array, Array]:
    """The labels, of which those that are ignored become 0; and 1 for each that counts, else 0: (B,) each."""
    labels = ctx.ops.asarray(labels).reshape(-1)
    counts = labels != ignored
    return ctx.ops.xp.where(counts, labels, 0), counts.astype(ctx.ops.dtype)


def class_labels(layer: Layer, ctx: Context, x: Array, labels: Any, classes: int, *, within: bool = True) -> Array:
    """The labels of the rows of x on the device: (B,) integers.

    Raises DataError if there are no labels, not one per row, or, where they are to be `within`, one outside
    [0, classes).
    """
    source = layer.proto.srclayers[1] if len(layer.proto.srclayers) > 1 else "its second source"
    if labels is None:
        raise DataError(f"layer {layer.name!r} needs labels, but {source!r} has none: see its store_conf.has_label")
    shape, labels = labels.shape, ctx.ops.asarray(labels).reshape(-1)
    if labels.dtype.kind not in "iu":
        given, labels = labels, labels.astype("int64")
        if (labels != given).any():
            raise DataError(
                f"layer {layer.name!r}: labels must be integers; {source!r} gave others. For numbers to predict, "
                "set store_conf.target_shape of the input layer and use EuclideanLoss."
            )
    if labels.size != x.shape[0]:
        hint = "Does a layer between them slice or join the batch (slice_dim, concate_dim 0)?"
        if len(shape) > 1:
            hint = f"For labels of each step or position, set label_shape: {list(shape[1:])} of its input layer."
        raise DataError(
            f"layer {layer.name!r}: {layer.proto.srclayers[0]!r} gives {x.shape[0]} rows, but {source!r} gives "
            f"{labels.size} labels, {tuple(shape)}. {hint}"
        )
    if within:
        check_classes(layer, labels, classes)
    return labels


def check_classes(layer: Layer, labels: Array, classes: int) -> None:
    """Raise DataError if one of the labels is outside [0, classes)."""
    if labels.size and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise DataError(
            f"layer {layer.name!r}: labels must lie in [0, {classes}), the number of outputs of its first source; "
            f"{layer.proto.srclayers[1]!r} has labels from {int(labels.min())} to {int(labels.max())}"
        )
