"""Collectives over NCCL, between as many GPUs as there are."""

from importlib import import_module

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.comm.nccl import form_nccl

pytestmark = pytest.mark.timeout(240)


def run(size, fn, *args):
    """[fn(NCCL communicator, *args) of every rank]"""

    def member(control):
        comm = form_nccl(control, control.rank, 60)
        result = fn(comm, *args)
        comm.close()
        return result

    return run_threads(size, member, timeout_s=120)


def _on_the_gpu(comm, counts):
    cupy = import_module("cupy")
    cupy.cuda.Device(comm.rank).use()
    run, last = slice(sum(counts[: comm.rank]), sum(counts[: comm.rank + 1])), comm.size - 1
    x = cupy.asarray(np.arange(sum(counts), dtype=np.float32) + comm.rank)
    own = cupy.zeros(counts[comm.rank], np.float32)
    comm.reduce_scatter(x, own, counts)
    values = cupy.zeros(sum(counts), np.float32)
    values[run] = own
    comm.all_gather(values, counts)
    comm.all_reduce(x)
    there = cupy.zeros(sum(counts), np.float32) if comm.rank == last else None
    comm.gather(own, there, counts, root=last)
    first = cupy.asarray(np.full(3, comm.rank, np.int64))
    comm.broadcast(first, root=last)
    received = cupy.zeros(sum(counts[comm.rank] for _ in counts), np.float32)
    comm.all_to_all(values, counts, received, [counts[comm.rank]] * comm.size)
    assert comm._buffers == {}, "nothing was staged"
    assert set(comm.seconds) == set(comm.nbytes) and all(spent > 0 for spent in comm.seconds.values())
    return [each if each is None else cupy.asnumpy(each) for each in (values, x, there, first, received)], run


@pytest.mark.parametrize("counts", [[5, 5, 5, 5], [4, 0, 9, 2], [0, 0, 0, 0]], ids=str)
def test_arrays_on_gpus_are_not_staged(gpus, counts):
    counts = counts[:gpus]
    total = gpus * np.arange(sum(counts), dtype=np.float32) + sum(range(gpus))
    for rank, ((values, x, there, first, received), own) in enumerate(run(gpus, _on_the_gpu, counts)):
        np.testing.assert_array_equal(values, total)
        np.testing.assert_array_equal(x, total)
        assert (there is None) == (rank != gpus - 1)
        if there is not None:
            np.testing.assert_array_equal(there, total)
        assert first.tolist() == [gpus - 1] * 3
        np.testing.assert_array_equal(received, np.tile(total[own], gpus))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "i8", "u1"])
def test_every_type_that_nccl_adds_up(gpus, dtype):
    def member(comm):
        x = np.arange(6).astype(dtype)
        comm.all_reduce(x)
        return x

    for x in run(gpus, member):
        np.testing.assert_array_equal(x, (gpus * np.arange(6)).astype(dtype))


def test_parts_of_a_communicator(gpus):
    def member(comm):
        part = comm.split(comm.rank % 2)
        x = np.array([comm.rank], np.int64)
        part.all_reduce(x)
        part.close()
        return int(x[0])

    assert run(gpus, member) == [sum(range(rank % 2, gpus, 2)) for rank in range(gpus)]
