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
from singa_dask.job.unroll import MAX_STEPS


class Range(NamedTuple):
    """The range of a number: its description and its test."""

    must: str
    holds: Callable[[Any], bool]


POSITIVE = Range("must be at least 1", lambda x: x >= 1)
NOT_NEGATIVE = Range("must not be negative", lambda x: x >= 0)
ABOVE_ZERO = Range("must be above 0", lambda x: x > 0)
NOT_ZERO = Range("must not be 0", lambda x: x != 0)
STEPS = Range(f"must be from 1 to {MAX_STEPS:,}", lambda x: 1 <= x <= MAX_STEPS)
FRACTION = Range("must be at least 0 and below 1", lambda x: 0 <= x < 1)
ODD = Range("must be odd and at least 1", lambda x: x >= 1 and x % 2 == 1)
PORT = Range("must be from 0 to 65535", lambda x: 0 <= x <= 65535)
DIMENSION = Range("must be 0 (over the batch) or 1 (over the features)", lambda x: x in (0, 1))
LAYER_DIMENSION = Range("must be 0, 1, or -1 for the net's", lambda x: x in (-1, 0, 1))

# The range of a field, whichever block has it; "Block.field" where blocks differ.
_FIELDS: dict[Range, str] = {
    POSITIVE: """
        train_steps num_openblas_threads bucket_size cd_k num_partitions change_freq batchsize shape
        kernel kernel_x kernel_y stride stride_x stride_y num_filters num_output num_splits num_slices num_concates
        kernel_z stride_z dilation dilation_x dilation_y dilation_z groups UpsamplingProto.factor
        num_softmax_per_instance num_groups num_heads topk hdim dim_hidden vocab_size feature_dim nworkers_per_procs
        patience target_shape label_shape steps time_steps SliceProto.sizes
    """,
    NOT_NEGATIVE: """
        step warmup_steps disp_freq disp_after test_freq test_steps test_after validate_freq validate_steps
        validate_after checkpoint_freq checkpoint_after keep poll_time unroll_index lr_scale wd_scale std
        weight_decay delta base_lr gamma step_lr LinearProto.final_lr CosineProto.final_lr random_skip sequence
        lookahead horizon series_start record_step cropsize pad pad_x pad_y pad_z output_pad workspace_byte_limit knorm
        concate_dim slice_dim min_delta
        min_lr class_weight clip_norm pos_weight num_kv_heads
    """,
    ABOVE_ZERO: "InverseTProto.final_lr div_factor final_div_factor epsilon max_value rotary_base",
    NOT_ZERO: "std_value RGBImageProto.scale",
    FRACTION: """
        rho beta1 beta2 momentum dropout_ratio validation_share ReduceOnPlateauProto.factor warmup_factor rise
        ema_decay label_smoothing
    """,
    STEPS: "unroll_len",
    ODD: "local_size",
    PORT: "start_port",
    DIMENSION: "NetProto.partition_dim",
    LAYER_DIMENSION: "LayerProto.partition_dim",
}
RANGES: dict[str, Range] = {name: range_ for range_, names in _FIELDS.items() for name in names.split()}


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
        range_ = RANGES.get(field.name) or RANGES.get(f"{field.containing_type.name}.{field.name}")
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
