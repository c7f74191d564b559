"""A local cluster's settings, its start and its end, with a Dask that the test plays."""

import os
import signal
import threading
from contextlib import suppress
from types import SimpleNamespace

import dask
import pytest

from singa_dask.cluster import local_cluster, local_dask
from singa_dask.cluster.cores import THREAD_VARIABLES, cores_each, equal_share
from singa_dask.errors import ClusterError


class LocalCluster:
    """fails: what its start raises; hangs: closing it does not end before its workers are killed."""

    made: list
    fails: BaseException | None
    hangs: bool

    def __init__(self, **options):
        self.options, self.closed = options, False
        self.settings = {name: dask.config.get(name) for name in ("distributed.scheduler.worker-ttl",)}
        self.variables = dict(dask.config.get("distributed.nanny.pre-spawn-environ"))
        self.thread = threading.current_thread()
        self.masked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.workers = {i: SimpleNamespace(pid=pid) for i, pid in enumerate((11, None, 13))}
        self.killed = threading.Event()
        if LocalCluster.fails:
            raise LocalCluster.fails
        os.environ["WRITTEN_BY_A_NANNY"] = "1"
        LocalCluster.made.append(self)

    def close(self):
        if LocalCluster.hangs:
            assert self.killed.wait(10.0)
        self.closed = True


class Client:
    def __init__(self, cluster):
        self.cluster, self.closed = cluster, False

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        assert not self.cluster.closed
        self.closed = True


@pytest.fixture
def kills(monkeypatch):
    """The processes that were killed."""
    kills: list = []

    def kill(pid, number):
        kills.append((pid, number))
        for cluster in LocalCluster.made:
            cluster.killed.set()
        if pid == 11:
            raise ProcessLookupError

    LocalCluster.made, LocalCluster.fails, LocalCluster.hangs = [], None, False
    monkeypatch.setattr(local_dask, "LocalCluster", LocalCluster)
    monkeypatch.setattr(local_dask, "Client", Client)
    monkeypatch.setattr(local_dask.os, "kill", kill)
    monkeypatch.setattr(local_dask, "unlink_orphans", lambda: kills.append("orphans"))
    return kills


def test_a_cluster_has_its_settings_while_it_lives_and_leaves_nothing(kills, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before, ttl = dict(os.environ), dask.config.get("distributed.scheduler.worker-ttl")
    with local_cluster(
        3, threads_per_worker=2, cores_per_worker=5, worker_ttl_s=4.0, dashboard_address=":1"
    ) as client:
        cluster = client.cluster
        assert not client.closed and not cluster.closed and not kills
        os.environ["OMP_NUM_THREADS"] = "1"
    assert client.closed and cluster.closed
    assert dict(os.environ) == before and dask.config.get("distributed.scheduler.worker-ttl") == ttl
    options = cluster.options
    assert (options["n_workers"], options["threads_per_worker"], options["processes"]) == (3, 2, True)
    assert (options["host"], options["dashboard_address"], options["memory_limit"]) == ("127.0.0.1", ":1", 0)
    assert options["preload"] == ["singa_dask.cluster.worker_setup"]
    assert cluster.settings == {"distributed.scheduler.worker-ttl": "4.0s"}
    assert {cluster.variables[name] for name in THREAD_VARIABLES} == {"5"}
    assert int(cluster.variables["MALLOC_TRIM_THRESHOLD_"]) > 1 << 20


def test_workers_share_the_cores_unless_told_otherwise(kills, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    with local_cluster(3) as client:
        assert {client.cluster.variables[name] for name in THREAD_VARIABLES} == {"2"}
    assert [equal_share(n) for n in (1, 3, 8, 9)] == [8, 2, 1, 1]


@pytest.mark.parametrize("hangs", [False, True])
def test_processes_that_outlive_the_cluster_are_killed(kills, monkeypatch, hangs):
    monkeypatch.setattr(local_dask, "_CLOSING_S", 0.05 if hangs else 60.0)
    LocalCluster.hangs, before = hangs, set(threading.enumerate())
    with pytest.raises(ValueError, match="in the block"), local_cluster(1):
        raise ValueError("in the block")
    once = [(11, signal.SIGKILL), (13, signal.SIGKILL)]
    assert kills == [*once * (1 + hangs), "orphans"] and LocalCluster.made[0].closed
    for timer in set(threading.enumerate()) - before:
        timer.join(5.0)
        assert not timer.is_alive(), "it would kill later processes of the same numbers"


def test_ctrl_c_does_not_reach_the_start(kills):
    with local_cluster(1) as client:
        assert client.cluster.thread is not threading.main_thread() and client.cluster.masked
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_start_that_fails_says_what_a_script_needs(kills):
    LocalCluster.fails = RuntimeError("no more processes")
    with pytest.raises(ClusterError, match=r"did not start \(no more processes\)\. .*__main__"), local_cluster(1):
        pytest.fail("there is no cluster")


@pytest.mark.parametrize("whole", [True, False])
def test_ctrl_c_during_the_start_closes_what_has_started(kills, monkeypatch, whole):
    if not whole:
        LocalCluster.fails = RuntimeError("no more processes")

    class Future(local_dask.Future):
        def result(self, timeout=None):
            if threading.current_thread() is threading.main_thread() and not self.done():
                raise KeyboardInterrupt
            return super().result(timeout)

    begin = threading.Event()
    made = LocalCluster.__init__

    def late(self, **options):
        assert begin.wait(10.0)
        made(self, **options)

    monkeypatch.setattr(LocalCluster, "__init__", late)
    monkeypatch.setattr(local_dask, "Future", Future)
    wait = local_dask.wait
    monkeypatch.setattr(local_dask, "wait", lambda futures, timeout: begin.set() or wait(futures, timeout))
    with pytest.raises(KeyboardInterrupt), local_cluster(1):
        pytest.fail("there is no cluster")
    assert [cluster.closed for cluster in LocalCluster.made] == [True] * whole
    assert bool(kills) == whole


def test_variables_that_are_set_stay(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for name in THREAD_VARIABLES[1:]:
        monkeypatch.delenv(name, raising=False)
    with suppress(ValueError), cores_each(3):
        assert [os.environ[name] for name in THREAD_VARIABLES] == ["7", "3", "3", "3"]
        raise ValueError
    assert [os.environ.get(name) for name in THREAD_VARIABLES] == ["7", None, None, None]
