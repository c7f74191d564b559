import os
import time

import psutil
import pytest

from singa_dask.profiling.processors import core_seconds


@pytest.mark.parametrize("where", ["machine", "network"])
def test_computing_counts(where):
    began, before = time.process_time(), core_seconds(where)
    while time.process_time() < began + 0.3:
        pass
    assert core_seconds(where) - before >= 0.25


def test_only_the_cores_of_this_process_count_for_its_host(monkeypatch):
    idle = psutil.cpu_times(percpu=True)[0]._replace(idle=0.0, iowait=0.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [idle._replace(idle=float(i)) for i in range(4)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3, 9})
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    assert core_seconds("network") == 2 * 10.0 - (1 + 3)
