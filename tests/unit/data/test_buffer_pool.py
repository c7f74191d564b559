from __future__ import annotations

import pickle
import threading

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
        views.append(array[10:20])
        if i % 3 == 0:
            views.pop(0)
    assert [int(view[0]) for view in views] == [int(view.max()) for view in views]
    assert len({int(view[0]) for view in views}) == len(views)


def test_no_more_is_kept_than_was_asked_for(pool):
    arrays = [pool.empty((3000,), np.uint8) for _ in range(6)]
    arrays.clear()
    assert sum(memory.nbytes for memory in pool._free) == 9000


def test_memory_far_too_large_is_not_used(pool):
    pool.empty((9000,), np.uint8)
    small = pool.empty((10,), np.uint8)
    assert small.nbytes == 10
    assert sum(memory.nbytes for memory in pool._free) == 9000


def test_arrays_travel_like_any_other(pool):
    array = pool.empty((4,), np.float32)
    array[:] = 7
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)), array)


def test_threads_may_share_a_pool(pool):
    wrong = []

    def work(number: int) -> None:
        for _ in range(300):
            array = pool.empty((100,), np.int64)
            array[:] = number
            if (array != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
