"""Code shipping: the user's code travels to workers that cannot import it.

Pickled by value: code defined in a notebook, a script (module `__main__`) or a function, and modules in the folder of
the job file, the current folder or the folder of the script. Workers import installed modules.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.job_pb2 import JobProto, LayerProto
from singa_dask.job.user_code import is_defined, searching, user_code, using

_PYTHON = "{}.{}".format(*sys.version_info)
_registering = Lock()


@dataclass(frozen=True)
class CodeBundle:
    """Pickled user code. python: the version that pickled it; pickled: objects by their names in the job."""

    python: str
    pickled: bytes


def pack(job: JobProto, folder: Path | None = None) -> CodeBundle | None:
    """The user code of a job that workers cannot import; None if there is none.

    folder: of the job file, which is searched for modules first.
    Raises ConfigError if named code does not exist or cannot be pickled.
    """
    named = {}
    with searching(folder):
        for name, key in _named(job):
            named[name] = user_code(name, key), key
    if not named:
        return None
    local = _local_modules(folder)
    sent = {name: found for name, found in named.items() if _is_local(name, local)}
    if not sent:
        return None
    with _by_value(local.values()):
        try:
            return CodeBundle(_PYTHON, _pickled({name: code for name, (code, _) in sent.items()}))
        except Exception as error:
            raise ConfigError(list(_unpicklable(sent)) or [Problem("user code", _CANNOT.format(error))]) from error


@contextmanager
def unpacked(bundle: CodeBundle | None) -> Iterator[None]:
    """Inside, the job's names resolve to the shipped code. Raises ConfigError if it cannot be loaded."""
    if bundle is None:
        yield
        return
    with using(_load(bundle)):
        yield


@lru_cache(maxsize=8)
def _load(bundle: CodeBundle) -> Mapping[str, Any]:
    import cloudpickle

    if bundle.python != _PYTHON:
        message = f"was pickled by Python {bundle.python}, and this worker runs {_PYTHON}"
        hint = "Use the same version, or install your code on the workers."
        raise ConfigError(Problem("user code", message, hint=hint))
    try:
        return cloudpickle.loads(bundle.pickled)
    except (ImportError, AttributeError) as error:
        message = f"needs a module or name that this worker lacks: {error}"
        hint = "Install it there, or put it in the folder of the job file."
        raise ConfigError(Problem("user code", message, hint=hint)) from error


def _named(message: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The user code that a message names, with the key of each name."""
    for field, value in message.ListFields():
        inner = f"{key}.{field.name}" if key else field.name
        if field.name in ("user_type", "user_alg"):
            yield value, inner
        elif field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                yield from _named(part, f"layer {part.name!r}" if isinstance(part, LayerProto) else inner)


def _local_modules(folder: Path | None) -> dict[str, ModuleType]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    places = [folder, os.getcwd(), os.path.dirname(os.path.abspath(main)) if main else None]
    folders = tuple(os.path.join(os.path.realpath(place), "") for place in places if place)
    standard = os.path.join(os.path.realpath(sysconfig.get_path("stdlib")), "")
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or name.partition(".")[0] in ("singa_dask", "__main__", "__mp_main__"):
            continue
        path = os.path.realpath(file)
        installed = path.startswith(standard) or not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)
        if path.startswith(folders) and not installed and module.__name__ == name:
            found[name] = module
    return found


def _is_local(name: str, local: Mapping[str, ModuleType]) -> bool:
    module = name.partition(":")[0]
    return module == "__main__" or module in local or is_defined(name)


@contextmanager
def _by_value(modules: Any) -> Iterator[None]:
    """Inside, definitions of these modules are pickled by value."""
    import cloudpickle

    with _registering:
        before = cloudpickle.list_registry_pickle_by_value()
        added = [module for module in modules if module.__name__ not in before]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


_CANNOT = "cannot be shipped to the workers: {}"


def _unpicklable(sent: Mapping[str, tuple[Any, str]]) -> Iterator[Problem]:
    hint = "Create objects that cannot be pickled (locks, open files, connections) in setup()."
    for name, (code, key) in sent.items():
        try:
            _pickled(code)
        except Exception as error:
            yield Problem(key, _CANNOT.format(error), repr(name), hint)


def _pickled(code: Any) -> bytes:
    import cloudpickle

    return cloudpickle.dumps(code)
