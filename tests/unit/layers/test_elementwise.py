"""Sums, products and maxima: shapes that they take, ties."""

import math

import numpy as np
import pytest
from support.layer_cases import Bench

from singa_dask.layers import Max
from singa_dask.ops import Ops, get_ops

BASE = Ops(np.float64)


def test_the_first_of_equals_gets_the_gradient_of_a_maximum():
    ours = Bench(Max("n", ["x", "y", "z"]), ((3,), (3,), (3,)), BASE, rows=1)
    ours.inputs = [np.array([[1.0, 5.0, 0.0]]), np.array([[2.0, 5.0, 7.0]]), np.array([[2.0, 5.0, 8.0]])]
    np.testing.assert_array_equal(ours.forward()[0], [[2, 5, 8]])
    gradients = ours.backward([np.array([[1.0, 10.0, 100.0]])])
    np.testing.assert_array_equal(np.concatenate(gradients), [[0, 10, 0], [1, 0, 0], [0, 0, 100]])


@pytest.mark.parametrize("ops", [BASE, get_ops("cpu", np.float64)])
def test_the_error_function(ops):
    x = np.concatenate([np.linspace(-9, 9, 4001), [-np.inf, np.inf, 1e300, np.nan]])
    expected = np.vectorize(math.erf)(x)
    np.testing.assert_allclose(ops.erf(x, np.empty_like(x)), expected, rtol=0, atol=1e-13)
    out, slope = np.empty_like(x), np.empty_like(x)
    finite = x[:-4]
    ops.gelu(finite, out[:-4], slope[:-4])
    np.testing.assert_allclose(out[:-4], finite * (1 + np.vectorize(math.erf)(finite / np.sqrt(2))) / 2, atol=1e-12)
    assert np.isnan(ops.gelu(x[-1:], out[-1:], slope[-1:])).all()
