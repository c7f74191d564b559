"""Fixtures for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from support.leaks import leaks_forbidden

# A shell starts its background jobs with SIGINT ignored, and the commands that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """The test leaves no process and no shared-memory segment."""
    with leaks_forbidden():
        yield
