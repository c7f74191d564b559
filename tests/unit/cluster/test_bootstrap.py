"""What of becoming a rank can be tested without a world."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from singa_dask.cluster import bootstrap, join
from singa_dask.cluster.join import interface_of, join_world
from singa_dask.cluster.pmi_server import PmiEndpoint, PmiServer
from singa_dask.cluster.rank import current_task
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


def test_launchers_are_hidden_and_come_back(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "5")
    monkeypatch.setenv("PMIX_RANK", "5")
    with join._environment({"PMI_RANK": "0", "PMI_FD": "9"}):
        assert os.environ["PMI_RANK"] == "0" and "PMIX_RANK" not in os.environ
    assert os.environ["PMI_RANK"] == "5" and os.environ["PMIX_RANK"] == "5" and "PMI_FD" not in os.environ


def test_settings_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert "UCX_TLS" not in join._network("")
    monkeypatch.delenv("UCX_TLS")
    assert join._network("")["UCX_TLS"] == "self,sm"
    assert join._network("127.0.0.1")["FI_TCP_IFACE"] == interface_of("127.0.0.1")


def test_long_messages_go_at_once_over_tcp(monkeypatch):
    monkeypatch.delenv("UCX_RNDV_THRESH", raising=False)
    for infiniband in (False, True):
        monkeypatch.setattr(join.os.path, "isdir", lambda path, there=infiniband: there)
        assert join._network("127.0.0.1").get("UCX_RNDV_THRESH") == (None if infiniband else "intra:auto,inter:inf")
    assert "UCX_RNDV_THRESH" not in join._network("")
    monkeypatch.setattr(join.os.path, "isdir", lambda path: False)
    monkeypatch.setenv("UCX_RNDV_THRESH", "8k")
    assert "UCX_RNDV_THRESH" not in join._network("127.0.0.1")


def test_open_mpi_is_pointed_to_dask_mpi(monkeypatch):
    mpi = bootstrap.load_mpi()
    monkeypatch.setattr(mpi, "Get_library_version", lambda: "Open MPI v5.0.6, package: Debian")
    with pytest.raises(ClusterError, match=r"Open MPI v5.*dask-mpi"):
        bootstrap.load_mpi()


def test_a_driver_that_cannot_be_reached_is_named():
    with PmiServer(["a"]) as server:
        gone = server.endpoint
    with pytest.raises(ClusterError, match=rf"rank 0 .* cannot reach the driver at 127.0.0.1:{gone.port}"):
        join_world(gone, 0, 1, "", time.monotonic() + 2)


def test_a_wrong_token_is_refused():
    with PmiServer(["a", "a"]) as server:
        at = server.endpoint
        forged = PmiEndpoint(at.host, at.port, "0" * 64, at.kvsname)
        with pytest.raises(ClusterError, match="refused this rank"):
            join_world(forged, 0, 2, "", time.monotonic() + 5)
        assert not server.state.failure


def test_a_rank_does_not_wait_for_ever_for_the_others():
    with PmiServer(["a", "a"]) as server:
        start = time.monotonic()
        with pytest.raises(ClusterError, match="not every rank"):
            join_world(server.endpoint, 0, 2, "", time.monotonic() + 0.3)
        assert time.monotonic() - start < 2.0


def test_outside_of_a_group_there_is_no_current_task():
    with pytest.raises(ClusterError, match="form_group"):
        current_task()


@pytest.mark.parametrize("library", ["ucx_shm_posix", "mpich_shm"])
def test_segments_that_nobody_holds_are_removed(library):
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


def test_a_process_that_no_launcher_started_may_use_any_library(monkeypatch):
    mpi = bootstrap.load_mpi()
    import mpi4py

    assert mpi4py.rc.initialize is False and mpi4py.rc.finalize is False
    monkeypatch.setattr(mpi, "Get_library_version", lambda: "Open MPI v5.0.6, package: Debian")
    assert bootstrap.load_mpi(launched=True) is mpi


def test_a_missing_library_is_named_with_the_way_to_get_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    monkeypatch.delattr("mpi4py.MPI", raising=False)
    with pytest.raises(MpiUnusable, match=r"MPI cannot be loaded .*pip install mpich"):
        bootstrap.load_mpi()
