"""Memory that ranks share."""

import contextlib
import os

import numpy as np
import pytest

from singa_dask.comm import run_threads
from singa_dask.comm.shared_memory import form_shared_memory


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
    before = set(_open())  # other tests may keep some
    run_threads(3, _write_and_read, 100, np.float32)
    assert set(_open()) <= before
    assert not [name for name in os.listdir("/dev/shm") if "singa_dask" in name]
    monkeypatch.setattr(os, "ftruncate", _refuse)
    assert run_threads(2, form_shared_memory, 100, np.float32) == [None, None]
    assert set(_open()) <= before


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
