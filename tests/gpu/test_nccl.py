"""Collectives over NCCL, between as many GPUs as there are."""

from functools import partial
from importlib import import_module

import numpy as np
import pytest
from support import collectives
from support.over_nccl import over_nccl

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("name", collectives.CASES)
def test_collectives_of_arrays_on_the_host(gpus, name):
    collectives.CASES[name](partial(over_nccl, gpus))


def test_groups_of_gpus_may_span_machines(gpus):
    assert over_nccl(gpus, lambda comm: comm.one_machine()) == [False] * gpus


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
    for rank, ((values, x, there, first, received), own) in enumerate(over_nccl(gpus, _on_the_gpu, counts)):
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

    for x in over_nccl(gpus, member):
        np.testing.assert_array_equal(x, (gpus * np.arange(6)).astype(dtype))
