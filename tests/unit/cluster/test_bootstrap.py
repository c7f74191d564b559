"""What of becoming a rank can be tested without a world."""

import mmap
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import mpi4py
import psutil
import pytest

from singa_dask.cluster import bootstrap, join
from singa_dask.cluster.bootstrap import mpi_library
from singa_dask.cluster.join import interface_of, join_world
from singa_dask.cluster.pmi_server import PmiServer
from singa_dask.cluster.segments import segment_name, unlink_orphans, unlink_segments
from singa_dask.errors import ClusterError, MpiUnusable


def test_importing_the_package_starts_no_mpi():
    code = "import sys, singa_dask, singa_dask.comm, singa_dask.cluster; sys.exit('mpi4py.MPI' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 0


def test_the_loopback_interface_is_found():
    assert interface_of("127.0.0.1") == interface_of("localhost")
    with pytest.raises(ClusterError, match=r"no network interface .* 192\.0\.2\.77"):
        interface_of("192.0.2.77")


def test_the_name_of_the_shared_memory_follows_from_that_of_the_world():
    assert segment_name("kvs_abc") == "mpich_shm_79f992aa_0" and segment_name("kvs_abd") == "mpich_shm_74f98acb_0"


@pytest.mark.parametrize(
    ("host", "user", "infiniband", "name", "value"),
    [
        ("", {}, False, "UCX_TLS", "self,sm"),
        ("", {"UCX_TLS": "tcp"}, False, "UCX_TLS", None),
        ("", {}, False, "UCX_RNDV_THRESH", None),
        ("127.0.0.1", {}, False, "FI_TCP_IFACE", interface_of("127.0.0.1")),
        ("127.0.0.1", {}, False, "UCX_RNDV_THRESH", "intra:auto,inter:inf"),
        ("127.0.0.1", {}, True, "UCX_RNDV_THRESH", None),
        ("127.0.0.1", {"UCX_RNDV_THRESH": "8k"}, False, "UCX_RNDV_THRESH", None),
    ],
)
def test_settings_of_the_network_that_the_user_has_not_made(monkeypatch, host, user, infiniband, name, value):
    """Long messages go at once over TCP."""
    monkeypatch.setattr(join.os.path, "isdir", lambda path: infiniband)
    monkeypatch.delenv(name, raising=False)
    for variable, given in user.items():
        monkeypatch.setenv(variable, given)
    assert join._network(host).get(name) == value


def test_open_mpi_is_pointed_to_dask_mpi_where_no_launcher_has_started_the_process(monkeypatch):
    mpi = bootstrap.load_mpi()
    assert mpi4py.rc.initialize is False and mpi4py.rc.finalize is False
    monkeypatch.setattr(mpi, "Get_library_version", lambda: "Open MPI v5.0.6, package: Debian")
    assert bootstrap.load_mpi(launched=True) is mpi
    with pytest.raises(ClusterError, match=r"Open MPI v5.*dask-mpi"):
        bootstrap.load_mpi()


@pytest.mark.parametrize(
    ("other", "closed", "seconds", "match"),
    [
        ({}, True, 20.0, "rank 0 .* cannot reach the driver at 127.0.0.1:"),
        ({"token": "0" * 64}, False, 20.0, "refused this rank"),
        ({}, False, 0.3, "not every rank"),
    ],
    ids=["unreachable", "wrong-token", "alone"],
)
def test_a_rank_that_meets_nobody_says_why(other, closed, seconds, match):
    with PmiServer(["a", "a"]) as server:
        if closed:
            server.close()
        with pytest.raises(ClusterError, match=match):
            join_world(replace(server.endpoint, **other), 0, 2, "", time.monotonic() + seconds)


@pytest.mark.parametrize("library", ["ucx_shm_posix", "mpich_shm"])
def test_segments_that_nobody_holds_are_removed(library, monkeypatch):
    monkeypatch.setattr(psutil, "process_iter", lambda: [psutil.Process()])  # the others hold none
    orphan, held = (f"/dev/shm/{library}_{os.getpid()}_{name}" for name in ("orphan", "held"))
    Path(orphan).write_bytes(b"x")
    with open(held, "wb"):
        unlink_orphans()
        assert not os.path.exists(orphan)
        assert os.path.exists(held)
    unlink_orphans()
    assert not os.path.exists(held)


def test_segments_of_a_process_and_of_a_world_lose_their_names(tmp_path, monkeypatch):
    """A process maps a segment; the world's is there under its hash; what is not MPICH's stays."""
    mapped, other = (Path(f"/dev/shm/{name}_{os.getpid()}") for name in ("mpich_shm_test", "numpy_test"))
    world = Path(f"/dev/shm/{segment_name(f'kvs_{os.getpid()}')}")
    maps = []
    for path in (mapped, other, world):
        path.write_bytes(b"x" * 4096)
        with open(path, "r+b") as file:
            maps.append(mmap.mmap(file.fileno(), 4096) if path != world else None)
    try:
        unlink_segments()
        assert [path.exists() for path in (mapped, other, world)] == [False, True, True]
        unlink_segments(f"kvs_{os.getpid()}", os.getpid())
        assert not world.exists() and other.exists()
        unlink_segments(f"kvs_{os.getpid()}")  # nothing is left: no error
    finally:
        for path in (mapped, other, world):
            path.unlink(missing_ok=True)


def test_a_missing_library_is_named_with_the_way_to_get_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    monkeypatch.delattr("mpi4py.MPI", raising=False)
    with pytest.raises(MpiUnusable, match=r"MPI cannot be loaded .*pip install mpich"):
        bootstrap.load_mpi()


@pytest.fixture
def run(monkeypatch):
    """The run of the process."""
    run = Mock()
    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    return run


def test_the_name_of_the_library_is_one_line(run):
    run.return_value.stdout = "found MPICH  Version:\t5.0\n"
    assert mpi_library(7.0) == "MPICH Version: 5.0"
    ((command,), options) = run.call_args
    assert command[1:3] == ["-P", "-c"] and options == {"capture_output": True, "text": True, "timeout": 7.0}


@pytest.mark.parametrize(
    ("stdout", "stderr", "raises", "match"),
    [
        (
            "fault MPI cannot be loaded (no libmpi.so)\n",
            "a warning",
            None,
            r"^MPI cannot be loaded \(no libmpi\.so\)$",
        ),
        (
            "",
            "x" * 1000 + "undefined symbol\n",
            None,
            r"^MPI cannot be loaded: x{484}undefined symbol\. Install it: `pip install mpich`\.$",
        ),
        ("", "", subprocess.TimeoutExpired("python", 3.0), "did not load within 3 s"),
    ],
    ids=["fault", "died", "hangs"],
)
def test_a_library_that_does_not_load_is_an_error(run, stdout, stderr, raises, match):
    run.return_value, run.side_effect = SimpleNamespace(stdout=stdout, stderr=stderr), raises
    with pytest.raises(ClusterError, match=match):
        mpi_library(3.0)
