"""How the user's own code that a checkpoint keeps differs from that of a job that goes on with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from singa_dask.errors import ConfigError
from singa_dask.job.code_bundle import CodeBundle
from singa_dask.job.code_trust import is_own

_VALUES = (bool, int, float, complex, str, bytes, type(None), tuple, list, dict, set, frozenset)
_MADE = {
    "__module__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__annotations__",
    "__firstlineno__",
    "__static_attributes__",
}


def changed(kept: CodeBundle | None, now: CodeBundle | None) -> list[str]:
    """The names of what is known to differ: what is computed, or the globals that are read. Code that this user has
    not signed, or that cannot be loaded here, is not compared."""
    if kept is None or now is None or kept.pickled == now.pickled or not is_own(kept.pickled, kept.signature):
        return []
    try:
        before, after = kept.code, now.code
    except ConfigError:
        return []
    return [name for name in after if name in before and _differ(before[name], after[name], set())]


def _differ(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
    """Whether two objects differ, as far as they are code or plain values. seen: what is being compared."""
    if a is b or (id(a), id(b)) in seen:
        return False
    seen.add((id(a), id(b)))
    if isinstance(a, _VALUES) and isinstance(b, _VALUES) and not isinstance(a, dict | list | tuple):
        return type(a) is not type(b) or (a != b and a == a)
    if type(a) is not type(b):
        return any(isinstance(each, (FunctionType, type, *_VALUES)) for each in (a, b))
    if isinstance(a, np.ndarray):
        return a.dtype != b.dtype or (a.dtype != object and a.tobytes() != b.tobytes()) or a.shape != b.shape
    if isinstance(a, FunctionType) and _told(a.__code__) != _told(b.__code__):
        return True
    if isinstance(a, dict | list | tuple) and len(a) != len(b):
        return True
    one, other = _parts(a), _parts(b)
    same = isinstance(a, ModuleType) or one.keys() == other.keys()  # of a module only what both have
    return not same or any(_differ(one[name], other[name], seen) for name in one.keys() & other.keys())


def _parts(x: Any) -> Mapping[Any, Any]:
    """What an object is made of, by name."""
    if isinstance(x, FunctionType):
        cells = dict(zip(x.__code__.co_freevars, x.__closure__ or (), strict=True))
        known = {name: x.__globals__[name] for name in _names(x.__code__) if name in x.__globals__}
        closed = {name: cell.cell_contents for name, cell in cells.items() if _is_set(cell)}
        return known | closed | {"()": x.__defaults__, "(*)": x.__kwdefaults__}
    if isinstance(x, type):
        return {name: part for name, part in vars(x).items() if name not in _MADE} | dict(enumerate(x.__bases__))
    if isinstance(x, ModuleType):
        return {name: part for name, part in vars(x).items() if not name.startswith("__")}
    if isinstance(x, staticmethod | classmethod):
        return {"function": x.__func__}
    if isinstance(x, property):
        return {"get": x.fget, "set": x.fset}
    return x if isinstance(x, dict) else dict(enumerate(x)) if isinstance(x, list | tuple) else {}


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _told(code: CodeType) -> tuple[Any, ...]:
    """What code computes, wherever it is written."""
    constants = [_told(each) if isinstance(each, CodeType) else (type(each), each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)
