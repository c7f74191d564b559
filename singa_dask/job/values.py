"""The fields that a job sets, by their paths as overrides have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.paths import Path, format_path, layer_names


def values_of(job: JobProto) -> dict[str, str]:
    """Every field that is set: {"updater.learning_rate.base_lr": "0.01"}. Layers are named where names are unique."""
    names = layer_names(job)
    return {format_path(path, names): text for path, text in _leaves(job, ())}


def _leaves(message: Message, above: Path) -> Iterator[tuple[Path, str]]:
    for field, value in message.ListFields():
        path = (*above, field.name)
        if field.message_type is None:
            several = value if field.is_repeated else [value]
            text = ", ".join(_text(field, each) for each in several)
            yield path, f"[{text}]" if field.is_repeated else text
        elif field.is_repeated:
            for position, each in enumerate(value):
                yield from _leaves(each, (*path, position))
        else:
            yield from _leaves(value, path) if value.ListFields() else [(path, "{ }")]


def _text(field: FieldDescriptor, value: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.7g}" if isinstance(value, float) else str(value)
