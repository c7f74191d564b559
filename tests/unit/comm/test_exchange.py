"""Buckets: what the exchange adds to a communicator."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask.comm import Bucket, FullExchange, SoloCommunicator, run_threads
from singa_dask.comm.buckets import Readiness
from singa_dask.errors import TrainingError

BUCKETS = [Bucket(0, 5, (2, 3)), Bucket(5, 9, (4, 0))]


def _exchange(comm):
    exchange = FullExchange(comm, BUCKETS)
    grads, own = np.arange(9, dtype=np.float32) * (comm.rank + 1), np.full(9, np.nan, np.float32)
    for bucket in (1, 0):
        exchange.reduce_scatter(bucket, grads, own)
        exchange.all_gather(bucket, own, own)
    return own, exchange.runs


def test_every_bucket_is_summed_by_runs_and_brought_together():
    for rank, (own, runs) in enumerate(run_threads(2, _exchange)):
        np.testing.assert_array_equal(own, 3 * np.arange(9))
        assert runs == ((slice(0, 2), slice(5, 9)), (slice(2, 5), slice(9, 9)))[rank]


@pytest.mark.parametrize("counts", [(), (1, 2), (-1,)])
def test_counts_must_fit_the_group(counts):
    with pytest.raises(ValueError, match="one per rank"):
        FullExchange(SoloCommunicator(), [Bucket(0, 3, counts)])


def test_a_bucket_is_complete_with_its_last_parameter():
    readiness = Readiness(BUCKETS)
    for name, start in (("a", 0), ("b", 3), ("c", 5), ("d", 8)):
        readiness.expect(name, start)
    for _ in range(2):
        readiness.begin()
        assert [readiness.done(name) for name in "dcba"] == [None, 1, None, 0]
    with pytest.raises(TrainingError, match="'a' was reported complete twice"):
        readiness.done("a")
