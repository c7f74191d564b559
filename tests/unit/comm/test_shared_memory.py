"""Memory that ranks share, and the exchange that sends nothing."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.comm.shared_memory import form_shared_memory
from singa_dask.exchange import Bucket, SharedExchange

BUCKETS = [Bucket(0, 6, (2, 0, 4)), Bucket(6, 9, (1, 1, 1))]


def _write_and_read(comm, size, dtype):
    arrays = form_shared_memory(comm, size, dtype)
    fresh = [array.copy() for array in arrays]
    comm.barrier()
    arrays[comm.rank][:] = comm.rank + 1
    comm.barrier()
    return fresh, [array.copy() for array in arrays]


@pytest.mark.parametrize("size", [0, 1, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_rank_sees_what_the_others_write(size, dtype):
    for fresh, written in run_threads(3, _write_and_read, size, dtype):
        for rank, (before, after) in enumerate(zip(fresh, written, strict=True)):
            np.testing.assert_array_equal(before, np.zeros(size, dtype), strict=True)
            np.testing.assert_array_equal(after, np.full(size, rank + 1, dtype), strict=True)


def _open():
    """Descriptors of shared memory; Python's mmap keeps one as long as its arrays are there."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return [link for link in links if "singa_dask-" in link]


def test_nothing_stays_open_and_nothing_has_a_name(monkeypatch):
    run_threads(3, _write_and_read, 100, np.float32)
    assert not _open()
    assert not [name for name in os.listdir("/dev/shm") if "singa_dask" in name]
    monkeypatch.setattr(os, "ftruncate", _refuse)
    assert run_threads(2, form_shared_memory, 100, np.float32) == [None, None]
    assert not _open()


def _refuse(*_):
    raise OSError("no such call here")


def test_without_memory_to_share_all_ranks_know_it(monkeypatch):
    monkeypatch.setattr(os, "memfd_create", _refuse)
    assert run_threads(2, form_shared_memory, 4, np.float32) == [None, None]


def test_a_rank_that_cannot_see_another_is_enough(monkeypatch):
    real, calls = os.readlink, []

    def once_elsewhere(path):
        calls.append(path)
        return "/memfd:another (deleted)" if len(calls) == 1 else real(path)

    monkeypatch.setattr(os, "readlink", once_elsewhere)
    assert run_threads(3, form_shared_memory, 4, np.float32) == [None] * 3


def _exchange(comm, apart):
    arrays = form_shared_memory(comm, 18, np.float32)
    values, grads = arrays[0][:9], [array[9:] for array in arrays]
    exchange = SharedExchange(comm, BUCKETS, grads)
    mine = grads[comm.rank]
    own = np.zeros(9, np.float32) if apart else mine
    comm.nbytes.clear()
    for step in range(3):
        mine[:] = np.arange(9) * (comm.rank + 1) + step
        for bucket, run in enumerate(exchange.parts):
            exchange.prepare(bucket, mine)
            exchange.reduce_scatter(bucket, mine, own)
            values[run] += own[run]
        for bucket in range(len(BUCKETS)):
            exchange.all_gather(bucket, values, values)
    return values, dict(comm.nbytes)


@pytest.mark.parametrize("apart", [True, False])
def test_runs_are_summed_by_their_owners_and_all_see_the_new_values(apart):
    found = run_threads(3, _exchange, apart)
    for values, nbytes in found:
        np.testing.assert_array_equal(values, 3 * 6 * np.arange(9) + 3 * (0 + 1 + 2))
        assert nbytes["reduce_scatter"] == nbytes["all_gather"]
    # Three steps of four bytes, without the own runs: as if they had been sent.
    assert [nbytes["reduce_scatter"] for _, nbytes in found] == [3 * 4 * (9 - own) for own in (3, 1, 5)]
