"""Where a rank is in its code."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = tuple({str(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")})
_COMPILERS = ("/numba/", "/llvmlite/")
# Whose code waits: for other processes, for data, for the disk.
_WAITING = ("comm/", "server/", "data/", "training/group_checkpoints", "training/checkpoint")


def place_of(stack: Iterable[tuple[str, str, int]]) -> tuple[str, bool]:
    """The innermost place that is not in a library, as text, and whether it waits or compiles.

    stack: functions with their files and lines, the innermost first.
    """
    compiles = False
    for function, file, line in stack:
        if file.startswith(_LIBRARIES) and not file.startswith(_PACKAGE):
            compiles = compiles or any(name in file for name in _COMPILERS)
            continue
        own = file.removeprefix(f"{_PACKAGE}/") if file.startswith(_PACKAGE) else ""
        return f"{function}, {file}:{line}", compiles or own.startswith(_WAITING)
    return "", False
