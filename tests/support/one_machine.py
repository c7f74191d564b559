"""Threads that take themselves for the workers of one machine: their parameters are in memory that all of them see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from singa_dask.comm import ThreadCommunicator, run_members


class OneMachine(ThreadCommunicator):
    def one_machine(self) -> bool:
        return True


def run_on_one_machine(size: int, fn: Callable[..., Any], *args: Any, timeout_s: float = 30.0) -> list[Any]:
    """As run_threads."""
    return run_members(OneMachine.create(size, timeout_s), fn, *args)
