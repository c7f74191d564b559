"""Deadlines and aborts of the MPI communicator, on an MPI whose collectives end when the test wants."""

import threading
import time

import numpy as np
import pytest

from singa_dask.cluster.bootstrap import load_mpi
from singa_dask.comm import MpiCommunicator
from singa_dask.errors import ClusterError, CommTimeout


class _Request:
    def __init__(self, polls):
        self.polls = polls

    def Test(self):
        self.polls -= 1
        return self.polls < 0


class _Comm:
    """Rank 1 of 2, whose collectives take `polls` calls of Test."""

    rank, size = 1, 2

    def __init__(self, polls):
        load_mpi()
        self.polls, self.freed, self.told = polls, False, []

    def Set_errhandler(self, handler):
        pass

    def Iallreduce(self, *runs):
        self.runs = runs
        return _Request(self.polls)

    Ialltoallv = Iallreduce

    def Isend(self, note, rank, tag):
        self.told.append((int(note[0]), rank))

    def Iprobe(self, source, tag, status):
        return False

    def Free(self):
        self.freed = True


NEVER = 10**9


def test_a_collective_that_ends_is_counted():
    comm = MpiCommunicator(_Comm(polls=50))
    comm.all_reduce(np.ones(10, np.float32))
    assert comm.nbytes["all_reduce"] == 40 and comm.wait_s > 0 and not comm.broken


def test_a_collective_that_does_not_end_is_a_timeout_that_names_itself():
    mpi = _Comm(NEVER)
    comm = MpiCommunicator(mpi, timeout_s=0.1)
    message = r"rank 1: all_reduce did not finish within \d\.\d s; rank 0 is lost, stopped or"
    with pytest.raises(CommTimeout, match=message):
        comm.all_reduce(np.ones(1))
    assert mpi.told == [(1, 0)]
    with pytest.raises(ClusterError, match="after an unfinished all_reduce"):
        comm.all_reduce(np.ones(1))
    comm.close()
    assert not mpi.freed, "MPI_Comm_free is collective"


def test_an_abort_ends_a_collective_at_once():
    abort = threading.Event()
    comm = MpiCommunicator(_Comm(NEVER), timeout_s=30.0, abort_event=abort)
    threading.Timer(0.1, abort.set).start()
    with pytest.raises(ClusterError, match="aborted during all_reduce"):  # later it would be a timeout
        comm.all_reduce(np.ones(1))
    assert comm.broken


def test_an_interrupted_collective_breaks_the_communicator(monkeypatch):
    """MPI goes on writing into the buffers, so the request must stay, and nothing may follow it."""

    def interrupt(seconds):
        raise KeyboardInterrupt

    comm = MpiCommunicator(_Comm(NEVER))
    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        comm.all_reduce(np.ones(1))
    assert comm.broken and comm._under_way
    with pytest.raises(ClusterError, match="after an unfinished all_reduce"):
        comm.all_reduce(np.ones(1))


def test_what_was_started_keeps_its_buffers_when_another_operation_fails():
    comm = MpiCommunicator(_Comm(NEVER), timeout_s=0.01)
    ones, array = [1, 1], np.zeros(2)
    request = comm.start_all_to_all(array, ones, np.zeros(2), ones)
    with pytest.raises(CommTimeout):
        comm.all_reduce(np.ones(1))
    with pytest.raises(ClusterError, match="all_to_all after an unfinished all_reduce"):
        request.wait()
    assert len(comm._under_way) == 2


def test_a_deadline_is_that_of_the_waiting():
    """Until then the member was busy itself."""
    comm = MpiCommunicator(_Comm(polls=1), timeout_s=0.05)
    ones = [1, 1]
    request = comm.start_all_to_all(np.zeros(2), ones, np.zeros(2), ones)
    time.sleep(0.1)
    request.wait()
    assert comm.nbytes["all_to_all"] == 8 and not comm._under_way


def test_a_healthy_communicator_is_freed():
    healthy = _Comm(0)
    MpiCommunicator(healthy).close()
    assert healthy.freed


def test_a_part_of_an_aborted_communicator_is_not_freed():
    """Another thread may still be in one of its operations, and other ranks do not free theirs."""
    reasons, part = [""], _Comm(polls=0)
    comm = MpiCommunicator(part, interrupted=lambda: reasons[0])
    reasons[0] = "the whole was aborted"
    comm.close()
    assert not part.freed


def test_an_all_to_all_travels_as_bytes_and_the_own_run_not_at_all():
    mpi = _Comm(polls=0)
    send, recv = np.arange(5, dtype=np.float16), np.zeros(6, np.float16)
    comm = MpiCommunicator(mpi)
    comm.all_to_all(send, [3, 2], recv, [4, 2])
    (sent, send_runs, _), (received, recv_runs, _) = mpi.runs
    assert sent.dtype == received.dtype == np.uint8 and np.shares_memory(received, recv)
    assert (send_runs, recv_runs) == (([6, 0], [0, 6]), ([8, 0], [0, 8])) and comm.nbytes["all_to_all"] == 6
    assert recv[4:].tolist() == [3, 4]
    with pytest.raises(ClusterError, match=r"recv_counts\[1\] must be what rank 1 sends here, 2 elements"):
        comm.all_to_all(send, [3, 2], recv, [5, 1])


def test_wrong_buffers_never_reach_mpi():
    comm = MpiCommunicator(_Comm(0))
    with pytest.raises(ValueError, match="contiguous"):
        comm.all_reduce(np.ones((2, 2)))
    with pytest.raises(ValueError, match="recv must be an array on the root"):
        comm.gather(np.ones(1), None, [1, 1], root=1)
