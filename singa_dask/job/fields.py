"""Keyword arguments of Python's spelling into fields of messages."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from singa_dask.errors import ConfigError, Problem, nearest


def assign(message: Any, name: str, value: Any, key: str) -> None:
    """Set a field of a message; an enum's value may be spelled by its name, a list of one entry as the entry.

    Raises ConfigError, naming `key`, for a value of another type or name.
    """
    field = message.DESCRIPTOR.fields_by_name[name]
    try:
        if field.is_repeated:
            entries = value if isinstance(value, list | tuple) else [value]
            getattr(message, name).extend([_number(field, entry) for entry in entries])
        else:
            setattr(message, name, _number(field, value))
    except (TypeError, ValueError) as error:
        raise ConfigError(Problem(key, str(error), received=f"{name}={value!r}")) from error


def _number(field: FieldDescriptor, value: Any) -> Any:
    """The value; of an enum the number that a name stands for, of a path its text."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, bool) and field.cpp_type != FieldDescriptor.CPPTYPE_BOOL:
        raise TypeError("must be a number or text, neither True nor False")
    if field.enum_type is None or not isinstance(value, str):
        return value
    values = field.enum_type.values_by_name
    if value not in values:
        raise ValueError(f"there is no such value. {nearest(value, values)}")
    return values[value].number
