"""Classes and functions that a job names as "module:Class" or "module:function"."""

from __future__ import annotations

import importlib
from typing import Any

from singa_dask.errors import ConfigError, Problem, nearest


def user_code(spec: str, key: str) -> Any:
    """What `spec`, spelled "module:Class" or "module:function", names; `key` says where the job names it.

    Raises ConfigError where there is no such module or name. Errors inside the module itself pass through.
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise ConfigError(Problem(key, 'user code is named "module:Class" or "module:function"', repr(spec)))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # An import that fails inside the user's module is the user's to see.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        hint = "Install it, or add its folder to PYTHONPATH, on the workers too."
        raise ConfigError(Problem(key, f"there is no module {error.name!r}", repr(spec), hint)) from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [attribute for attribute in vars(found) if not attribute.startswith("_")]
            raise ConfigError(Problem(key, f"{module_name!r} has no {part!r}", repr(spec), nearest(part, public)))
        found = getattr(found, part)
    return found
