"""NCCL's operations and the streams of their callers, and statuses of NCCL, on emulated GPUs."""

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.comm.nccl import form_nccl
from singa_dask.errors import ClusterError

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("emulated")]


def run(size, fn):
    """[fn(NCCL communicator) of every rank]"""

    def member(control):
        comm = form_nccl(control, control.rank, 60)
        result = fn(comm)
        comm.close()
        return result

    return run_threads(size, member, timeout_s=120)


def test_an_operation_waits_for_the_work_of_the_callers_stream(cupy):
    def member(comm):
        cupy.cuda.Device(comm.rank).use()
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.empty(4, np.float32)
            x.fill(7)  # put off until something waits for it
            comm.all_reduce(x)
            return x.get().tolist()

    assert run(2, member) == [[14.0] * 4] * 2


def test_the_callers_stream_may_read_the_result_at_once(cupy):
    def member(comm):
        cupy.cuda.Device(comm.rank).use()
        x = np.full(4, comm.rank + 1, np.float32)
        comm.all_reduce(x)
        y = cupy.asarray(x)
        comm.broadcast(y, root=1)
        return (x + y.get()).tolist()

    assert run(2, member) == [[6.0] * 4] * 2


def test_a_status_that_cupy_does_not_know_is_an_error_that_names_it(emulated):
    def member(comm):
        emulated.next_nccl_status(8)
        with pytest.raises(ClusterError, match="barrier failed: NCCL returned status 8"):
            comm.barrier()
        return comm.broken

    assert run(1, member) == [True]
