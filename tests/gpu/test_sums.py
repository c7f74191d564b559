"""Sums over the rows of tall arrays: in two stages, as a GPU adds up the rows of a few columns one after another."""

import numpy as np
import pytest

TALL = [4096, 65536, 5003]  # the last one is a prime


@pytest.fixture
def sums(gpu, monkeypatch):
    """The shapes of the arrays whose rows are added up."""
    shapes, plain = [], gpu.xp.sum

    def noted(x, **options):
        shapes.append(x.shape)
        return plain(x, **options)

    monkeypatch.setattr(gpu.xp, "sum", noted)
    return shapes


def rows_of(gpu, rows, columns=3):
    return np.random.default_rng(rows).normal(3, 1, (rows, columns)).astype(gpu.dtype)


@pytest.mark.parametrize("rows", TALL)
def test_no_stage_has_many_rows(gpu, sums, rows):
    x = gpu.asarray(rows_of(gpu, rows))
    gpu.column_sums(x, gpu.empty((3,)))
    gpu.column_sums(x, gpu.zeros((3,)), accumulate=True)
    gpu.channel_moments(x, x[0])
    gpu.channel_products(x, x, x[0])
    assert len(sums) >= 2 * 6, "two stages each"
    assert max(added_up for added_up, _ in sums) <= 2 * rows**0.5


@pytest.mark.parametrize("rows", [*TALL, 0, 1, 1023, 1024, 1025])
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


def test_what_is_not_tall_is_added_up_at_once(gpu, sums):
    gpu.column_sums(gpu.asarray(rows_of(gpu, 100)), gpu.empty((3,)))
    gpu.channel_products(*(gpu.asarray(rows_of(gpu, 100)) for _ in range(2)), gpu.zeros((3,)))
    assert sums == [(100, 3)] * 3
