"""Functions in a job: their names, and their arguments as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from singa_dask import functions
from singa_dask.errors import ConfigError, Problem
from singa_dask.job.user_code import code_name, user_code

FORMULAS = ("singa_dask.layers.formula:Lambda", "singa_dask.layers.formula:Loss")
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


def encoded(value: Any) -> Any:
    """An argument as JSON. Layers become {"source": their number}, in order."""
    numbers = iter(range(1 << 30))

    def of(value: Any) -> Any:
        if hasattr(value, "_node_of"):
            return {"source": next(numbers)}
        if isinstance(value, slice):
            return {"slice": [value.start, value.stop, value.step]}
        if value is Ellipsis:
            return {"ellipsis": True}
        if isinstance(value, tuple):
            return {"tuple": [of(each) for each in value]}
        if isinstance(value, list):
            return [of(each) for each in value]
        if isinstance(value, np.ndarray):
            return {"array": value.tolist(), "dtype": value.dtype.str}
        if value is None or isinstance(value, str | bool | Real):
            return value.item() if isinstance(value, np.generic) else value
        hint = (
            "Give numbers, text, arrays and layers. Parameters belong in layers: InnerProduct, or one of your own. "
            "The state of a layer of one's own is kept in loops over tensors alone."
        )
        raise ConfigError(
            Problem("Lambda", "an argument of a function cannot be written into a job", repr(value), hint)
        )

    return of(value)


def decoded(value: Any, sources: Sequence[Any]) -> Any:
    """The inverse of `encoded`."""
    if isinstance(value, list):
        return [decoded(each, sources) for each in value]
    if not isinstance(value, dict):
        return value
    if "source" in value:
        return sources[value["source"]]
    if "slice" in value:
        return slice(*value["slice"])
    if "ellipsis" in value:
        return Ellipsis
    if "array" in value:
        return np.array(value["array"], value["dtype"])
    return tuple(decoded(each, sources) for each in value["tuple"])
