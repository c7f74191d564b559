"""The number of threads of BLAS."""

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from singa_dask.ops.blas import blas_threads, set_blas_threads


def counts():
    np.ones(1) @ np.ones(1)
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.mark.skipif(not counts(), reason="NumPy's BLAS has no threads here")
def test_any_thread_limits_blas_after_another_that_still_lives():
    began = counts()
    set_blas_threads({"openblas": 2, "mkl": 2})
    inside = []

    def limit():
        with blas_threads(1):
            inside.extend(counts())

    other = threading.Thread(target=limit)
    other.start()
    other.join()
    assert set(inside) == {1}
    assert counts() == [2] * len(began)
    with blas_threads(1):
        assert set(counts()) == {1}
    set_blas_threads({"openblas": began[0], "mkl": began[0]})
    assert counts() == began[:1] * len(began)  # of one that was loaded since there may have been others before
