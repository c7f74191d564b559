"""User code: classes and functions that a job names as "module:Class" or "module:function".

A name is looked up first in the shipped code (see `code_bundle`), then among classes of this process that no import
finds, then in the module.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from typing import Any

from singa_dask.errors import ConfigError, Problem, nearest

_defined: dict[str, Any] = {}
_received: ContextVar[Mapping[str, Any]] = ContextVar("singa_dask_user_code")
_folder: ContextVar[Path | None] = ContextVar("singa_dask_user_folder", default=None)


def code_name(code: Any) -> str:
    """The name of a class or function for a job: "module:Class".

    This process remembers code that its module does not hold under its name, because it was defined in a function or
    redefined since. If the plain name is taken, it becomes "module:Class~2".
    """
    for name, known in _received.get({}).items():
        if known is code:
            return name
    plain = f"{code.__module__}:{code.__qualname__}"
    for number in count(1):
        name = plain if number == 1 else f"{plain}~{number}"
        owner = _defined.get(name) or _importable(name)
        if owner is None:
            _defined[name] = code
        if owner is None or owner is code:
            return name
    raise AssertionError


def check_own_type(cls: Any, base: Any, key: str) -> None:
    """Raise ConfigError if a user class has the type of the built-in class that it derives from: a job could not
    distinguish them, and workers would create the built-in one."""
    if cls.type == base.type or "type" in vars(cls):
        return
    hint = f'Derive it from {base.__name__}, or write type = "{base.type}" in it.'
    message = f"{cls.__name__} has the type of its base class, {cls.type}, and a job cannot distinguish them"
    raise ConfigError(Problem(key, message, hint=hint))


def is_defined(name: str) -> bool:
    """Whether this process defined or received this name, which no import finds."""
    return name in _defined or name in _received.get({})


@contextmanager
def using(code: Mapping[str, Any]) -> Iterator[None]:
    """Inside, these names resolve to these objects."""
    token = _received.set({**_received.get({}), **code})
    try:
        yield
    finally:
        _received.reset(token)


@contextmanager
def searching(folder: Path | None) -> Iterator[None]:
    """Inside, modules are searched first in this folder, that of the job file."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def user_code(spec: str, key: str) -> Any:
    """The class or function that `spec`, "module:Class" or "module:function", names. key: of the field in the job.

    Raises ConfigError if there is no such module or name. Errors inside the module itself propagate.
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise ConfigError(Problem(key, 'user code must be named "module:Class" or "module:function"', repr(spec)))
    for known in (_received.get({}), _defined):
        if spec in known:
            return known[spec]
    try:
        found = _module(module_name, spec, key)
    except ModuleNotFoundError as error:
        # The user must see an import that fails inside the module.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        hint = (
            "Put it in the folder of the job file or the current folder, install it, or add its folder to PYTHONPATH."
        )
        raise ConfigError(Problem(key, f"no module named {error.name!r}", repr(spec), hint)) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise _missing(found, module_name, part, spec, key)
        found = getattr(found, part)
    return found


def _missing(found: Any, module_name: str, part: str, spec: str, key: str) -> ConfigError:
    if module_name == "__main__":
        hint = 'Train from there, or put it in a module next to the job file: user_type: "my_layers:MyLayer".'
        why = "was defined in a notebook or script that this process has not run"
        return ConfigError(Problem(key, why, repr(spec), hint))
    if part == "<locals>":
        hint = "Move it to the top level of a module, or build the job in the process that defines it."
        return ConfigError(Problem(key, "is defined inside a function and cannot be imported", repr(spec), hint))
    public = [attribute for attribute in vars(found) if not attribute.startswith("_")]
    return ConfigError(Problem(key, f"{module_name!r} has no {part!r}", repr(spec), nearest(part, public)))


def _importable(name: str) -> Any:
    """The object that an import would find under this name, or None."""
    module_name, _, path = name.partition(":")
    found = sys.modules.get(module_name)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _module(name: str, spec: str, key: str) -> Any:
    folder, top = _folder.get(), name.partition(".")[0]
    importlib.invalidate_caches()  # a notebook may have just written the module
    beside = folder and importlib.machinery.PathFinder.find_spec(top, [str(folder)])
    if not beside or beside.origin is None:
        return importlib.import_module(name)
    other = getattr(sys.modules.get(top), "__file__", None)
    if top in sys.modules and (other is None or os.path.realpath(other) != os.path.realpath(beside.origin)):
        why = f"this process has already imported another module {top!r}: {other or 'a built-in one'}"
        hint = f"Rename {beside.origin}, or train in another process."
        raise ConfigError(Problem(key, why, repr(spec), hint))
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
