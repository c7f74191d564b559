"""NCCL's operations and the streams of their callers, on emulated GPUs."""

import numpy as np
import pytest
from support.over_nccl import over_nccl

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("emulated")]
REPEATS = 50


def test_an_operation_waits_for_the_work_of_the_callers_stream(cupy):
    def member(comm):
        cupy.cuda.Device(comm.rank).use()
        found = []
        with cupy.cuda.Stream(non_blocking=True):
            for _ in range(REPEATS):
                x = cupy.empty(4, np.float32)
                x.fill(7)  # put off until something waits for it, or by chance for less long
                comm.all_reduce(x)
                found.append(x.get().tolist())
        return found

    assert over_nccl(2, member) == [[[14.0] * 4] * REPEATS] * 2


def test_the_callers_stream_may_read_the_result_at_once(cupy):
    def member(comm):
        cupy.cuda.Device(comm.rank).use()
        x = np.full(4, comm.rank + 1, np.float32)
        comm.all_reduce(x)
        y = cupy.asarray(x)
        comm.broadcast(y, root=1)
        return (x + y.get()).tolist()

    assert over_nccl(2, member) == [[6.0] * 4] * 2
