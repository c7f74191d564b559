from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from singa_dask.data.buffer_pool import BufferPool


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool(10_000)


def test_memory_is_used_again_once_the_last_view_is_gone(pool):
    array = pool.empty((10, 20), np.float32)
    assert array.flags.writeable
    assert (array.shape, array.dtype) == ((10, 20), np.float32)
    where = address(array)
    view = array.reshape(5, 2, 20)[2:, 1]
    del array
    assert sum(memory.nbytes for memory in pool._free) == 0
    other = pool.empty((10, 20), np.float32)
    assert address(other) != where
    del view
    assert sum(memory.nbytes for memory in pool._free) == 800
    assert address(pool.empty((100,), np.float64)) == where


def test_a_living_view_is_never_overwritten(pool):
    views = []
    for i in range(20):
        array = pool.empty((50,), np.int64)
        array[:] = i
        views = [*views[i % 3 == 1 :], array[10:20]]
    assert [int(view[0]) for view in views] == [int(view.max()) for view in views] == list(range(7, 20))


def test_no_more_is_kept_than_was_asked_for_and_nothing_far_too_large_is_used(pool):
    arrays = [pool.empty((3000,), np.uint8) for _ in range(6)]
    arrays.clear()
    assert sum(memory.nbytes for memory in pool._free) == 9000
    assert pool.empty((10,), np.uint8).nbytes == 10
    assert sum(memory.nbytes for memory in pool._free) == 9000


def test_arrays_travel_like_any_other(pool):
    array = pool.empty((4,), np.float32)
    array[:] = 7
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)), array)


def test_threads_may_share_a_pool(pool):
    def overwritten(number: int) -> bool:
        for _ in range(300):
            array = pool.empty((100,), np.int64)
            array[:] = number
            if (array != number).any():
                return True
        return False

    with ThreadPoolExecutor(4) as threads:
        assert not any(threads.map(overwritten, range(4)))
