"""Dask workers that mpiexec started are one MPI world already; groups are communicators of it."""

import sys

from support.commands import run_command
from support.launch import launched, mpiexec

_SCRIPT = """
import numpy as np
from singa_dask.cluster import GroupFailed, form_group
from singa_dask.cluster.mpi_world import mpi_world
from singa_dask.cluster.workers import answering

def total(comm):
    from mpi4py import MPI
    x = np.array([10.0 ** comm.rank])
    comm.all_reduce(x)
    return comm.rank, MPI.COMM_WORLD.rank, float(x[0])

def fail(comm):
    if comm.rank == 0:
        raise ValueError("bad batch")
    comm.all_reduce(np.ones(500_000))

def drive(client):
    workers, _ = answering(client, 10.0)
    assert [w.mpi.size for w in workers] == [4] * 3 and not any(w.mpi.ours for w in workers), workers
    by_rank = {w.mpi.rank: w.address for w in workers}
    with form_group(client, [by_rank[3], by_rank[1], by_rank[2]], total) as group:
        print("all", group.results(), flush=True)
    try:
        form_group(client, [by_rank[1], by_rank[2], by_rank[3]], fail).wait(10)
    except GroupFailed as error:
        print("failed", error.failure.rank, error.failure.exception, flush=True)
    with form_group(client, [by_rank[2], by_rank[3]], total) as group:
        print("pair", group.results(), flush=True)

with mpi_world(lambda: 3) as client:
    if client is not None:
        drive(client)
"""


def test_workers_of_mpiexec_are_recognised_and_used(tmp_path, no_leaks):
    (tmp_path / "world.py").write_text(_SCRIPT)
    ran = run_command([*mpiexec(4), sys.executable, "world.py"], cwd=tmp_path, env=launched())
    lines = dict(line.split(" ", 1) for line in ran.out.splitlines() if line.startswith(("all ", "failed ", "pair ")))
    assert lines == {
        "all": "[(0, 3, 111.0), (1, 1, 111.0), (2, 2, 111.0)]",
        "failed": "0 bad batch",
        "pair": "[(0, 2, 11.0), (1, 3, 11.0)]",
    }
