"""What each test costs: CPU seconds, kept in the report that `--junitxml` writes, where tests/budget.py reads them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from numba.core import event


class Costs:
    """A plug-in of pytest. A test pays for its process and for all that descend from it, and for its own fixtures.

    It does not pay for fixtures that others share, which are listed by their names, nor for kernels that are compiled
    or loaded in its process: both would fall on whichever test comes first.
    """

    def __init__(self) -> None:
        self._properties: list[tuple[str, object]] = []
        self._shared_s = self._began_s = self._others_s = 0.0
        self._kernels = _Kernels()
        event.register("numba:compiler_lock", self._kernels)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._properties, self._began_s, self._others_s = item.user_properties, self._paid(), _of_others()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Generator[None, Any, Any]:
        began_s = self._paid()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                cost_s = self._paid() - began_s
                self._shared_s += cost_s
                self._properties.append((f"fixture {fixturedef.argname}", round(cost_s, 2)))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        try:
            return (yield)
        finally:
            processes = "several processes" if _of_others() > self._others_s else "one process"
            self._properties.append((processes, round(self._paid() - self._began_s, 2)))

    def _paid(self) -> float:
        return sum(os.times()[:2]) + _of_others() - self._shared_s - self._kernels.seconds


class _Kernels(event.Listener):
    """CPU seconds of the threads that hold the lock of Numba's compiler."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._thread = threading.local()

    def on_start(self, event: event.Event) -> None:
        self._began().append(time.thread_time())

    def on_end(self, event: event.Event) -> None:
        began_s = self._began().pop()
        if not self._began():
            self.seconds += time.thread_time() - began_s

    def _began(self) -> list[float]:
        return self._thread.__dict__.setdefault("began", [])


def _of_others() -> float:
    """CPU seconds of the descendants of this process: of those that live, and of those that were waited for."""
    total = sum(os.times()[2:4])
    with suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # fails where there is no child: most tests
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
    return total
