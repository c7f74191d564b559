"""Samples that are sequences: of one length, or filled up to the longest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import JobProto, LayerProto, LayerType
from singa_dask.layers import layer_class

LENGTH = "length"
"""The column of the lengths, and the input layer that reads it."""


@dataclass(frozen=True)
class Padded:
    """x: (N, T, ...), in which sequence i has lengths[i] time steps, and zeros after them."""

    x: np.ndarray
    lengths: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    @classmethod
    def of(cls, sequences: Any, steps: int | None = None) -> Self:
        """Arrays (T_i, ...). steps: T, by default the longest of them. Raises ValueError."""
        arrays = [np.asarray(each) for each in sequences]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) != 1 or any(array.ndim < 1 or array.dtype.kind not in "biuf" for array in arrays):
            raise ValueError(f"X must hold sequences of numbers (steps, ...), with equal features: found {shapes}.")
        lengths = np.array([len(array) for array in arrays])
        if not lengths.all():
            raise ValueError(f"X[{int(np.argmin(lengths))}] has no time steps. Leave it out.")
        longest = int(lengths.max())
        if steps is not None and longest > steps:
            message = f"X[{int(np.argmax(lengths))}] has {longest} time steps, and those in fit at most {steps}"
            raise ValueError(f"{message}: cut it.")
        x = np.zeros((len(arrays), steps or longest, *shapes.pop()), np.result_type(*arrays))
        for row, array in zip(x, arrays, strict=True):
            row[: len(array)] = array
        return cls(x, lengths)


def is_ragged(x: Any) -> bool:
    """Whether x is a list of arrays of different lengths."""
    if not isinstance(x, list | tuple) and getattr(getattr(x, "dtype", None), "kind", "") != "O":
        return False
    arrays = getattr(x, "ndim", 1) == 1 and all(hasattr(each, "shape") and each.shape for each in x)
    return arrays and len({len(each) for each in x}) > 1


def inputs_of(proto: JobProto) -> list[LayerProto]:
    """The layers of a job that read shards."""
    return [layer for layer in proto.neuralnet.layer if layer.type == LayerType.kRecordInput]


def set_time_steps(proto: JobProto, shape: tuple[int, ...]) -> None:
    """Let a net that computes over time read samples of this shape as sequences, unless the job says how. Symbols of
    an embedding are (T,)."""
    layers = [*proto.neuralnet.layer, *(layer for group in proto.neuralnet.layer_group for layer in group.layer)]
    said = any(layer.store_conf.sequence or layer.store_conf.time_steps or layer.unroll_len > 1 for layer in layers)
    symbols = any(layer.type in (LayerType.kEmbedding, LayerType.kOneHot) for layer in layers)
    if said or proto.neuralnet.unroll_len > 1 or len(shape) + symbols < 2:
        return
    recurrent = [layer for layer in layers if layer_class(layer).recurrent]
    if not (recurrent or (len(shape) == 2 and any(layer_class(layer).across_steps for layer in layers))):
        return
    for layer in recurrent:
        layer.unroll_len = shape[0]
    for layer in inputs_of(proto):
        layer.store_conf.time_steps = shape[0]


def read_lengths(proto: JobProto) -> None:
    """Let the input layers read sequences of different lengths."""
    layers = inputs_of(proto)
    if not all(layer.store_conf.time_steps for layer in layers):
        hint = "Use recurrent layers or causal attention, or give sequences of one length."
        raise ConfigError(Problem("X", "has sequences of different lengths, and the net has no time steps", hint=hint))
    for layer in layers:
        layer.store_conf.column, layer.store_conf.lengths = "x", LENGTH
    length = LayerProto(name=LENGTH, type=LayerType.kRecordInput)
    length.store_conf.column, length.store_conf.has_label = LENGTH, False
    length.store_conf.batchsize[:] = layers[0].store_conf.batchsize
    proto.neuralnet.layer.append(length)
