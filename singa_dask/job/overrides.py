"""Overrides: single fields of a job, set on the command line or in Python.

    updater.learning_rate.base_lr=0.01
    neuralnet.layer[conv1].convolution_conf.num_filters=30
    neuralnet.layer[0].param[1].lr_scale=2
    gpu=[0,1]
    cluster={ nworkers_per_group: 4 }

Layers are selected by name or position, enum values by name. Text needs no quotes. A list or block replaces the whole
field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.gpus import keep_empty
from singa_dask.job.job_pb2 import JobProto
from singa_dask.job.locate import Place, Positions
from singa_dask.job.paths import Path, format_path, layer_names
from singa_dask.job.scalars import QUOTES, ValueFault, parse_scalar, parse_text
from singa_dask.job.scan import field_hint, scan

_PART = re.compile(r"(?P<name>[^.\[\]]*)(?P<index>\[[^\[\]]*\])?(?:\.|$)")


def apply_overrides(job: JobProto, overrides: Iterable[str], positions: Positions | None = None) -> JobProto:
    """Set fields of `job` in place, in order ("updater.momentum=0.9"), and return it.

    positions: of the fields; those of changed ones then point to the overrides. Raises ConfigError with the problem of
    every override that names an unknown field or gives a wrong value. `job` is then unchanged.
    """
    if isinstance(overrides, str):
        overrides = [overrides]
    changed = JobProto()
    changed.CopyFrom(job)
    problems: list[Problem] = []
    for text in overrides:
        try:
            path = _apply(changed, text)
        except ConfigError as error:
            problems += [replace(p, line=None, column=None, file="override") for p in error.problems]
        else:
            if positions is not None:
                positions.replace(path, Positions({path: Place("override")}))
    if problems:
        raise ConfigError(problems)
    job.CopyFrom(changed)
    return job


@dataclass(frozen=True)
class _Target:
    """The field that an override sets: `field` of `message`, or its entry `index`."""

    path: Path
    message: Any
    field: FieldDescriptor
    index: int | None


def _apply(job: JobProto, text: str) -> Path:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        hint = "For example updater.learning_rate.base_lr=0.01."
        raise ConfigError(
            Problem(key.strip() or "override", 'an override must be written as "path=value"', text, hint)
        )
    target = _resolve(job, key.strip())
    try:
        _set(target, value.strip())
    except ValueFault as fault:
        raise ConfigError(_problem(job, target.path, str(fault), value.strip() or "nothing", fault.hint)) from None
    return target.path


def _problem(job: JobProto, path: Path, message: str, received: str | None, hint: str | None = None) -> Problem:
    return Problem(format_path(path, layer_names(job)), message, received, hint)


def _resolve(job: JobProto, key: str) -> _Target:
    """Follow the names of `key` from the job down to its last field."""
    message: Any = job
    path: Path = ()
    target: _Target | None = None
    end = 0
    while end < len(key) or target is None:
        match = _PART.match(key, end)
        if match is None or not match["name"]:
            hint = "Write names separated by dots, for example neuralnet.layer[conv1].type."
            raise ConfigError(Problem(key, "is not a valid path", key, hint))
        end = match.end()
        if target is not None:
            message = _enter(job, target)
        field = message.DESCRIPTOR.fields_by_name.get(match["name"])
        path = (*path, match["name"])
        if field is None:
            where = format_path(path[:-1], layer_names(job)) or "a job"
            hint = field_hint(message.DESCRIPTOR, match["name"])
            raise ConfigError(_problem(job, path, f"there is no such field in {where}", match["name"], hint))
        index = None
        if match["index"] is not None:
            index = _index(job, path, message, field, match["index"][1:-1].strip())
            path = (*path, index)
        target = _Target(path, message, field, index)
    if key.endswith("."):
        raise ConfigError(Problem(key, "the path ends with a dot", key))
    return target


def _enter(job: JobProto, target: _Target) -> Message:
    """The message with the next field of the path."""
    if target.field.message_type is None:
        raise ConfigError(_problem(job, target.path, "is a single value without fields", target.field.name))
    value = getattr(target.message, target.field.name)
    if not target.field.is_repeated:
        return value
    if target.index is None:
        hint = f"Choose one: {target.field.name}[0]" + (" or by name." if target.field.name == "layer" else ".")
        raise ConfigError(_problem(job, target.path, "is a repeated field", target.field.name, hint))
    return value.add() if target.index == len(value) else value[target.index]


def _index(job: JobProto, path: Path, message: Any, field: FieldDescriptor, text: str) -> int:
    """The position that the text in brackets stands for."""
    if not field.is_repeated:
        raise ConfigError(_problem(job, path, "is no list", f"[{text}]", "Leave the brackets out."))
    entries = getattr(message, field.name)
    if text.isdecimal():
        # The entry after the last one is new. A new layer would need more than one field.
        room = len(entries) + (field.name not in ("layer", "layer_group"))
        if int(text) < room:
            return int(text)
        hint = f"Valid: {'0' if room == 1 else f'0 to {room - 1}'}." if room else None
        raise ConfigError(_problem(job, path, f"has {len(entries)} entries", f"[{text}]", hint))
    if field.name != "layer":
        raise ConfigError(_problem(job, path, "expected a position from 0", f"[{text}]"))
    found = [i for i, layer in enumerate(entries) if layer.name == text.strip("".join(QUOTES))]
    if not found:
        hint = nearest(text, {layer.name for layer in entries})
        raise ConfigError(_problem(job, path, "no layer has this name", text, hint))
    if len(found) > 1:
        hint = f"Write {' or '.join(f'layer[{i}]' for i in found)}."
        raise ConfigError(_problem(job, path, f"{len(found)} layers have this name", text, hint))
    return found[0]


def _set(target: _Target, text: str) -> None:
    name, field = target.field.name, target.field
    if field.message_type is not None:
        _set_block(target, text)
    elif not field.is_repeated:
        setattr(target.message, name, _scalar(field, text))
    elif target.index is None:
        values = [_scalar(field, entry) for entry in _entries(text)]
        target.message.ClearField(name)
        getattr(target.message, name).extend(values)
        keep_empty(target.message, name)
    else:
        value, values = _scalar(field, text), getattr(target.message, name)
        if target.index == len(values):
            values.append(value)
        else:
            values[target.index] = value


def _set_block(target: _Target, text: str) -> None:
    field = target.field
    if field.is_repeated and target.index is None:
        raise ValueFault("is a repeated field", f"Choose one: {field.name}[0].")
    if not (text.startswith("{") and text.endswith("}")):
        some = field.message_type.fields[0].name
        raise ValueFault("is a block", f"Set one of its fields ({field.name}.{some}=...), or all: {{ ... }}.")
    body = text[1:-1]
    result = scan(body, root=field.message_type, at=target.path)
    if result.faults:
        raise ConfigError(result.problems)
    block = getattr(target.message, field.name)
    if target.index is not None:
        block = block.add() if target.index == len(block) else block[target.index]
    block.Clear()
    block.SetInParent()
    text_format.Parse(body, block)


def _entries(text: str) -> list[str]:
    """The entries of a list "[a, b]"; a single value is a list with one entry."""
    if not text.startswith("["):
        return [text]
    if not text.endswith("]"):
        raise ValueFault("the list is not closed", "Write [A, B].")
    inner = text[1:-1].strip()
    if not inner:
        return []
    return [entry.strip() for entry in re.findall(r"""(?:"[^"]*"|'[^']*'|[^,])+|(?<=,)(?=,|$)""", inner)]


def _scalar(field: FieldDescriptor, text: str) -> Any:
    if field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        if not text:
            raise ValueFault("has no value")
        return parse_scalar(field, text)
    if text[:1] not in QUOTES:
        return text
    tokens = text_format.Tokenizer([text])
    value = parse_text(tokens)
    if not tokens.AtEnd():
        raise ValueFault("unexpected text after the closing quote")
    return value
