"""Samples that an input layer of a user's own generates, as a data set for streams and loaders.

R requested samples.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from singa_dask.data.columns import Channels, Column, Role
from singa_dask.data.manifest import Manifest, Shard
from singa_dask.data.schema import Schema
from singa_dask.data.store import AnyStream
from singa_dask.errors import ConfigError, DataError, Problem
from singa_dask.layers import GeneratedInput

WINDOWS = 1024  # into which the numbers are divided: worker groups share windows, and shuffling permutes them


def generated_manifest(layer: GeneratedInput) -> Manifest:
    """The manifest of what the layer generates, as if one shard held it.

    Its digest depends on the layer's class, settings, shapes and number of samples. Raises ConfigError.
    """
    if not layer.conf.batchsize:
        hint = "Write user_conf: '{\"batchsize\": 64}', in Python batchsize=64."
        raise ConfigError(Problem(f"layer {layer.name!r}.user_conf", "has no batchsize", layer.proto.user_conf, hint))
    total = layer.num_samples()
    if not isinstance(total, int) or total < 1:
        raise layer.problem("num_samples must return an integer of at least 1", repr(total))
    columns = [_column("x", Role.FEATURE, "float32", layer.sample_shape)]
    target = layer.target_shape
    if layer.wants_labels:
        role = Role.LABEL if target is None else Role.TARGET
        columns.append(_column("y", role, "int64" if target is None else "float32", target or ()))
    order = json.dumps([layer.proto.user_type, layer.user_conf], sort_keys=True)
    window = -(-total // WINDOWS)
    return Manifest(
        total, Schema(tuple(columns)), window, (Shard("", total, ()),), order, folder=Path(f"layer {layer.name!r}")
    )


def _column(name: str, role: Role, dtype: str, shape: tuple[int, ...]) -> Column:
    return Column(name, role, dtype, shape, Channels.LAST if len(shape) > 1 else Channels.NONE)


def generate_steps(
    layer: GeneratedInput, stream: AnyStream, rank: int, nranks: int, start: int, steps: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """The task: worker `rank`'s rows of `steps` consecutive mini-batches from `start` on.

    Returns features (rows, values) and labels (rows,) or targets (rows, values), or None. Raises DataError.
    """
    shares = [stream.share(step, rank, nranks)[1] for step in range(start, start + steps)]
    return samples_of(layer, np.concatenate(shares).reshape(-1))


def samples_of(layer: GeneratedInput, numbers_R: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """What `layer.generate` returns, checked: features (R, values) float32; labels (R,) int64, targets (R, values)
    float32, or None.

    Raises DataError if it raises or returns something else.
    """
    who = f"layer {layer.name!r}: generate"
    try:
        found = layer.generate(numbers_R)
    except Exception as error:
        raise DataError(f"{who} failed for samples {_range(numbers_R)}: {type(error).__name__}: {error}") from error
    features, labels = found if isinstance(found, tuple) else (found, None)
    if layer.wants_labels != (labels is not None):
        raise DataError(
            f"{who} returned {'labels' if labels is not None else 'no labels'}, but has_label is "
            f"{str(layer.wants_labels).lower()}. Return samples and labels, or set has_label to false."
        )
    features = _array(who, "samples", features, layer.sample_shape, len(numbers_R), np.float32)
    if labels is None:
        return features, None
    if layer.target_shape is None:
        return features, _array(who, "labels", labels, (), len(numbers_R), np.int64).reshape(-1)
    return features, _array(who, "targets", labels, layer.target_shape, len(numbers_R), np.float32)


def _array(who: str, what: str, given: Any, shape: tuple[int, ...], rows: int, dtype: Any) -> np.ndarray:
    array = np.asarray(given)
    if array.shape != (rows, *shape):
        raise DataError(f"{who} must return {what} of shape {(rows, *shape)}. Received: {array.shape}.")
    if array.dtype.kind not in ("iub" if dtype is np.int64 else "iubf"):
        raise DataError(f"{who} must return {what} that are numbers. Received: {array.dtype}.")
    return np.ascontiguousarray(array, dtype).reshape(rows, -1)


def _range(numbers_R: np.ndarray) -> str:
    return f"{numbers_R.min()} to {numbers_R.max()}" if numbers_R.size else "none"
