"""The local cluster: what its workers get, and that they are gone afterwards whatever happened."""

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support.commands import first_line, kill_and_see_others_end, run_command

from singa_dask.cluster import local_cluster
from singa_dask.cluster.workers import answering

pytestmark = pytest.mark.timeout(180)
_THREADS = "OMP_NUM_THREADS"

_INTERRUPTED = """
import os, signal, sys, time
from singa_dask.cluster import local_cluster
from singa_dask.cluster.workers import answering

with local_cluster(1) as client:
    before = [worker.pid for worker in answering(client, 10.0)[0]]
    try:
        print("ready", flush=True)
        time.sleep(20)
        print("never interrupted", flush=True)
    except KeyboardInterrupt:
        time.sleep(0.5)
        same = [worker.pid for worker in answering(client, 10.0)[0]] == before
        print("workers", "live" if same else "died", flush=True)
"""

_INTERRUPTED_AT_ONCE = """
import os, signal, threading, time
import psutil
from singa_dask.cluster import local_cluster

def workers():
    return [child for child in psutil.Process().children() if "spawn_main" in str(child.cmdline())]

def interrupt():
    while not workers():
        time.sleep(0.01)
    time.sleep(0.2)
    os.killpg(0, signal.SIGINT)  # as a terminal does

if __name__ == "__main__":
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with local_cluster(2):
            print("never interrupted", flush=True)
    except KeyboardInterrupt:
        print("interrupted,", len(workers()), "workers left", flush=True)
"""

# What `singa-dask train` does: workers are forked from a process that was started before it was known what they get.
_FORKED = """
import os, signal, sys
import dask, numba, psutil
import numpy as np
from threadpoolctl import threadpool_info
from singa_dask.cluster import local_cluster
from singa_dask.cluster.fork_server import fork_server

def threads():
    blas = [library["num_threads"] for library in threadpool_info() if library["internal_api"] == "openblas"]
    names = ("OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_", "PYTHONHASHSEED")
    variables = [os.environ.get(name) for name in names]
    return os.getppid(), set(blas), numba.config.NUMBA_NUM_THREADS, variables, np.random.random()

if __name__ == "__main__":
    before, handler = dict(os.environ), signal.getsignal(signal.SIGINT)
    with fork_server():
        assert dict(os.environ) == before and signal.getsignal(signal.SIGINT) is handler
        server = None
        while server is None:  # a child is a copy of this process before it is a program of its own
            children = psutil.Process().children()
            server = next((child for child in children if "forkserver import main" in str(child.cmdline())), None)
        with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
            with local_cluster(2, cores_per_worker=3) as client:
                told = client.run(threads).values()
                assert len({number for *_, number in told}) == 2, "random numbers of their own"
                for parent, blas, numba_threads, variables, _ in told:
                    assert parent == server.pid
                    assert (blas, numba_threads) == ({3}, 3)
                    assert variables == ["3", "3", "134217728", "6640"]
    assert dict(os.environ) == before
    assert server.wait(5) is not None
    print("as it should be")
"""


def test_forked_workers_have_threads_and_an_environment_of_their_own(no_leaks):
    given = ("_NUM_THREADS", "_THRESHOLD_", "HASHSEED")  # Dask, in this process, may have set some of them
    environment = {name: value for name, value in os.environ.items() if not name.endswith(given)}
    assert run_command([sys.executable, "-c", _FORKED], env=environment).out == "as it should be\n"


def pages_of_temporaries():
    """How often the system was asked for a page by 50 arrays of 1,024 pages, made and freed one after the other."""
    for count in (5, 50):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(count):
            np.ones(1 << 22, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_workers_share_the_cores_use_memory_again_and_the_environment_stays(no_leaks, monkeypatch):
    for name in (_THREADS, "NUMBA_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    with local_cluster(2) as client:
        assert set(client.run(os.environ.get, _THREADS).values()) == {str(share)}
        assert set(client.run(os.environ.get, "NUMBA_NUM_THREADS").values()) == {str(share)}
        assert all(pages < 5 * 1024 for pages in client.run(pages_of_temporaries).values()), "of temporary arrays"
        workers = answering(client, 10.0)[0]
        assert len(workers) == 2 and all(worker.host == "127.0.0.1" and worker.nanny for worker in workers)
    assert dict(os.environ) == before


_UNGUARDED = """
from singa_dask import Job, layers, train, updaters

net = [layers.RecordInput(path="dataset:digits/train", batchsize=96), layers.InnerProduct(num_output=10)]
train(Job(name="digits", layers=[*net, layers.SoftmaxLoss()], updater=updaters.SGD(lr=0.05), train_steps=1))
"""


def test_a_script_without_a_guard_is_told_of_it(tmp_path, no_leaks):
    (tmp_path / "train.py").write_text(_UNGUARDED)
    ran = run_command([sys.executable, "train.py"], cwd=tmp_path, code=1)
    told = [line for line in ran.err.splitlines() if line.startswith("singa_dask.errors.")]
    guard = 'In a script the call must stand below `if __name__ == "__main__":`, as workers import the script.'
    assert told == [f"singa_dask.errors.ClusterError: The workers of a local Dask cluster did not start: {guard}"]


def test_stopped_and_busy_workers_are_closed(no_leaks):
    with local_cluster(2) as client:
        stopped, busy = answering(client, 10.0)[0]
        client.submit(time.sleep, 3600, workers=[busy.address])
        os.kill(stopped.pid, signal.SIGSTOP)


def test_ctrl_c_reaches_the_driver_and_spares_the_workers(no_leaks):
    driver = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert first_line(driver) == "ready\n"
        os.killpg(driver.pid, signal.SIGINT)
        out, _ = driver.communicate(timeout=60)
    finally:
        driver.kill()
    assert out == "workers live\n" and driver.returncode == 0


def test_ctrl_c_while_workers_start_leaves_none_of_them(no_leaks):
    ran = run_command([sys.executable, "-c", _INTERRUPTED_AT_ONCE], start_new_session=True)
    assert (ran.out, ran.err) == ("interrupted, 0 workers left\n", "")


def test_a_killed_driver_leaves_no_worker(no_leaks):
    driver = subprocess.Popen([sys.executable, "-c", _INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert first_line(driver) == "ready\n"
    kill_and_see_others_end(driver)
