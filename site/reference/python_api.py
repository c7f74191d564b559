"""The public names of Python, which mkdocstrings renders."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name
from typing import Any

import singa_dask
from reference.markdown import escaped, table
from singa_dask.functions.primitive import Primitive
from singa_dask.layers.registry import built_in

# The public modules, by page.
LAYERS = ("singa_dask.layers",)
LOOPS = tuple(f"singa_dask.{name}" for name in ("autograd", "opt", "tensor", "device", "layer", "model", "sonnx"))
PARTS = tuple(f"singa_dask.{name}" for name in ("updaters", "transforms", "convert"))


def names(module: str) -> list[str]:
    """The public names of a module: `__all__`, or what it defines itself."""
    found = resolve_name(module)
    own = [name for name, value in vars(found).items() if getattr(value, "__module__", None) == found.__name__]
    return list(getattr(found, "__all__", [name for name in own if not name.startswith("_")]))


def package() -> str:
    """The names of singa_dask itself, which need not be imported for this."""
    own = {*singa_dask.__all__} - {*singa_dask._LAZY_MODULES, "__version__"}
    return "\n\n".join(f"::: singa_dask.{name}" for name in sorted(own, key=str.lower))


def page(*modules: str, without: frozenset[str] = frozenset()) -> str:
    """The names of these modules, except for some: short ones in a table, classes and functions by mkdocstrings."""
    parts = []
    level = 3 if len(modules) > 1 else 2
    for module in modules:
        found = resolve_name(module)
        if len(modules) > 1:
            parts += [f"## {module} {{ #{module} }}", _summary(found)]
        own, short = [], []
        for name in sorted({*names(module)} - without, key=str.lower):
            if row := _short(name, getattr(found, name)):
                short.append(row)
            else:
                own.append(f"::: {module}.{name}\n    options:\n      heading_level: {level}")
        parts += [table(["name", "meaning"], short)] if short else []
        parts += own
    return "\n\n".join(parts)


def _short(name: str, value: Any) -> tuple[str, str] | None:
    """The row of a name that is not defined by `class` or `def` under this name."""
    if isinstance(value, Primitive) and value.__name__ == name:
        operands = list(inspect.signature(value.forward).parameters.values())[1:]
        return f"`{name}({', '.join(str(each.replace(annotation=each.empty)) for each in operands)})`", _summary(value)
    qualified = getattr(value, "__qualname__", None)
    if qualified is None:
        return f"`{name}`", f"`{value!r}`"
    if qualified == name:
        return None if value.__module__ != "numpy" else (f"`{name}`", f"The type `numpy.{name}`.")
    return f"`{name}`", f"Another name of `{qualified}`: {_summary(value)}"


def _summary(value: Any) -> str:
    """The first line of what a value says of itself."""
    return escaped((inspect.getdoc(value) or "").partition("\n")[0].removesuffix(":"))


def layers() -> str:
    """What layers of one's own need, without the layers of jobs, which have a page."""
    return page(*LAYERS, without=frozenset(cls.__name__ for cls in built_in().values()))
