import threading
import time

import pytest

from singa_dask.profiling import processors
from singa_dask.profiling.processors import Computing


@pytest.mark.parametrize("where", ["machine", "network"])
def test_what_other_threads_compute_is_taken(where):
    before = threading.active_count()
    with Computing(where) as computing:
        began = time.thread_time()
        while time.thread_time() < began + 0.3:
            sum(range(1000))
    assert computing.taken >= 0.25
    assert threading.active_count() == before


class Slow:
    """Ten times slower than it is on its own."""

    def seconds(self, repeats=1):
        return 1e-4

    def run(self, repeats):
        time.sleep(repeats * 1e-3)


def test_a_network_takes_what_the_computing_has_lost(monkeypatch):
    """The system computes outside of processes."""
    monkeypatch.setattr(processors, "Sum", Slow)
    with Computing("network") as lost, Computing("machine") as unseen:
        time.sleep(0.3)
    assert lost.taken >= 0.2 > unseen.taken


def test_waiting_takes_nothing():
    with Computing("machine") as computing:
        time.sleep(0.2)
    assert computing.taken < 0.1
