"""Functions in a job, and their names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from singa_dask import functions
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.layer_types import FORMULAS
from singa_dask.job.user_code import code_name, user_code

_OWN = "singa_dask.functions:"


def function_name(function: Any) -> str:
    """The name of a function: "module:function". Raises ConfigError for anything else."""
    name = getattr(function, "__name__", "")
    if getattr(functions, name, None) is function:
        return _OWN + name
    if not callable(function) or not hasattr(function, "__qualname__"):
        hint = "Write def name(x): ... at the top level of a module, and give layers.Lambda(name)."
        raise ConfigError(Problem("Lambda.function", "must be a function", repr(function), hint))
    return code_name(function)


def function_of(name: str) -> Callable[..., Any]:
    """The function of this name. Raises ConfigError if there is none."""
    if name.startswith(_OWN) and hasattr(functions, name.removeprefix(_OWN)):
        return getattr(functions, name.removeprefix(_OWN))
    return user_code(name, "user_conf.function")


def users_function(user_type: str, user_conf: str) -> str | None:
    """The name of the user's function that a layer computes."""
    name = json.loads(user_conf).get("function", "") if user_type in FORMULAS and user_conf else ""
    return name if name and not name.startswith(_OWN) else None


def check_travels(name: str, key: str) -> None:
    """Raise ConfigError for a function that has no name of its own, or depends on those around it."""
    if "<" in name:
        function = name.rpartition(":")[2].rpartition(".")[2].replace("<lambda>", "name")
        message = "is a function inside another one or a lambda, which a job cannot name"
        hint = f"Write def {function}(x): ... at the top level of a module, and give layers.Lambda({function})."
        raise ConfigError(Problem(f"{key}.function", message, repr(name), hint))
