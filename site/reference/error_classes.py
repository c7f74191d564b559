"""The errors: what they mean, and which modules raise them."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from pathlib import Path

from reference.docstrings import as_markdown
from singa_dask import errors

PACKAGE = Path(errors.__file__).parent
_RAISE = re.compile(r"^ +raise (\w+)\(", re.MULTILINE)


def classes() -> list[type[errors.SingaError]]:
    """Every error class of the package, each after its base."""
    found: list[type[errors.SingaError]] = []
    waiting: list[type[errors.SingaError]] = [errors.SingaError]
    while waiting:
        found.append(waiting.pop(0))
        waiting[:0] = [cls for cls in found[-1].__subclasses__() if cls.__module__ == errors.__name__]
    return found


def raised() -> dict[str, set[Path]]:
    """Class -> modules that raise it."""
    found: dict[str, set[Path]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in _RAISE.findall(path.read_text()):
            found[name].add(path)
    return found


def page() -> str:
    """All classes."""
    parts, places = [], raised()
    for cls in classes():
        names = inspect.signature(cls).parameters if "__init__" in vars(cls) else {}
        parts += [f"## {cls.__name__} {{ #{cls.__name__.lower()} }}", as_markdown(inspect.getdoc(cls) or "", names)]
        parts.append(f"Derives from `{cls.__bases__[0].__name__}`.")
        rooms: dict[str, list[str]] = defaultdict(list)
        for path in sorted(places.get(cls.__name__, ())):
            where = path.relative_to(PACKAGE.parent).with_suffix("").parts
            rooms[".".join(where[:2])] += [f"`{name}`" for name in where[2:] if name != "__init__"][-1:]
        lines = [f"- `{room}`{': ' if names else ''}{', '.join(names)}" for room, names in rooms.items()]
        parts += ["Raised in:", "\n".join(lines)] if lines else []
    return "\n\n".join(parts)
