from __future__ import annotations

import numpy as np
import pytest

from singa_dask.data import numba_gather
from singa_dask.data.normalise import Normaliser

D = 37
ARRAY = np.linspace(1, 9, D)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stored", [np.uint8, np.float32])
@pytest.mark.parametrize("mean", [None, 127.5, ARRAY])
@pytest.mark.parametrize("std", [None, 3.7, ARRAY])
def test_kernels_equal_the_numpy_reference(dtype, stored, mean, std):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, D)).astype(stored)
    x.flags.writeable = False  # as a memory map is
    rows = np.array([3, 3, 0, 19, 7])
    normaliser = Normaliser(mean, std, dtype)
    places = np.array([1, 0, 4, 5, 2])
    written = np.full((6, D), -1, dtype)
    normaliser.gather(x, rows, places, written)
    out = written[places]
    np.testing.assert_array_equal(out, normaliser.reference(x, rows))
    assert (written[3] == -1).all()
    expected = (x[rows].astype(np.float64) - (0 if mean is None else mean)) / (1 if std is None else std)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", ["gather", "subtract", "normalise", "subtract_D", "normalise_D"])
def test_the_interpreter_lock_is_released(kernel):
    assert getattr(numba_gather, kernel).targetoptions["nogil"]
