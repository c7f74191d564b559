"""Code shipping: the user's code travels to workers that cannot import it, and is kept with checkpoints and models.

Pickled by value: code defined in a notebook, a script (module `__main__`) or a function, and modules in the folder of
the job file, the current folder or the folder of the script. Installed modules are imported.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

from singa_dask.errors import ConfigError, Problem
from singa_dask.job.code_trust import sign
from singa_dask.job.formulas import check_travels, users_function
from singa_dask.job.installed import is_installed, is_users
from singa_dask.job.job_pb2 import JobProto, LayerProto, NetProto
from singa_dask.job.layer_types import FORMULAS
from singa_dask.job.user_code import is_defined, searched, searching, user_code, using

_PYTHON = "{}.{}".format(*sys.version_info)
_registering = Lock()


@dataclass(frozen=True)
class CodeBundle:
    """Pickled user code. python: the version that pickled it; pickled: objects by their names in the job.

    signature: of the user whose process pickled it (`code_trust`). folders: where it may import other modules from as
    it runs; files do not keep them, as others may have written there since.
    """

    python: str
    pickled: bytes
    signature: str = ""
    folders: tuple[str, ...] = ()

    def signed(self) -> CodeBundle:
        """The same bundle with this user's signature, to be kept in files."""
        return replace(self, signature=sign(self.pickled))

    def to_bytes(self) -> bytes:
        """A line of JSON, and the pickle."""
        return json.dumps({"python": self.python, "signature": self.signature}).encode() + b"\n" + self.pickled

    @cached_property
    def code(self) -> Mapping[str, Any]:
        """The objects by their names, of classes and modules that nobody else has. Raises ConfigError."""
        import cloudpickle

        if self.python != _PYTHON:
            message = f"was pickled by Python {self.python}, and this process runs {_PYTHON}"
            hint = "Use the same version, or install your code where it is to run."
            raise ConfigError(Problem("user code", message, hint=hint))
        try:
            return cloudpickle.loads(self.pickled)
        except (ImportError, AttributeError) as error:
            message = f"needs a module or name that this process lacks: {error}"
            hint = "Install it there, or train with it in the folder of the job file."
            raise ConfigError(Problem("user code", message, hint=hint)) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return CodeBundle, (self.python, self.pickled, self.signature, self.folders)

    @classmethod
    def from_bytes(cls, kept: bytes) -> CodeBundle:
        """The inverse of `to_bytes`. Loads no code."""
        told, _, pickled = kept.partition(b"\n")
        return cls(pickled=pickled, **json.loads(told))


def pack(job: JobProto | NetProto, folder: Path | None = None) -> CodeBundle | None:
    """The user code of a job or net that other processes cannot import; None if there is none.

    folder: of the job file, which is searched for modules too.
    Raises ConfigError if named code does not exist or cannot be pickled.
    """
    keys = dict(named_code(job))
    if not keys:
        return None
    for name, key in keys.items():
        if key.endswith("user_conf.function"):
            check_travels(name, key)
    with searching(folder):
        named = {name: (user_code(name, key), key) for name, key in keys.items()}
        folders = searched()
    local = _local_modules(folder)
    sent = {name: found for name, found in named.items() if _is_local(name, local)}
    if not sent:
        return None
    with _by_value(local.values()):
        try:
            pickled = _pickled({name: code for name, (code, _) in sent.items()})
            return CodeBundle(_PYTHON, pickled, folders=folders)
        except Exception as error:
            raise ConfigError(list(_unpicklable(sent)) or [Problem("user code", _CANNOT.format(error))]) from error


def not_kept(job: JobProto, folder: Path | None = None) -> list[Problem]:
    """The modules of a job's user code that `pack` leaves out, though they are not installed."""
    named = list(named_code(job))
    if not named:  # looking through all modules takes a second
        return []
    local, faults = _local_modules(folder), {}
    for name, key in named:
        module = name.partition(":")[0]
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and not _is_local(name, local) and not is_installed(file):
            message = f"is not kept with the run: {file} lies neither beside the job nor beside the script"
            hint = "Install it, or move it there; otherwise processes that load the model must find it in PYTHONPATH."
            faults[module] = Problem(key, message, repr(name), hint)
    return list(faults.values())


@contextmanager
def unpacked(bundle: CodeBundle | None, only: Collection[str] | None = None) -> Iterator[None]:
    """Inside, the job's names (or `only` these) resolve to the shipped code.

    Raises ConfigError if it cannot be loaded.
    """
    if bundle is None:
        yield
        return
    code = bundle.code
    with (
        searching(*bundle.folders),
        using(code if only is None else {name: code[name] for name in only if name in code}),
    ):
        yield


def named_code(message: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The user code that a message names, with the key of each name."""
    for field, value in message.ListFields():
        inner = f"{key}.{field.name}" if key else field.name
        if field.name in ("user_type", "user_alg", "transform"):
            if value not in FORMULAS:
                yield value, inner
        elif field.name == "user_conf" and isinstance(message, LayerProto):
            if name := users_function(message.user_type, value):
                yield name, f"{key}.user_conf.function"
        elif field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                yield from named_code(part, f"layer {part.name!r}" if isinstance(part, LayerProto) else inner)


def _local_modules(folder: Path | None) -> dict[str, ModuleType]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    places = [folder, os.getcwd(), os.path.dirname(os.path.abspath(main)) if main else None]
    folders = tuple(os.path.join(os.path.realpath(place), "") for place in places if place)
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or name.partition(".")[0] in ("singa_dask", "__main__", "__mp_main__"):
            continue
        path = os.path.realpath(file)
        if path.startswith(folders) and is_users(path) and module.__name__ == name:
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

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            """Classes without the mark by which a process that knows the class would write over it as it loads."""
            made = super().reducer_override(obj)
            if not isinstance(obj, type) or not isinstance(made, tuple) or len(made) < 3:
                return made
            make, (*arguments, _, extra), *state = made
            return make, (*arguments, None, extra), *state

    buffer = io.BytesIO()
    Pickler(buffer).dump(code)
    return buffer.getvalue()
