"""Faults of whole processes: of drivers, and of ranks while their world forms."""

import os
import signal
import socket
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
from support.commands import first_line

from singa_dask.cluster import GroupFailed, form_group, wait_workers
from singa_dask.cluster.pmi_server import PmiServer
from singa_dask.cluster.workers import answering

cloudpickle.register_pickle_by_value(sys.modules[__name__])

_DRIVER = """
import sys, time
import numpy as np
from distributed import Client
from singa_dask.cluster import form_group

def for_ever(comm):
    buffer = np.ones(1000, np.float32)
    while True:
        comm.all_reduce(buffer)
        buffer[:] = 1

with Client(sys.argv[1]) as client:
    group = form_group(client, sys.argv[2:], for_ever, name="orphan")
    print("formed", flush=True)
    group.wait()
"""

_RANK = """
import sys, time
from singa_dask.cluster.join import communicator, join_world
from singa_dask.cluster.pmi_server import PmiEndpoint
from singa_dask.cluster.segments import unlink_segments
from singa_dask.comm import MpiCommunicator
import numpy as np

host, port, token, kvsname, rank, size, own = sys.argv[1:]
rank, size = int(rank), int(size)
join_world(PmiEndpoint(host, int(port), token, kvsname), rank, size, own, time.monotonic() + 20)
comm = MpiCommunicator(communicator(range(size), "test"), timeout_s=20.0)
comm.barrier()
unlink_segments()
x = np.full(300_000, rank + 1.0)
comm.all_reduce(x)
print("sum", x[0], x[-1], flush=True)
"""


def _rank(server, rank, size, own=""):
    at = server.endpoint
    args = [at.host, at.port, at.token, at.kvsname, rank, size, own]
    command = [sys.executable, "-c", _RANK, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _for_ever(comm):
    while True:
        comm.barrier()


def _sum(comm):
    total = np.array([comm.rank + 1.0])
    comm.all_reduce(total)
    return float(total[0])


@pytest.mark.parametrize("nodes", [["a", "a", "a"], ["a", "b", "b"]])
def test_processes_form_a_world_on_one_machine_and_across_machines(nodes, no_leaks):
    own = "127.0.0.1" if len(set(nodes)) > 1 else ""
    with PmiServer(nodes) as server:
        ranks = [_rank(server, rank, 3, own) for rank in range(3)]
        ended = [rank.communicate(timeout=30) for rank in ranks]
    assert server.state.formed
    assert [out.split() for out, _ in ended] == [["sum", "6.0", "6.0"]] * 3, ended


def _die_in_init(delay_s):
    """Have this process killed so long after it entered MPI_Init."""
    from singa_dask.cluster import bootstrap

    mpi = bootstrap.load_mpi()
    enter = mpi.Init_thread

    def init_thread(level):
        subprocess.Popen(["sh", "-c", f"sleep {delay_s}; kill -9 {os.getpid()}"])
        return enter(level)

    mpi.Init_thread = init_thread


@pytest.mark.long
@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.04])
def test_a_rank_that_dies_in_mpi_init_ends_its_group(cluster3, delay_s):
    """The others are in MPI_Init too, where only their nannies can reach them."""
    cluster3.restart_workers([worker.address for worker in answering(cluster3, 10.0)[0]])
    ranks = [worker.address for worker in wait_workers(cluster3, 3)]
    cluster3.run(_die_in_init, delay_s, workers=ranks[1:2])
    before = set(os.listdir("/dev/shm"))  # whatever else runs, or was killed, on this machine
    with pytest.raises(GroupFailed) as caught:  # long before the deadline of forming
        form_group(cluster3, ranks, _for_ever, timeout_s=120.0).wait(40.0)
    assert caught.value.failure.rank == 1 or caught.value.failure.exception is None
    assert not [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("mpich_shm_")]
    with form_group(cluster3, [worker.address for worker in wait_workers(cluster3, 3)], _sum) as group:
        assert group.results() == [6.0] * 3


_INIT_ALONE = """
import sys, time
from singa_dask.cluster.join import join_world
from singa_dask.cluster.pmi_server import PmiEndpoint

host, port = sys.argv[1:]
print("up", flush=True)
join_world(PmiEndpoint(host, int(port), "token", "kvs"), 0, 2, "", time.monotonic() + 1.5)
"""


def test_mpi_init_is_left_by_the_deadline_even_when_nobody_answers(no_leaks):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        command = [sys.executable, "-c", _INIT_ALONE, *map(str, mute.getsockname())]
        rank = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        connection, _ = mute.accept()
        connection.sendall(b"cmd=go\n")
        said = rank.communicate(timeout=30)[1]
        connection.close()
    assert rank.returncode == 1
    assert f"MPI_Init: on {socket.gethostname()}, other ranks did not come within" in said
    assert "MPIR_CVAR_CH4_NETMOD=ofi" in said and "in join_world" in said, said


def test_ranks_leave_when_their_driver_is_killed(cluster3, ranks3, hurried):
    address = cluster3.scheduler.address
    command = [sys.executable, "-c", _DRIVER, address, *ranks3]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert first_line(driver) == "formed\n"
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
    # The reservation of the orphan ends with its ranks; a new group waits for it.
    with form_group(cluster3, ranks3, _sum, timeout_s=25.0) as group:
        assert group.results() == [6.0] * 3
