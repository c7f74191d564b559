"""Programs beside the package, imported as modules by tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def imported(name: str, *folders: str) -> Iterator[ModuleType]:
    """The module, with these folders of the project searched first. It and what it brings from there is forgotten."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in folders:
            patch.syspath_prepend(ROOT / folder)
        yield import_module(name)
    for name, module in list(sys.modules.items()):
        if any((ROOT / folder) in Path(getattr(module, "__file__", None) or "/").parents for folder in folders):
            del sys.modules[name]


def program(name: str, *folders: str) -> Callable[[], Iterator[ModuleType]]:
    """A fixture for the tests of a file: the module."""

    @pytest.fixture(scope="module")
    def fixture() -> Iterator[ModuleType]:
        with imported(name, *folders) as module:
            yield module

    return fixture
