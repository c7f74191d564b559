"""What tests of supervision share."""

import signal
from collections.abc import Iterator

import pytest

from singa_dask.cluster.stop_signals import FOR_THE_DRIVER


@pytest.fixture
def python_handles_signals() -> Iterator[None]:
    """As in a process of its own: an earlier test may have called the command, which handles them otherwise."""
    before = {n: signal.signal(n, signal.default_int_handler) for n in {*FOR_THE_DRIVER, signal.SIGUSR1}}
    yield
    assert all(signal.getsignal(n) is signal.default_int_handler for n in before), "they are put back"
    for number, handler in before.items():
        signal.signal(number, handler)
