"""Buckets: what the exchange adds to a communicator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.errors import TrainingError
from singa_dask.exchange import Bucket, FullExchange
from singa_dask.exchange.make import bucket_exchange
from singa_dask.exchange.pipeline import Readiness, order
from singa_dask.net.flat import Entry

BUCKETS = [Bucket(0, 5, (2, 3)), Bucket(5, 9, (4, 0))]
ENTRIES = [Entry(name, (1,), start, 1) for name, start in (("a", 0), ("b", 3), ("c", 5), ("d", 8))]


def _exchange(comm):
    exchange = FullExchange(comm, BUCKETS)
    grads, own = np.arange(9, dtype=np.float32) * (comm.rank + 1), np.full(9, np.nan, np.float32)
    for bucket in (1, 0):
        exchange.prepare(bucket, grads)
        exchange.reduce_scatter(bucket, grads, own)
        exchange.all_gather(bucket, own, own)
    return own, exchange.parts


def test_every_bucket_is_summed_by_runs_and_brought_together():
    for rank, (own, parts) in enumerate(run_threads(2, _exchange)):
        np.testing.assert_array_equal(own, 3 * np.arange(9))
        assert parts == ((slice(0, 2), slice(5, 9)), (slice(2, 5), slice(9, 9)))[rank]


CODECS = [("kHalf", None), ("kBFloat16", None), ("kPartial", 0.5), ("kTopK", 0.3)]


@pytest.mark.parametrize(("name", "sparsity"), CODECS)
@pytest.mark.parametrize("in_place", [False, True])
def test_buckets_may_be_prepared_while_others_are_under_way(name, sparsity, in_place):
    def steps(comm, first):
        exchange = bucket_exchange(
            comm, BUCKETS, {"name": name, "sparsity": sparsity}, uncoded=np.array([2, 6]), frozen=np.array([7])
        )
        draw = np.random.default_rng(comm.rank)
        values, new = np.zeros(9, np.float32), np.zeros(9, np.float32)
        for step in range(4):
            exchange.begin(step)
            grads = draw.normal(size=9).astype(np.float32)
            summed = grads if in_place else np.empty(9, np.float32)
            for bucket in first:
                exchange.prepare(bucket, grads)
            for bucket in (1, 0):
                if bucket not in first:
                    exchange.prepare(bucket, grads)
                exchange.reduce_scatter(bucket, grads, summed)
                part = exchange.parts[bucket]
                new[part] -= 0.1 * summed[part]
                exchange.all_gather(bucket, values, new)
        return values.tobytes(), exchange.residual.tobytes()

    one_by_one, ahead = (run_threads(2, steps, first) for first in ([], [1, 0]))
    assert one_by_one == ahead
    assert one_by_one[0][0] == one_by_one[1][0]
    assert np.frombuffer(one_by_one[0][0], np.float32).any()


@pytest.mark.parametrize("counts", [(), (1, 2), (-1,)])
def test_counts_must_fit_the_group(counts):
    with pytest.raises(ValueError, match="one per rank"):
        FullExchange(SoloCommunicator(), [Bucket(0, 3, counts)])


def test_a_bucket_is_complete_with_its_last_parameter():
    readiness = Readiness(BUCKETS, ENTRIES)
    for _ in range(2):
        readiness.begin()
        assert [readiness.complete(name) for name in "dcba"] == [[], [1], [], [0]]
        assert readiness.rest() == []
    with pytest.raises(TrainingError, match="'a' was reported complete twice"):
        readiness.complete("a")


def test_buckets_leave_from_the_last_to_the_first_in_whatever_order_they_are_complete():
    readiness = Readiness(BUCKETS, ENTRIES)
    readiness.begin()
    assert [readiness.complete(name) for name in "badc"] == [[], [], [], [1, 0]]
    readiness.begin()
    assert [readiness.complete(name) for name in "dc"] == [[], [1]]
    assert readiness.rest() == [0] and readiness.rest() == []


@given(st.integers(1, 9), st.booleans(), st.booleans())
def test_every_bucket_goes_through_every_stage_and_two_are_on_their_way_at_most(count, ahead, overlaps):
    buckets = list(reversed(range(count)))
    calls = [call for bucket in buckets for call in order(bucket, count, ahead=ahead, overlaps=overlaps)]
    for stage in ("start", "update", "gather"):
        assert [bucket for name, bucket in calls if name == stage] == buckets
    at = {call: place for place, call in enumerate(calls)}
    for bucket in buckets:
        assert at["start", bucket] < at["update", bucket] < at["gather", bucket]
        if bucket + 2 < count:  # whose place the bucket takes
            assert at["update", bucket + 2] < at["start", bucket]
            assert at["gather", bucket + 2] < at["update", bucket]
        if bucket and (overlaps or not ahead):
            assert at["gather", bucket] < at["start", 0]
