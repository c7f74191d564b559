"""User code: classes and functions that a job names as "module:Class" or "module:function".

A name is looked up first in the shipped code (see `code_bundle`), then among classes of this process that no import
finds, then in the module. A job can come from a stranger: its names reach only code that is the user's own, or that an
installed package offers to singa_dask, and nothing else is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from pathlib import Path
from typing import Any

from singa_dask.errors import ConfigError, Problem, nearest
from singa_dask.job.installed import in_packages, is_standard, is_users, requires_singa_dask

_defined: dict[str, Any] = {}
_received: ContextVar[Mapping[str, Any]] = ContextVar("singa_dask_user_code")
_folders: ContextVar[tuple[str, ...]] = ContextVar("singa_dask_user_folders", default=())
_invalidating = threading.Lock()
_IMPORTING = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", importlib.__file__)


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
def searching(*folders: str | Path | None) -> Iterator[None]:
    """Inside, the modules that a job names, and those that the user's own code imports, are searched in these folders
    too, behind all others. Python's path stays as it is: nothing else is found there."""
    token = _folders.set((*(str(folder) for folder in folders if folder is not None), *_folders.get()))
    finder = _Finder(_folders.get())
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _folders.reset(token)


class _Finder(MetaPathFinder):
    """Finds the modules of some folders, for the user's own code and for `user_code` alone.

    Libraries try to import what may not be there, and a stranger's module of that name must not run.
    """

    def __init__(self, folders: tuple[str, ...]) -> None:
        self.folders = folders

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = None if path is not None else PathFinder.find_spec(fullname, list(self.folders))
        importer = _importer() if spec else ""
        own = self.folders == _folders.get() if importer == __file__ else is_users(importer)
        return spec if own else None


def _importer() -> str:
    """The file whose code is importing something."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_code.co_filename in _IMPORTING:
        frame = frame.f_back
    return frame.f_globals.get("__file__") or frame.f_code.co_filename


def searched() -> tuple[str, ...]:
    """The folders of `searching`."""
    return _folders.get()


def user_code(spec: str, key: str) -> Any:
    """The class or function that `spec`, "module:Class" or "module:function", names. key: of the field in the job.

    Raises ConfigError if there is no such module or name, or if it is not the user's. Errors inside the module itself
    propagate.
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
    _check_home(found, spec, key)
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
    """Import the module of this name, if a job may name what is in it."""
    with _invalidating:  # it fails in two threads at once
        importlib.invalidate_caches()  # a notebook may have just written the module
    top = name.partition(".")[0]
    first, beside = _place(top), _origin(PathFinder.find_spec(top, list(_folders.get())))
    strange = _strange(top, first)
    if beside and first and os.path.realpath(first) != os.path.realpath(beside):
        hint = f"Rename {beside}" + (", or train in another process." if top in sys.modules and not strange else ".")
        raise ConfigError(Problem(key, f"another module {top!r} comes first: {first}", repr(spec), hint))
    if strange:
        raise ConfigError(Problem(key, strange, repr(spec), _OWN))
    return importlib.import_module(name)


def _check_home(found: Any, spec: str, key: str) -> None:
    """Raise ConfigError if a user's module has this object only because it imports it."""
    home = getattr(found, "__module__", None)
    if not isinstance(home, str):
        raise ConfigError(Problem(key, "must be a class or function of a module", repr(spec), _OWN))
    top = home.partition(".")[0]
    if strange := _strange(top, _place(top)):
        raise ConfigError(Problem(key, f"is defined in {home!r}, and {strange}", repr(spec), _OWN))
    if top == "singa_dask" and home != "singa_dask.transforms" and not isinstance(found, type):
        raise ConfigError(Problem(key, "must name a class of singa_dask, or code of your own", repr(spec), _OWN))


_OWN = "Name code of your own module, or of an installed package that requires singa-dask."


def _strange(top: str, place: str | None) -> str:
    """Why a job must not name what is in a module or package at this place; "" if it may."""
    if place is None or top in ("__main__", "singa_dask"):
        return ""
    if in_packages(place):
        return "" if requires_singa_dask(top) else f"{top!r} is an installed package that does not require singa-dask"
    return f"{top!r} belongs to the standard library" if is_standard(place) else ""


def _place(top: str) -> str | None:
    """Where the module of this name is that this process has imported, or would import."""
    if top in sys.modules:
        return getattr(sys.modules[top], "__file__", None) or _origin(getattr(sys.modules[top], "__spec__", None))
    return _origin(importlib.util.find_spec(top))


def _origin(spec: ModuleSpec | None) -> str | None:
    """The file of a module, the folder of a namespace package, or "built-in" or "frozen"."""
    return None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)
