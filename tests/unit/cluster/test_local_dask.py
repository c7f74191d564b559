"""A local cluster's settings, its start and its end, with a Dask that the test plays."""

import os
import signal
import tempfile
import threading
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest
from distributed.nanny import WorkerProcess

from singa_dask.cluster import local_cluster, local_dask
from singa_dask.cluster.cores import THREAD_VARIABLES, cores_each, equal_share
from singa_dask.errors import ClusterError, ConfigError

PIDS = count(17)


class LocalCluster:
    """made: all that have started. fails: what its start raises; ends: the exit code of a worker's process before;
    hangs: closing it does not end before its workers are killed."""

    def __init__(self, **options):
        self.options, self.closed = options, False
        self.settings = {name: dask.config.get(name) for name in ("distributed.scheduler.worker-ttl",)}
        self.variables = dict(dask.config.get("distributed.nanny.pre-spawn-environ"))
        self.thread = threading.current_thread()
        self.masked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.workers = {i: SimpleNamespace(pid=pid) for i, pid in enumerate((11, None, 13))}
        self.killed = threading.Event()
        self.scratch = dask.config.get("temporary-directory")
        if LocalCluster.ends is not None:
            WorkerProcess._death_message(SimpleNamespace(), next(PIDS), LocalCluster.ends)
        if LocalCluster.fails:
            raise LocalCluster.fails
        os.environ["WRITTEN_BY_A_NANNY"] = "1"
        LocalCluster.made.append(self)

    def close(self):
        if LocalCluster.hangs:
            assert self.killed.wait(10.0)
        self.closed = True


class Client(AbstractContextManager):
    def __init__(self, cluster):
        self.cluster, self.closed = cluster, False

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

    LocalCluster.made, LocalCluster.fails, LocalCluster.hangs, LocalCluster.ends = [], None, False, None
    monkeypatch.setattr(WorkerProcess, "_death_message", WorkerProcess._death_message)
    monkeypatch.setattr(local_dask, "LocalCluster", LocalCluster)
    monkeypatch.setattr(local_dask, "Client", Client)
    monkeypatch.setattr(local_dask.os, "kill", kill)
    monkeypatch.setattr(local_dask, "unlink_orphans", lambda: kills.append("orphans"))  # at the start, and at the end
    return kills


def test_a_cluster_has_its_settings_while_it_lives_and_leaves_nothing(kills, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before, ttl = dict(os.environ), dask.config.get("distributed.scheduler.worker-ttl")
    with local_cluster(
        3, threads_per_worker=2, cores_per_worker=5, worker_ttl_s=4.0, dashboard_address=":1"
    ) as client:
        cluster = client.cluster
        assert not client.closed and not cluster.closed and kills == ["orphans"]
        os.environ["OMP_NUM_THREADS"] = "1"
    assert client.closed and cluster.closed
    assert dict(os.environ) == before and dask.config.get("distributed.scheduler.worker-ttl") == ttl
    assert cluster.options == cluster.options | {
        "n_workers": 3,
        "threads_per_worker": 2,
        "processes": True,
        "host": "127.0.0.1",
        "dashboard_address": ":1",
        "memory_limit": 0,
        "preload": ["singa_dask.cluster.worker_setup"],
    }
    assert cluster.settings == {"distributed.scheduler.worker-ttl": "4.0s"}
    assert {cluster.variables[name] for name in THREAD_VARIABLES} == {"5"}
    assert int(cluster.variables["MALLOC_TRIM_THRESHOLD_"]) > 1 << 20


def test_workers_inherit_no_closed_descriptor(kills):
    kept = os.dup(0)
    try:
        os.close(0)
        with local_cluster(1):
            assert os.readlink("/proc/self/fd/0") == os.devnull and os.get_inheritable(0)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


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
    assert kills == ["orphans", *once * (1 + hangs), "orphans"] and LocalCluster.made[0].closed
    for timer in set(threading.enumerate()) - before:
        timer.join(5.0)
        assert not timer.is_alive(), "it would kill later processes of the same numbers"


def test_ctrl_c_does_not_reach_the_start(kills):
    with local_cluster(1) as client:
        assert client.cluster.thread is not threading.main_thread() and client.cluster.masked
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def after(error, cause=None, context=None):
    """An error that others have led to."""
    error.__cause__, error.__context__ = cause, context
    return error


NO_NANNY = "Nanny failed to start."  # what Dask says if a worker does not start
NO_THREADS = ValueError("Number of threads specified must be > 0.")
WHILE_CLEANING_UP = after(AssertionError("Status.init"), context=OSError(28, "No space left"))


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (after(RuntimeError(NO_NANNY), NO_THREADS), None, "Number of threads .* must be > 0"),
        (after(RuntimeError(NO_NANNY), WHILE_CLEANING_UP), None, "No space left.* /dev/shm has .* KiB free"),
        (RuntimeError("no more processes"), None, "RuntimeError: no more processes"),
        (after(RuntimeError(NO_NANNY), RuntimeError(NO_NANNY)), 3, "ended with exit code 3 before it had"),
        (RuntimeError(NO_NANNY), -signal.SIGKILL, r"was killed by SIGKILL \(.*\) before it had"),
        (RuntimeError(NO_NANNY), local_dask.UNGUARDED, "__main__"),
    ],
)
def test_a_start_that_fails_gives_the_last_words_of_a_worker(kills, fault, code, said):
    LocalCluster.fails, LocalCluster.ends = fault, code
    with pytest.raises(ClusterError, match=rf"did not start: .*{said}") as caught, local_cluster(1):
        pytest.fail("there is no cluster")
    assert "Nanny" not in str(caught.value) and ("__main__" in str(caught.value)) == (said == "__main__")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("distributed.comm.timeouts.connect", -1),
        ("distributed.comm.timeouts.tcp", "soon"),
        ("distributed.comm.retry.delay.min", "-3s"),
    ],
)
def test_a_setting_that_is_no_duration_is_named_before_anything_starts(kills, setting, value):
    said = rf"{setting}.* Received: '?{value}"
    with dask.config.set({setting: value}), pytest.raises(ConfigError, match=said), local_cluster(1):
        pytest.fail("there is no cluster")
    assert not LocalCluster.made


def test_scratch_is_a_private_folder_that_is_gone_afterwards(kills, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "dask-scratch-space").mkdir()  # of anybody
    with local_cluster(1) as client:
        folder = Path(client.cluster.scratch)
        assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
        with local_cluster(1) as other:
            assert other.cluster.scratch != str(folder)
        assert folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["dask-scratch-space"]


def test_a_scratch_folder_of_the_users_stays(kills, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with dask.config.set({"temporary-directory": "/mine"}), local_cluster(1) as client:
        assert client.cluster.scratch == "/mine" and not any(tmp_path.iterdir())


@pytest.mark.parametrize("whole", [True, False])
def test_ctrl_c_during_the_start_closes_what_has_started(kills, monkeypatch, whole):
    LocalCluster.fails = None if whole else RuntimeError("no more processes")

    class Future(local_dask.Future):
        def result(self, timeout=None):
            if threading.current_thread() is threading.main_thread() and not self.done():
                raise KeyboardInterrupt
            return super().result(timeout)

    begin, made, wait = threading.Event(), LocalCluster.__init__, local_dask.wait

    def late(self, **options):
        assert begin.wait(10.0)
        made(self, **options)

    monkeypatch.setattr(LocalCluster, "__init__", late)
    monkeypatch.setattr(local_dask, "Future", Future)
    monkeypatch.setattr(local_dask, "wait", lambda futures, timeout: begin.set() or wait(futures, timeout))
    with pytest.raises(KeyboardInterrupt), local_cluster(1):
        pytest.fail("there is no cluster")
    assert [cluster.closed for cluster in LocalCluster.made] == [True] * whole
    assert bool(set(kills) - {"orphans"}) == whole


def test_variables_that_are_set_stay(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for name in THREAD_VARIABLES[1:]:
        monkeypatch.delenv(name, raising=False)
    with suppress(ValueError), cores_each(3):
        assert [os.environ[name] for name in THREAD_VARIABLES] == ["7", "3", "3", "3"]
        raise ValueError
    assert [os.environ.get(name) for name in THREAD_VARIABLES] == ["7", None, None, None]
