"""The NCCL communicator where something goes wrong: deadlines, aborts, errors. On emulated GPUs."""

import gc
import threading
import time
import weakref
from contextlib import suppress
from importlib import import_module

import numpy as np
import pytest
from support.over_nccl import over_nccl

from singa_dask.comm import nccl, run_threads
from singa_dask.comm.nccl import NcclCommunicator, form_nccl
from singa_dask.comm.nccl_library import unique_id
from singa_dask.errors import ClusterError, CommTimeout

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("emulated")]


@pytest.fixture
def aborts(monkeypatch):
    """The ranks whose communicators NCCL has ended."""
    ended, abort = [], nccl._abort

    def noted(handle, in_use):
        rank = handle.rank_id()
        abort(handle, in_use)
        ended.append(rank)

    monkeypatch.setattr(nccl, "_abort", noted)
    return ended


def wait_for(condition):
    while not condition():
        time.sleep(0.001)


def test_a_type_that_nccl_cannot_add_up_is_refused():
    def member(comm):
        with pytest.raises(ValueError, match=r"NCCL adds up float16, .* Received: uint32"):
            comm.all_reduce(np.zeros(2, np.uint32))
        comm.broadcast(np.zeros(2, np.uint32))

    over_nccl(2, member)


def test_a_rank_that_does_not_come_is_a_timeout_that_breaks_the_communicator(cupy, aborts):
    def member(comm):
        if comm.rank == 1:
            return
        comm.timeout_s = 0.2
        with pytest.raises(CommTimeout, match=r"rank 0: all_reduce did not finish within \d\.\d s"):
            comm.all_reduce(np.zeros(4, np.float32))
        assert comm.broken
        with pytest.raises(ClusterError, match="barrier after an unfinished all_reduce"):
            comm.barrier()
        wait_for(lambda: aborts == [0])

    over_nccl(2, member)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_arrays_of_an_unfinished_operation_stay_until_nccl_has_ended_it(cupy, monkeypatch, on_gpu):
    """Until then, a rank that comes late may have them written."""
    abort, may_end, over = nccl._abort, threading.Event(), threading.Event()
    monkeypatch.setattr(nccl, "_abort", lambda handle, in_use: may_end.wait() and abort(handle, in_use))

    def unfinished(comm):
        threading.Timer(0.1, comm.abort, ["enough"]).start()
        x = cupy.zeros(4, np.float32) if on_gpu else np.zeros(4, np.float32)
        with suppress(ClusterError):
            comm.all_reduce(x)
        used = x if on_gpu else next(iter(comm._buffers.values()))
        comm.close()
        comm._caller.join()
        return weakref.ref(used)

    def member(comm):
        if comm.rank == 1:
            over.wait()
            return
        used = unfinished(comm)
        gc.collect()
        assert used() is not None
        may_end.set()
        wait_for(lambda: used() is None)
        over.set()

    over_nccl(2, member)


@pytest.mark.parametrize(
    "operation", [lambda comm, x: comm.all_reduce(x), lambda comm, x: comm.all_to_all(x, [1, 1], x.copy(), [1, 1])]
)
def test_a_rank_that_has_ended_its_communicator_takes_no_part_in_operations(cupy, aborts, operation):
    def member(comm):
        comm.timeout_s = 0.1
        wait_for(lambda: len(aborts) == comm.rank)
        with pytest.raises(CommTimeout), cupy.cuda.Device(comm.rank):
            operation(comm, cupy.zeros(2, np.uint8))
        wait_for(lambda: comm.rank in aborts)

    over_nccl(2, member)


def test_an_abort_by_another_thread_ends_an_operation_at_once():
    def member(comm):
        if comm.rank == 0:
            threading.Timer(0.1, comm.abort, ["enough"]).start()
            with pytest.raises(ClusterError, match=r"aborted during barrier, after .* s: enough"):  # not a timeout
                comm.barrier()
            with pytest.raises(ClusterError, match="barrier after an unfinished barrier"):
                comm.barrier()
        return comm.aborted

    assert over_nccl(2, member) == ["enough", ""]


def test_an_abort_of_the_control_communicator_ends_an_operation():
    def member(control):
        comm = form_nccl(control, control.rank, 30.0)
        control.barrier()  # the other is connected too
        if control.rank == 1:
            control.abort("the driver said so")
        with pytest.raises(ClusterError, match="the driver said so"):
            comm.barrier()
        comm.close()

    run_threads(2, member)


def test_creation_has_a_deadline_too():
    with pytest.raises(CommTimeout, match=r"rank 0: connect did not finish within \d\.\d s; .* 2 ranks"):
        NcclCommunicator.form(unique_id(), 2, 0, 0, 0.2)


def test_an_error_of_nccl_is_a_cluster_error_and_breaks_the_communicator():
    """The emulation notices what the real NCCL may not: ranks that call different operations."""

    def member(comm):
        with pytest.raises(ClusterError, match=r"all_reduce failed: .*mismatch: rank"):
            comm.all_reduce(np.zeros(4 + comm.rank, np.float32))
        return comm.broken

    assert over_nccl(2, member) == [True, True]


def test_a_status_that_cupy_does_not_know_is_an_error_that_names_it(emulated):
    def member(comm):
        emulated.next_nccl_status(8)
        with pytest.raises(ClusterError, match="barrier failed: NCCL returned status 8"):
            comm.barrier()
        return comm.broken

    assert over_nccl(1, member) == [True]


def test_an_error_of_the_gpu_is_told_at_once(cupy, monkeypatch):
    def member(comm):
        monkeypatch.setattr(cupy.cuda.runtime, "eventQuery", lambda event: 719)
        with pytest.raises(ClusterError, match="barrier failed: cudaErrorLaunchFailure"):
            comm.barrier()
        return comm.broken

    assert over_nccl(1, member) == [True]


def test_messages_that_do_not_fit_are_an_error_of_the_rank_that_receives():
    def member(comm):
        counts = [[2, 3], [2, 2]][comm.rank]
        fits = suppress(ClusterError), pytest.raises(ClusterError, match="mismatch: rank 0 to 1: ")
        with fits[comm.rank]:
            comm.all_to_all(np.zeros(sum(counts), "u1"), counts, np.zeros(4, "u1"), [2, 2])

    over_nccl(2, member)


def test_ranks_that_share_a_gpu_get_no_nccl():
    assert run_threads(3, lambda comm: form_nccl(comm, comm.rank % 2)) == [None] * 3


def test_without_nccl_there_is_none(monkeypatch):
    monkeypatch.setattr(import_module("cupy.cuda.nccl"), "available", False)
    assert run_threads(2, lambda comm: form_nccl(comm, comm.rank)) == [None] * 2
    with pytest.raises(ClusterError, match="CuPy finds no NCCL library"):
        unique_id()


def test_where_no_unique_id_is_made_nobody_waits_for_it(monkeypatch):
    def broken():
        raise RuntimeError("unhandled system error")

    def member(control):
        control.barrier()
        with pytest.raises(ClusterError, match="no unique id" + (": unhandled" if control.rank == 0 else " on the")):
            form_nccl(control, control.rank)

    def split(comm):
        comm.barrier()
        with pytest.raises(ClusterError, match="NCCL made no unique id"):
            comm.split(0)
        return comm.broken

    library = import_module("cupy.cuda.nccl")
    with monkeypatch.context() as patch:
        patch.setattr(library, "get_unique_id", broken)
        run_threads(2, member)
    made = iter([unique_id()])
    monkeypatch.setattr(library, "get_unique_id", lambda: next(made, None) or broken())
    assert over_nccl(2, split) == [False, False]


def test_two_ranks_of_one_gpu_are_refused_by_nccl():
    made = unique_id()

    def member(control):
        with pytest.raises(ClusterError, match=r"connect failed: .*duplicate GPU 0"):
            NcclCommunicator.form(made, 2, control.rank, 0, 5.0)

    run_threads(2, member)


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"unique_id must be 128 bytes. Received: 3"):
        NcclCommunicator.form(b"abc", 2, 0, 0)
    with pytest.raises(ValueError, match=r"rank from 0 to 1. Received: 2"):
        NcclCommunicator.form(unique_id(), 2, 2, 0)
