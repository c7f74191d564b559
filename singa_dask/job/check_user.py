"""Checks of fields that name user code."""

from __future__ import annotations

import json
import re
from typing import Any

from singa_dask.job.findings import Findings
from singa_dask.job.paths import Path
from singa_dask.job.user_code import is_defined

_CODE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_user(findings: Findings, message: Any, path: Path, type_field: str, user_field: str) -> None:
    """Check that a block does not name both a built-in `type_field` and user code in `user_field`.

    The first value of such an enum stands for user code and is the default. The caller checks that one of the two
    fields is given.
    """
    code = getattr(message, user_field)
    if not code:
        return
    kind = message.DESCRIPTOR.fields_by_name[type_field].enum_type
    given = getattr(message, type_field)
    if given != 0:
        received = kind.values_by_number[given].name
        hint = f"Leave out {type_field}, or write {kind.values_by_number[0].name}."
        findings.add(
            (*path, type_field), f"excludes {user_field}: one is built in, the other is user code", received, hint
        )
    if is_defined(code):
        return
    if "<locals>" in code:
        hint = "Move it to the top level of a module, or train in the process that defines it."
        findings.add((*path, user_field), "is defined inside a function and cannot be imported", code, hint)
    elif not _CODE.fullmatch(code):
        hint = 'For example "my_package.my_module:MyClass".'
        findings.add((*path, user_field), 'must be spelled "module:Name"', repr(code), hint)


def check_user_conf(findings: Findings, message: Any, path: Path, user_field: str = "user_type") -> None:
    """Check that keyword arguments are a JSON object and belong to user code."""
    text = message.user_conf
    if not text:
        return
    if not getattr(message, user_field):
        findings.add((*path, "user_conf"), f"needs {user_field}", hint=f"Leave it out, or name a {user_field}.")
    try:
        value = json.loads(text)
    except ValueError as error:
        findings.add((*path, "user_conf"), f"is not JSON: {error}", repr(text), """Write '{"size": 3}'.""")
        return
    if not isinstance(value, dict):
        findings.add((*path, "user_conf"), "must be a JSON object", repr(text), """Write '{"size": 3}'.""")
