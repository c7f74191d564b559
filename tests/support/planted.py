"""Modules that a stranger has planted in a folder: each leaves its name there when it runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

_LOCK = Path(__file__).parents[2] / "requirements.lock"
# The name that the folder keeps of a module that ran. `open` needs no import.
_PLANT = "with open({mark!r}, 'w'): pass\n"
_MARK = "ran."


def known_names() -> list[str]:
    """The modules of the standard library, of what is installed, and of what the lock file names."""
    locked = re.findall(r"^([\w.-]+)==", _LOCK.read_text(), re.MULTILINE)
    names = {*sys.stdlib_module_names, *packages_distributions(), *(name.replace("-", "_") for name in locked)}
    return sorted(name for name in names if name.isidentifier())


def plant(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / f"{name}.py").write_text(_PLANT.format(mark=str(folder / f"{_MARK}{name}")))


def ran(folder: Path) -> list[str]:
    """The planted modules that ran."""
    return sorted(path.name.removeprefix(_MARK) for path in folder.glob(f"{_MARK}*"))
