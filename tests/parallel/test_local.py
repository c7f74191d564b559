"""The local cluster: what its workers get, and that they are gone afterwards whatever happened."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from singa_dask.cluster import local_cluster, probe

_THREADS = "OMP_NUM_THREADS"

_INTERRUPTED = """
import os, signal, sys, time
from singa_dask.cluster import local_cluster, probe

with local_cluster(2) as client:
    before = [worker.pid for worker in probe(client)]
    try:
        print("ready", flush=True)
        time.sleep(20)
        print("never interrupted", flush=True)
    except KeyboardInterrupt:
        time.sleep(0.5)
        same = [worker.pid for worker in probe(client)] == before
        print("workers", "live" if same else "died", flush=True)
"""


def test_workers_share_the_cores_and_the_environment_stays(no_leaks, monkeypatch):
    for name in (_THREADS, "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    with local_cluster(2) as client:
        assert set(client.run(os.environ.get, _THREADS).values()) == {str(share)}
        assert set(client.run(os.environ.get, "NUMBA_NUM_THREADS").values()) == {str(share)}
        workers = probe(client)
        assert len(workers) == 2 and all(worker.host == "127.0.0.1" and worker.nanny for worker in workers)
    assert dict(os.environ) == before


def test_threads_that_the_user_chose_stay(no_leaks, monkeypatch):
    monkeypatch.setenv(_THREADS, "7")
    with local_cluster(1) as client:
        assert set(client.run(os.environ.get, _THREADS).values()) == {"7"}
    assert os.environ[_THREADS] == "7"


def pages_of_temporaries():
    """How often the system was asked for a page by 50 arrays of 1,024 pages, made and freed one after the other."""
    for count in (5, 50):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            np.ones(1 << 22, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_workers_use_the_memory_of_temporary_arrays_again(no_leaks, monkeypatch):
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    with local_cluster(1) as client:
        (pages,) = client.run(pages_of_temporaries).values()
    assert pages < 5 * 1024


def test_closing_takes_seconds_with_stopped_and_busy_workers(no_leaks):
    with local_cluster(2) as client:
        stopped, busy = probe(client)
        client.submit(time.sleep, 3600, workers=[busy.address])
        time.sleep(0.2)
        os.kill(stopped.pid, signal.SIGSTOP)
        start = time.monotonic()
    assert time.monotonic() - start < 8.0


def test_ctrl_c_reaches_the_driver_and_spares_the_workers(no_leaks):
    driver = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert driver.stdout.readline() == "ready\n"
        os.killpg(driver.pid, signal.SIGINT)
        out, _ = driver.communicate(timeout=15)
    finally:
        driver.kill()
    assert out == "workers live\n" and driver.returncode == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_leaves_no_worker(how, no_leaks):
    driver = subprocess.Popen([sys.executable, "-c", _INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert driver.stdout.readline() == "ready\n"
    driver.send_signal(how)
    driver.communicate(timeout=10)
    assert driver.returncode == -how
