"""Fixtures for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.leaks import leaks_forbidden


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """The test leaves no process and no shared-memory segment."""
    with leaks_forbidden():
        yield
