"""Sums over the rows of arrays, of many in two stages: a thread that adds up many rows takes long."""

import numpy as np
import pytest


def rows_of(gpu, rows, columns=3):
    return np.random.default_rng(rows).normal(3, 1, (rows, columns)).astype(gpu.dtype)


@pytest.mark.parametrize("rows", [0, 1, 1024, 1025, 5003, 65536])
def test_the_sums_are_those_of_the_columns(gpu, rows):
    host = rows_of(gpu, rows)
    x, exact = gpu.asarray(host), host.astype(np.float64).sum(axis=0)
    tolerance = 1e-5 if gpu.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(gpu.to_host(gpu.column_sums(x, gpu.empty((3,)))), exact, rtol=tolerance)
    added = gpu.column_sums(x, gpu.zeros((3,)) + 1, accumulate=True)
    np.testing.assert_allclose(gpu.to_host(added), exact + 1, rtol=tolerance)
    mean = gpu.asarray(np.full(3, 3, gpu.dtype))
    centred = host.astype(np.float64) - 3
    moments, products = gpu.channel_moments(x, mean), gpu.channel_products(x, x, mean)
    assert moments.dtype == products.dtype == np.float64
    np.testing.assert_allclose(
        gpu.to_host(moments), [centred.sum(axis=0), (centred**2).sum(axis=0)], rtol=tolerance, atol=tolerance * rows
    )
    np.testing.assert_allclose(
        gpu.to_host(products), [exact, (host * centred).sum(axis=0)], rtol=tolerance, atol=tolerance * rows
    )
