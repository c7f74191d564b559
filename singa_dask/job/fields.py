"""Assign Python keyword arguments to message fields."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.gpus import keep_empty

_EXPECTED = {
    FieldDescriptor.CPPTYPE_INT32: "an integer of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "an integer of 64 bits",
    FieldDescriptor.CPPTYPE_UINT32: "an integer from 0 to 4294967295",
    FieldDescriptor.CPPTYPE_UINT64: "an integer from 0 to 18446744073709551615",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_ENUM: "a name",
    FieldDescriptor.CPPTYPE_MESSAGE: "a mapping of its fields",
}


def assign(message: Any, name: str, value: Any, key: str) -> None:
    """Set a field of a message. Accepts enum values by name, one entry for a list, paths for text, and for a list of
    messages descriptions (`Description`), messages, or mappings of their fields.

    Raises ConfigError that names `key` for a wrong type or an unknown name.
    """
    field = message.DESCRIPTOR.fields_by_name[name]
    entries = value if field.is_repeated and isinstance(value, list | tuple) else [value]
    try:
        entries = [_plain(field, entry, key) for entry in entries]
        if field.is_repeated:
            getattr(message, name).extend(entries)
            keep_empty(message, name)
        else:
            setattr(message, name, entries[0])
    except (TypeError, ValueError):
        hint = nearest(str(value), field.enum_type.values_by_name) if field.enum_type is not None else None
        raise ConfigError(Problem(key, f"expected {_EXPECTED[field.cpp_type]}", repr(value), hint)) from None


def assign_all(message: Any, given: Mapping[str, Any], key: str, owner: str) -> None:
    """Set all these fields. Raises ConfigError that names `owner` for an unknown field."""
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in given.items():
        if name not in fields:
            hint = nearest(name, fields)
            raise ConfigError(Problem(f"{key}.{name}", f"{owner} has no such setting", f"{name}={value!r}", hint))
        assign(message, name, value, f"{key}.{name}")


def _plain(field: FieldDescriptor, value: Any, key: str) -> Any:
    """The value for the message. Refuses silent conversions by protobuf: True to 1, 1 to True."""
    if field.message_type is not None:
        return _message(field, value, key)
    is_bool = type(value).__name__ in ("bool", "bool_")  # including NumPy's, without importing NumPy
    if is_bool != (field.cpp_type == FieldDescriptor.CPPTYPE_BOOL):
        raise TypeError
    if isinstance(value, PathLike):
        return fspath(value)
    if field.enum_type is not None and isinstance(value, str):
        values = field.enum_type.values_by_name
        if value not in values:
            raise ConfigError(Problem(key, "unknown value", repr(value), nearest(value, values)))
        return values[value].number
    return value


def _message(field: FieldDescriptor, value: Any, key: str) -> Message:
    if isinstance(value, Mapping):
        made = GetMessageClass(field.message_type)()
        assign_all(made, value, key, field.name)
        return made
    message = getattr(value, "proto", value)
    if not (isinstance(message, Message) and field.message_type == message.DESCRIPTOR):
        raise TypeError
    return message
