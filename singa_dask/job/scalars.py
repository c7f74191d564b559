"""Parse the text of a single value."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from singa_dask.errors import nearest

QUOTES = ("'", '"')

# This protobuf library accepts these with a warning; others refuse them.
_UNKNOWN_ESCAPE = re.compile(r"""(?:[^\\]|\\[abfnrtvxuU0-7?\\'"])*\\([^abfnrtvxuU0-7?\\'"]).*""", re.DOTALL)

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (True, False, "from -2147483648 to 2147483647"),
    FieldDescriptor.CPPTYPE_UINT32: (False, False, "from 0 to 4294967295"),
    FieldDescriptor.CPPTYPE_INT64: (True, True, "of 64 bits"),
    FieldDescriptor.CPPTYPE_UINT64: (False, True, "from 0 to 18446744073709551615"),
}


class ValueFault(ValueError):
    """A value that does not fit its field, with a hint."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.hint = hint


def parse_scalar(field: FieldDescriptor, token: str) -> Any:
    """The value of an unquoted token in `field`. Raises ValueFault."""
    kind = field.cpp_type
    if kind in _INTEGERS:
        return _integer(kind, token)
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        try:
            return text_format.ParseFloat(token)
        except ValueError:
            raise ValueFault("expected a number") from None
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        try:
            return text_format.ParseBool(token)
        except ValueError:
            raise ValueFault("expected true or false") from None
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return _enum(field, token)
    raise ValueFault("expected text in quotes", f'Write {field.name}: "{token}".')


def parse_text(tokens: text_format.Tokenizer) -> str:
    """Consume a quoted text; adjacent ones are joined. Raises ValueFault, and then consumes nothing."""
    token = tokens.token
    unknown = _UNKNOWN_ESCAPE.fullmatch(token)
    if unknown:
        raise ValueFault(f"\\{unknown[1]} is not a valid escape", r"Write a backslash as \\.")
    try:
        return tokens.ConsumeString()
    except text_format.ParseError:
        if len(token) < 2 or token[-1] != token[0]:
            raise ValueFault("the closing quote is missing") from None
        raise ValueFault("the quoted text has an incomplete escape or is not UTF-8") from None


def _integer(kind: int, token: str) -> int:
    signed, long, limits = _INTEGERS[kind]
    try:
        return text_format.ParseInteger(token, is_signed=signed, is_long=long)
    except ValueError:
        pass
    try:
        int(token, 0)
    except ValueError:
        raise ValueFault("expected an integer") from None
    raise ValueFault(f"expected an integer {limits}")


def _enum(field: FieldDescriptor, token: str) -> int:
    try:
        return text_format.ParseEnum(field, token)
    except ValueError:
        pass
    names = field.enum_type.values_by_name
    bare = token.strip("".join(QUOTES))
    if bare in names:
        raise ValueFault(f"a {field.enum_type.name} is written without quotes", f"Write {bare}.")
    raise ValueFault(f"no such {field.enum_type.name}", nearest(bare, names))
