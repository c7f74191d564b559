"""Predictions of a whole field by a net of patches: at each position the mean of those of all patches there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from singa_dask.data.columns import Channels
from singa_dask.data.containers import dense, is_lazy
from singa_dask.data.labelled import as_samples, is_labelled, labelled, with_gaps
from singa_dask.data.native import check_at_hand, native
from singa_dask.data.sources.stored import Stored
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.inference.feeding import like_trained
from singa_dask.inference.predicting import by_layer, has_labels, predicted, sent, values_of
from singa_dask.net import inputs_of

if TYPE_CHECKING:
    from singa_dask.inference.model import Model


@dataclass(frozen=True)
class Stitching:
    """How fields are predicted. patch: (height, width, channels) of what the net reads; inputs: the channels of each
    input layer; values: that it predicts at each position; size: of the field."""

    output: str
    batchsize: int | None
    patch: tuple[int, int, int]
    inputs: Mapping[str, slice]
    values: int
    stride: int
    margin: int
    size: tuple[int, int] = (0, 0)

    def overlapping(self, axis: int, start: int, stop: int) -> list[int]:
        """Where the patches begin that overlap [start, stop) along an axis. The last one ends where the field does."""
        length = self.patch[axis]
        last = self.size[axis] - length
        return [at for at in (*range(0, last, self.stride), last) if at < stop and at + length > start]

    def used(self, axis: int, at: int, start: int, stop: int) -> tuple[slice, slice]:
        """What is used of the patch that begins at `at`, and where it lies in [start, stop)."""
        end = at + self.patch[axis]
        low = max(start, at + self.margin * (at > 0))
        high = max(low, min(stop, end - self.margin * (end < self.size[axis])))
        return slice(low - at, high - at), slice(low - start, high - start)


def predict_field(
    model: Model, x: Any, output: str, stride: int | None, margin: int, batchsize: int | None
) -> np.ndarray | Any:
    """The predictions of one field, see `Model.predict_field`."""
    check_at_hand("x", x)
    patch, inputs, values = _forms(model, output)
    stitching = Stitching(output, batchsize, patch, inputs, values, _stride(stride, margin, min(patch[:2])), margin)
    if isinstance(x := native(with_gaps(x)), Mapping) and not is_labelled(x):
        x = {name: _read(model, name, each) for name, each in x.items()}
    if not has_labels(x):
        alone = next(iter(inputs)) if len(inputs) == 1 else ""
        if isinstance(x, Mapping):
            return _field(model, _joined(model, x, stitching), stitching)
        return _field(model, _channels_last(model, alone, _read(model, alone, x), stitching), stitching)
    given = as_samples(x) if is_labelled(x) else {name: as_samples(each) for name, each in x.items()}
    arrays = by_layer(model, given, output, places=False)  # patches lie anywhere
    arrays = {name: each[0] for name, each in arrays.items()}
    layer, array = next((name, each) for name, each in arrays.items() if is_labelled(each))
    if _is_first(model, layer, array.shape, stitching):
        array = array.transpose(*array.dims[1:], array.dims[0])
    found = _field(model, _joined(model, values_of(arrays), stitching), stitching)
    last = ("class" if model.known.classifies(output) else "output",) * (values > 1)
    names = model.known.names(output)
    coords = {name: names for name in last if len(names) == values}
    return labelled(found, array, (array.dims[1], *last), coords)


def _read(model: Model, layer: str, x: Any) -> Any:
    """The values of an array of h5py or zarr that an input layer reads; all else as it is."""
    found = like_trained(model.known, layer, x, "x", lone=True)
    return np.asarray(found) if isinstance(found, Stored) else x


def _forms(model: Model, output: str) -> tuple[tuple[int, int, int], dict[str, slice], int]:
    """The shape of the patches that a net reads, the channels of each input layer, and the number of values that it
    predicts at each position.

    Raises ConfigError if it does not read images and predict fields of their size.
    """
    if model.partitioned:
        hint = "Load the state_dict() that every rank gets into a Model of its own."
        raise ConfigError(Problem("model", f"is partitioned over {model.ranks.size} ranks", hint=hint))
    shapes = {name: model.net.shapes[name] for name in inputs_of(model.net, output)}
    shape = next(iter(shapes.values()))
    if any(len(own) != 3 or own[:2] != shape[:2] for own in shapes.values()):
        told = ", ".join(f"{name} {own}" for name, own in shapes.items())
        raise ConfigError(Problem("model", "must read images of one size", told))
    ends = accumulate((own[2] for own in shapes.values()), initial=0)
    inputs = {name: slice(*span) for name, span in zip(shapes, pairwise(ends), strict=True)}
    zeros = {name: np.zeros((1, *own), np.float32) for name, own in shapes.items()}
    made = model.computed(zeros, output=output)[output].shape[1:]
    if len(made) != 3 or made[:2] != shape[:2]:
        hint = "Let the net end with a Convolution, and let it upsample what it has pooled."
        message = f"must predict fields of the size of its patches, {shape[0]} x {shape[1]}"
        raise ConfigError(Problem("model", message, f"predictions of shape {made}", hint))
    return (shape[0], shape[1], sum(own[2] for own in shapes.values())), inputs, made[2]


def _stride(stride: int | None, margin: int, length: int) -> int:
    if not 0 <= margin < length / 2:
        raise ConfigError(Problem("margin", f"must be at least 0 and less than half a patch of {length}", str(margin)))
    most = length - 2 * margin
    if stride is None:
        return max(1, most // 2)
    if not 1 <= stride <= most:
        message = f"must be from 1 to {most}, so that patches of {length} with margins of {margin} cover the field"
        raise ConfigError(Problem("stride", message, str(stride)))
    return stride


def _is_first(model: Model, layer: str, shape: tuple[int, ...], stitching: Stitching) -> bool:
    """Whether a field that an input layer reads has its channels in front: by its shape, and where both ends have as
    many entries, by the training data. layer: "" if the field has the channels of all."""
    inputs = stitching.inputs
    channels = inputs[layer].stop - inputs[layer].start if layer else stitching.patch[2]
    known = model.known.inputs.get(layer or next(iter(inputs)))
    first = known is not None and known.column.raw.channels is Channels.FIRST
    return len(shape) == 3 and shape[0] == channels and (first or shape[2] != channels)


def _channels_last(model: Model, layer: str, field: Any, stitching: Stitching) -> Any:
    field = dense(field) if is_lazy(field) else np.asarray(dense(field))
    return field.transpose(1, 2, 0) if _is_first(model, layer, field.shape, stitching) else field


def _joined(model: Model, x: Mapping[str, Any], stitching: Stitching) -> Any:
    """The fields of the input layers as the channels of one. Raises DataError where one is missing."""
    if set(x) != set(stitching.inputs):
        told = ", ".join(map(str, x)) or "none"
        raise DataError(f"x must be fields for the input layers {', '.join(stitching.inputs)}. Received: {told}.")
    fields = [x[name] if x[name].ndim > 2 else x[name][..., None] for name in stitching.inputs]
    fields = [_channels_last(model, *each, stitching) for each in zip(stitching.inputs, fields, strict=True)]
    if len({field.shape[:2] for field in fields}) > 1:
        told = ", ".join(str(field.shape[:2]) for field in fields)
        raise DataError(f"x must be fields of one size, with channels last. Received: {told}.")
    return np.concatenate(fields, axis=-1)


def _field(model: Model, x: Any, stitching: Stitching) -> Any:
    """The predictions of a field with its channels last. Raises DataError if the net does not read it."""
    given, lazy = x, is_lazy(x)
    x = x[..., None] if x.ndim == 2 else x
    height, width, channels = stitching.patch
    if x.ndim != 3 or x.shape[2] != channels or not (x.shape[0] >= height and x.shape[1] >= width):
        raise DataError(
            f"x: must be one field with {channels} channel(s), of at least {height} x {width}, the patches that the "
            f"net reads. Received: shape {given.shape}. Give several fields one by one; predict() takes patches."
        )
    stitching = replace(stitching, size=x.shape[:2])
    if lazy:
        return _lazily(model, x, stitching)
    return _window(x, model, stitching, (0, 0), [(0, x.shape[0]), (0, x.shape[1])])


def _window(
    part: np.ndarray, model: Model, stitching: Stitching, corner: tuple[int, int], window: list[tuple[int, int]]
) -> np.ndarray:
    """The predictions in a window of the field, from the part of it that begins at `corner` and holds all patches that
    overlap the window."""
    height, width, _ = stitching.patch
    sizes = [stop - start for start, stop in window]
    total = np.zeros((*sizes, stitching.values), model.ops.dtype)
    count = np.zeros((*sizes, 1), np.int32)
    columns = np.array(stitching.overlapping(1, *window[1]))
    for row in stitching.overlapping(0, *window[0]):
        band = part[row - corner[0] :][:height]
        patches = np.stack([band[:, left : left + width] for left in columns - corner[1]])
        complete = ~np.isnan(patches).any(axis=(1, 2, 3))
        if not complete.any():
            continue
        whole = patches[complete]
        given = {name: whole[..., channels] for name, channels in stitching.inputs.items()}
        found = predicted(model, given, stitching.output, stitching.batchsize)
        own_rows, rows = stitching.used(0, row, *window[0])
        for column, values in zip(columns[complete].tolist(), found, strict=True):
            own, across = stitching.used(1, column, *window[1])
            total[rows, across] += values[own_rows, own]
            count[rows, across] += 1
    with np.errstate(invalid="ignore"):
        total /= count  # NaN where there was no complete patch
    return total if stitching.values > 1 else total[..., 0]


def _lazily(model: Model, x: Any, stitching: Stitching) -> Any:
    """Each block of a Dask array is predicted with as much of its neighbours as its patches need."""
    import dask.array as da

    if any(np.isnan(size) for size in x.shape):
        raise DataError("x: its sizes must be known. Received: unknown chunks. Call its compute_chunk_sizes().")
    depth = [length - 1 for length in stitching.patch[:2]]
    least = da.overlap.ensure_minimum_chunksize
    chunks = tuple(least(length, own) for length, own in zip(stitching.patch, x.chunks[:2], strict=False))
    wide = da.overlap.overlap(x.rechunk((*chunks, -1)), depth=(*depth, 0), boundary="none")
    bounds = [list(pairwise(accumulate(own, initial=0))) for own in chunks]
    several = stitching.values > 1
    return wide.map_blocks(
        _block,
        model=sent(model),
        stitching=stitching,
        bounds=bounds,
        dtype=model.ops.dtype,
        chunks=(*chunks, (stitching.values,)) if several else chunks,
        drop_axis=() if several else 2,
        meta=np.empty((0,) * (2 + several), model.ops.dtype),
    )


def _block(part: np.ndarray, model: Model, stitching: Stitching, bounds: Any, block_id: tuple[int, ...]) -> np.ndarray:
    window = [own[place] for own, place in zip(bounds, block_id, strict=False)]
    corner = [max(0, start - length + 1) for (start, _), length in zip(window, stitching.patch, strict=False)]
    return _window(part, model, stitching, (corner[0], corner[1]), window)
