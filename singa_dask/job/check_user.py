"""Checks of fields that name user code."""

from __future__ import annotations

import json
import re
from typing import Any

from singa_dask.job.findings import Findings
from singa_dask.job.paths import Path
from singa_dask.job.user_code import is_defined

_CODE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_user(
    findings: Findings,
    message: Any,
    path: Path,
    type_field: str = "type",
    user_field: str = "user_type",
    *,
    example: str = "",
    kind: str = "Class",
) -> None:
    """Check a block that names either a built-in `type_field` or user code in `user_field`, and its `user_conf`.

    The first value of such an enum stands for user code and is the default. example: a built-in type, for the hint if
    both are missing; without it the caller checks that. kind: of user code, "Class" or "function".
    """
    code, given = getattr(message, user_field), getattr(message, type_field)
    if hasattr(message, "user_conf"):
        _check_conf(findings, message.user_conf, path, "" if code else user_field)
    if not code:
        if example and given == 0:
            hint = f'{type_field}: {example}, or another, or {user_field}: "module:{kind}"'
            findings.missing((*path, type_field), hint)
        return
    names = message.DESCRIPTOR.fields_by_name[type_field].enum_type.values_by_number
    if given != 0:
        hint = f"Leave out {type_field}, or write {names[0].name}."
        why = f"excludes {user_field}: one is built in, the other is user code"
        findings.add((*path, type_field), why, names[given].name, hint)
    check_code(findings, code, (*path, user_field), kind)


def check_code(findings: Findings, code: str, path: Path, kind: str = "function") -> None:
    """Check the spelling of a name of user code."""
    if is_defined(code):
        return
    if "<locals>" in code:
        hint = "Move it to the top level of a module, or train in the process that defines it."
        findings.add(path, "is defined inside a function and cannot be imported", code, hint)
    elif not _CODE.fullmatch(code):
        hint = f'Write the code in Python and name it, for example "my_module:My{kind}".'
        findings.add(path, 'must be spelled "module:Name"', repr(code), hint)


def _check_conf(findings: Findings, text: str, path: Path, missing: str) -> None:
    """Check that keyword arguments are a JSON object and belong to user code. missing: the field that lacks it."""
    if not text:
        return
    if missing:
        findings.add((*path, "user_conf"), f"needs {missing}", hint=f"Leave it out, or name a {missing}.")
    try:
        value = json.loads(text)
    except ValueError as error:
        findings.add((*path, "user_conf"), f"is not JSON: {error}", repr(text), """Write '{"size": 3}'.""")
        return
    if not isinstance(value, dict):
        findings.add((*path, "user_conf"), "must be a JSON object", repr(text), """Write '{"size": 3}'.""")
