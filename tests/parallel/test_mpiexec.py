"""Dask workers that mpiexec started are one MPI world already; groups are communicators of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import asyncio, os
from mpi4py import MPI
import numpy as np
from distributed import Client, Scheduler, Worker
from singa_dask.cluster import GroupFailed, form_group, probe
from singa_dask.errors import ClusterError

def total(comm):
    x = np.array([10.0 ** comm.rank])
    comm.all_reduce(x)
    return comm.rank, MPI.COMM_WORLD.rank, float(x[0])

def fail(comm):
    if comm.rank == 0:
        raise ValueError("bad batch")
    comm.all_reduce(np.ones(500_000))

def drive(address):
    with Client(address) as client:
        workers = probe(client)
        assert [w.mpi.size for w in workers] == [3] * 3 and not any(w.mpi.ours for w in workers), workers
        by_rank = {w.mpi.rank: w.address for w in workers}
        with form_group(client, [by_rank[2], by_rank[0], by_rank[1]], total) as group:
            print("all", group.results(), flush=True)
        try:
            form_group(client, [by_rank[0], by_rank[1], by_rank[2]], fail).wait(10)
        except GroupFailed as error:
            print("failed", error.failure.rank, error.failure.exception, flush=True)
        with form_group(client, [by_rank[1], by_rank[2]], total) as group:
            print("pair", group.results(), flush=True)

async def main():
    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler:
            comm.bcast(scheduler.address)
            async with Worker(scheduler.address, nthreads=1, host="127.0.0.1", memory_limit=0):
                while len(scheduler.workers) < 3:
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(drive, scheduler.address)
                for address in list(scheduler.workers):
                    await scheduler.remove_worker(address, stimulus_id="end")
    else:
        async with Worker(comm.bcast(None), nthreads=1, host="127.0.0.1", memory_limit=0) as worker:
            await worker.finished()
    comm.Barrier()

asyncio.run(main())
"""


def test_workers_of_mpiexec_are_recognised_and_used(tmp_path, no_leaks):
    mpiexec = Path(sys.executable).with_name("mpiexec")
    if not mpiexec.exists():
        pytest.skip("this environment has no mpiexec of its own")
    script = tmp_path / "world.py"
    script.write_text(_SCRIPT)
    run = subprocess.run(
        [mpiexec, "-n", "3", sys.executable, script], capture_output=True, text=True, timeout=45, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = dict(
        line.split(" ", 1) for line in run.stdout.splitlines() if line.split(" ", 1)[0] in ("all", "failed", "pair")
    )
    assert lines["all"] == "[(0, 2, 111.0), (1, 0, 111.0), (2, 1, 111.0)]"
    assert lines["failed"] == "0 bad batch"
    assert lines["pair"] == "[(0, 1, 11.0), (1, 2, 11.0)]"
