"""What `singa-dask doctor` says of clusters, each fit but for one thing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from singa_dask.cli import main
from singa_dask.cli.scheduler import Scheduler
from singa_dask.cluster import WorkerInfo
from singa_dask.cluster.gpus import GpuReport
from singa_dask.ops.gpu.visible import Gpu
from singa_dask.profiling.health import Health
from singa_dask.supervision import doctor
from singa_dask.supervision.doctor import ClusterReport, Level, checks

GB = 10**9
HERE = Health(
    versions={"python": "3.12.1", "singa-dask": "0.1", "dask": "2026.1", "distributed": "2026.1", "numpy": "2.4"},
    mpi="MPICH 5.0.2",
    blas=(("openblas", 2),),
    shared=(4 * GB, 8 * GB),
    folder="/tmp",
    temporary=(40 * GB, 80 * GB),
)
A, B = "tcp://a:1", "tcp://b:1"
INFOS = [
    WorkerInfo(address, host, f"{host}/1", 7, 4, "tcp://nanny", cpus=frozenset(range(4)))
    for address, host in ((A, "a"), (B, "b"))
]
GPU = GpuReport(seen=(Gpu(0, "x", "H200"),), cupy=True)
SOUND = ClusterReport(
    HERE, INFOS, "", {A: HERE, B: HERE}, "", {A: (0.001, 0.0005), B: (0.0, 0.0005)}, "runs", "", (2, 2, 0.01)
)


def with_health(**changes):
    return replace(SOUND, healths={A: HERE, B: replace(HERE, **changes)})


def with_workers(**changes):
    return replace(SOUND, workers=[replace(info, **changes) for info in INFOS])


def test_a_sound_cluster_has_no_faults():
    found = checks(SOUND)
    assert {check.level for check in found} == {Level.OK} and not any(check.way_out for check in found)
    by_subject = {check.subject: check.found for check in found}
    assert [*by_subject] == [
        "workers", "versions", "MPI", "cores", "shared memory", "files", "workspace", "GPUs", "clocks", "all-reduce",
    ]  # fmt: skip
    assert by_subject["workers"] == "2 workers on 2 hosts"
    assert by_subject["cores"] == "b: 1 worker, 4 cores; openblas with 2 threads"
    assert by_subject["clocks"] == "at most 1.0 ms apart from this machine's (to 0.5 ms)"
    assert by_subject["all-reduce"].startswith("4.19 MB of 2 workers on 2 hosts in 10 ms: each sends 419 MB per")


@pytest.mark.parametrize(
    ("cluster", "level", "subject", "says"),
    [
        (ClusterReport(HERE), "error", "workers", "no Dask worker answers"),
        (replace(SOUND, silent="tcp://c:1: TimeoutError()"), "warning", "workers", "not counted: tcp://c:1: Time"),
        (replace(SOUND, fault="tcp://a:1 could not measure"), "error", "workers", "could not measure"),
        (with_workers(nanny=""), "warning", "workers", "2 have no nanny"),
        (with_health(versions=HERE.versions | {"numpy": "2.3"}), "warning", "versions", "numpy is 2.4 here and 2.3"),
        (with_health(versions=HERE.versions | {"dask": "1"}), "error", "versions", "dask is 2026.1 here and 1 on"),
        (with_health(mpi="Open MPI 5"), "error", "MPI", "libraries: MPICH 5.0.2 (this process, tcp://a:1); Open"),
        (with_health(mpi="", mpi_fault="no libmpi"), "error", "MPI", "tcp://b:1: no libmpi"),
        (with_workers(cpus=frozenset({0}), host="a"), "warning", "cores", "1 core; openblas with 2 threads: workers"),
        (with_health(shared=(2 << 20, 64 << 20)), "error", "shared memory", "b: /dev/shm has 2.1 MB of 67.1 MB free"),
        (with_health(shared=(8 << 20, 64 << 20)), "warning", "shared memory", "/dev/shm has 8.39 MB of 67.1 MB free"),
        (with_health(shared=None), "error", "shared memory", "b: there is no /dev/shm"),
        (with_health(hdf5_fault="Read-only file system"), "error", "HDF5", "b: an HDF5 file in /tmp failed: Read"),
        (with_health(temporary=(5 << 20, GB)), "warning", "files", "/tmp has 5.24 MB free"),
        (replace(SOUND, unseen="runs: the Dask workers do not share it."), "error", "workspace", "do not share it"),
        (with_workers(gpus=replace(GPU, cupy=False)), "warning", "GPUs", "H200; no CuPy"),
        (with_health(gpu_faults=("CuPy device: needs NVRTC",)), "error", "GPUs", "needs NVRTC"),
        (with_health(gpu_faults=("NCCL is missing",)), "warning", "GPUs", "NCCL is missing"),
        (replace(SOUND, offsets={A: (-2.5, 0.001)}), "warning", "clocks", "that of tcp://a:1 is 2.5 s behind"),
        (replace(SOUND, summed="rank 1 did not answer"), "error", "all-reduce", "rank 1 did not answer"),
        (replace(SOUND, summed=(2, 2, 0.4)), "warning", "all-reduce", "in 400 ms: each sends 10.5 MB per second"),
        (replace(SOUND, summed=(2, 1, 0.05)), "warning", "all-reduce", "2 workers on 1 host in 50 ms"),
    ],
)  # fmt: skip
def test_each_fault_is_found_with_a_way_out(cluster, level, subject, says):
    if subject == "GPUs":
        gpus = cluster.workers[0].gpus if cluster.workers[0].gpus.seen else GPU
        cluster = replace(cluster, workers=[replace(info, gpus=gpus) for info in cluster.workers])
    faults = [check for check in checks(cluster) if check.level is not Level.OK]
    fault, *_ = [check for check in faults if says in check.found]
    assert (fault.level.value, fault.subject) == (level, subject)
    assert fault.way_out or subject in ("GPUs", "workspace")  # whose sentences have theirs
    assert not [check for check in faults if check is not fault and check.subject != "GPUs"]


@pytest.mark.parametrize(
    ("cluster", "code", "last"),
    [
        (SOUND, 0, "errors: 0, warnings: 0"),
        (with_workers(nanny=""), 0, "errors: 0, warnings: 1"),
        (with_health(shared=None), 1, "errors: 1, warnings: 0"),
    ],
)
def test_only_an_error_is_a_failure(cluster, code, last, monkeypatch):
    monkeypatch.setattr(Scheduler, "connect", lambda *args: "a client")
    monkeypatch.setattr(doctor, "examine", lambda client, workspace, note: cluster)
    done = CliRunner().invoke(main, ["doctor", "--scheduler", "tcp://a:8786"])
    assert done.exit_code == code and done.stdout.splitlines()[-1] == last
    assert done.stdout.startswith("ok       workers        2 workers on 2 hosts.\n") or "nanny" in done.stdout
