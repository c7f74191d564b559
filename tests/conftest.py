"""Fixtures for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings
from support.leaks import leaks_forbidden

# A shell starts its background jobs with SIGINT ignored, and the commands that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A failure is enough for `make mutants`: do not search for a smaller example.
settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], derandomize=True, database=None)


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """The test leaves no process and no shared-memory segment."""
    with leaks_forbidden():
        yield
