"""Checks of single values: one table with the range of every number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.findings import Findings
from singa_dask.job.paths import Path, format_path


class Range(NamedTuple):
    """The range of a number: its description and its test."""

    must: str
    holds: Callable[[Any], bool]


POSITIVE = Range("must be at least 1", lambda x: x >= 1)
NOT_NEGATIVE = Range("must not be negative", lambda x: x >= 0)
ABOVE_ZERO = Range("must be above 0", lambda x: x > 0)
NOT_ZERO = Range("must not be 0", lambda x: x != 0)
FRACTION = Range("must be at least 0 and below 1", lambda x: 0 <= x < 1)
ODD = Range("must be odd and at least 1", lambda x: x >= 1 and x % 2 == 1)
PORT = Range("must be from 0 to 65535", lambda x: 0 <= x <= 65535)
DIMENSION = Range("must be 0 (over the batch) or 1 (over the features)", lambda x: x in (0, 1))
LAYER_DIMENSION = Range("must be 0, 1, or -1 for the net's", lambda x: x in (-1, 0, 1))

_WINDOW = ("kernel", "stride", "kernel_x", "kernel_y", "stride_x", "stride_y")

_RANGES: dict[str, tuple[Range, tuple[str, ...]]] = {
    "JobProto": (
        NOT_NEGATIVE,
        (
            *("disp_freq", "gpu", "test_freq", "test_steps", "validate_freq", "validate_steps", "checkpoint_freq"),
            *("warmup_steps", "checkpoint_after", "disp_after", "test_after", "validate_after", "step"),
        ),
    ),
    "ClusterProto": (NOT_NEGATIVE, ("poll_time",)),
    "CDProto": (POSITIVE, ("cd_k",)),
    "NetProto": (POSITIVE, ("unroll_len",)),
    "LayerProto": (POSITIVE, ("unroll_len", "num_partitions")),
    "ParamProto": (POSITIVE, ("shape",)),
    "ParamGenProto": (NOT_NEGATIVE, ("std",)),
    "UpdaterProto": (NOT_NEGATIVE, ("weight_decay", "delta")),
    "RMSPropProto": (FRACTION, ("rho",)),
    "AdaDeltaProto": (FRACTION, ("rho",)),
    "AdamProto": (FRACTION, ("beta1", "beta2")),
    "AdamMaxProto": (FRACTION, ("beta1", "beta2")),
    "LRGenProto": (NOT_NEGATIVE, ("base_lr",)),
    "StepProto": (POSITIVE, ("change_freq",)),
    "LinearProto": (POSITIVE, ("change_freq",)),
    "ExponentialProto": (POSITIVE, ("change_freq",)),
    "InverseProto": (NOT_NEGATIVE, ("gamma",)),
    "InverseTProto": (ABOVE_ZERO, ("final_lr",)),
    "FixedStepProto": (NOT_NEGATIVE, ("step", "step_lr")),
    "StoreProto": (POSITIVE, ("batchsize", "shape")),
    "RGBImageProto": (NOT_NEGATIVE, ("cropsize",)),
    "CharRNNProto": (POSITIVE, ("unroll_len", "batchsize")),
    "OneHotProto": (POSITIVE, ("vocab_size",)),
    "ConvolutionProto": (POSITIVE, ("num_filters", *_WINDOW)),
    "PoolingProto": (POSITIVE, _WINDOW),
    "LRNProto": (ODD, ("local_size",)),
    "DropoutProto": (FRACTION, ("dropout_ratio",)),
    "DummyProto": (POSITIVE, ("shape",)),
    "InnerProductProto": (POSITIVE, ("num_output",)),
    "RBMProto": (POSITIVE, ("hdim",)),
    "SoftmaxProto": (POSITIVE, ("num_softmax_per_instance",)),
    "GRUProto": (POSITIVE, ("dim_hidden",)),
    "LSTMProto": (POSITIVE, ("dim_hidden",)),
    "RNNProto": (POSITIVE, ("dim_hidden",)),
    "EmbeddingProto": (POSITIVE, ("vocab_size", "feature_dim")),
    "SoftmaxLossProto": (POSITIVE, ("topk",)),
    "ArgSortProto": (POSITIVE, ("topk",)),
    "ConcateProto": (NOT_NEGATIVE, ("concate_dim",)),
    "SliceProto": (NOT_NEGATIVE, ("slice_dim",)),
    "SplitProto": (POSITIVE, ("num_splits",)),
    "RNNDummyProto": (POSITIVE, ("shape",)),
}

_MORE: dict[str, Range] = {
    "JobProto.train_steps": POSITIVE,
    "JobProto.num_openblas_threads": POSITIVE,
    "ClusterProto.start_port": PORT,
    "ClusterProto.bucket_size": POSITIVE,
    "NetProto.partition_dim": DIMENSION,
    "LayerProto.partition_dim": LAYER_DIMENSION,
    "LayerProto.unroll_index": NOT_NEGATIVE,
    "ParamProto.partition_dim": LAYER_DIMENSION,
    "StepProto.gamma": NOT_NEGATIVE,
    "LinearProto.final_lr": NOT_NEGATIVE,
    "ParamProto.lr_scale": NOT_NEGATIVE,
    "ParamProto.wd_scale": NOT_NEGATIVE,
    "UpdaterProto.momentum": FRACTION,
    "StoreProto.random_skip": NOT_NEGATIVE,
    "StoreProto.sequence": NOT_NEGATIVE,
    "StoreProto.lookahead": NOT_NEGATIVE,
    "StoreProto.std_value": NOT_ZERO,
    "RGBImageProto.scale": NOT_ZERO,
    "ConvolutionProto.pad": NOT_NEGATIVE,
    "ConvolutionProto.pad_x": NOT_NEGATIVE,
    "ConvolutionProto.pad_y": NOT_NEGATIVE,
    "ConvolutionProto.workspace_byte_limit": NOT_NEGATIVE,
    "PoolingProto.pad": NOT_NEGATIVE,
    "PoolingProto.pad_x": NOT_NEGATIVE,
    "PoolingProto.pad_y": NOT_NEGATIVE,
    "LRNProto.knorm": NOT_NEGATIVE,
    "ConcateProto.num_concates": POSITIVE,
    "SliceProto.num_slices": POSITIVE,
}

RANGES: dict[str, Range] = {
    f"{message}.{field}": range_ for message, (range_, names) in _RANGES.items() for field in names
} | _MORE


def check_fields(findings: Findings) -> None:
    """Check that every number of the job is finite and in its range."""
    for path, must, received in _faults(findings.job):
        findings.add(path, must, received)


def check_numbers(message: Message, key: str) -> None:
    """As `check_fields`, for a message outside a job. Raises ConfigError for the block `key`."""
    problems = [Problem(format_path((key, *path), {}), must, received) for path, must, received in _faults(message)]
    if problems:
        raise ConfigError(problems)


def _faults(message: Message) -> Iterator[tuple[Path, str, str]]:
    """The numbers of a message that are out of range: path, expected range, value."""
    for path, field, value in _values(message, ()):
        range_ = RANGES.get(f"{field.containing_type.name}.{field.name}")
        if isinstance(value, float) and not math.isfinite(value):
            yield path, "must be a finite number", str(value)
        elif range_ is not None and not range_.holds(value):
            yield path, range_.must, _short(value)


def _values(message: Message, path: Path) -> Iterator[tuple[Path, FieldDescriptor, Any]]:
    """Every value that is set, with its path."""
    for field, value in message.ListFields():
        entries = [((*path, field.name, i), v) for i, v in enumerate(value)] if field.is_repeated else None
        for where, entry in entries if entries is not None else [((*path, field.name), value)]:
            if field.message_type is None:
                yield where, field, entry
            else:
                yield from _values(entry, where)


def _short(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)
