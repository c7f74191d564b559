"""Slices: what the exchange adds to a communicator."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask.comm import SliceExchange, SoloCommunicator, run_threads


def _scratch(comm):
    exchange = SliceExchange(comm, [2, 3])
    first = exchange.reduce_scatter(np.ones(5, np.float32))
    again = exchange.reduce_scatter(np.ones(5, np.float32))
    other = exchange.reduce_scatter(np.ones(5, np.float64))
    return exchange.start, exchange.stop, first is again, other.dtype == np.float64


def test_the_buffer_of_the_own_slice_is_reused():
    assert run_threads(2, _scratch) == [(0, 2, True, True), (2, 5, True, True)]


def test_a_group_of_one_moves_nothing():
    comm = SoloCommunicator()
    exchange = SliceExchange(comm, [5])
    grads = np.arange(5, dtype=np.float32)
    assert np.shares_memory(exchange.reduce_scatter(grads), grads)
    assert not comm.nbytes


@pytest.mark.parametrize("counts", [[], [1, 2], [-1]])
def test_counts_must_fit_the_group(counts):
    with pytest.raises(ValueError, match="one per rank"):
        SliceExchange(SoloCommunicator(), counts)
