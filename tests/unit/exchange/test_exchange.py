"""Buckets: what the exchange adds to a communicator."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.exchange import Bucket, FullExchange
from singa_dask.exchange.make import bucket_exchange

BUCKETS = [Bucket(0, 5, (2, 3)), Bucket(5, 9, (4, 0))]


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


THREE = [Bucket(0, 6, (2, 2, 2)), Bucket(6, 12, (0, 3, 3)), Bucket(12, 18, (6, 0, 0))]


def _summed(comm, step, kind):
    """The own parts of the sum after a step with each value a codec keeps or not, and the exchange."""
    exchange = bucket_exchange(comm, THREE, kind)
    grads = np.random.default_rng([step, comm.rank]).normal(size=18).astype(np.float32)
    sums, sent = np.zeros(18, np.float32), grads.copy()
    exchange.begin(step)
    for bucket in (2, 1, 0):
        exchange.prepare(bucket, grads)
        exchange.reduce_scatter(bucket, grads, sums)
    return sent, sums, exchange


@pytest.mark.parametrize("kind", [{"name": "kTopK", "sparsity": 0.4}, {"name": "kPartial", "sparsity": 0.4}])
def test_what_arrives_and_what_is_kept_back_are_all_gradients_of_every_bucket(kind):
    found = run_threads(3, _summed, 1, kind)
    arrived = np.zeros(18, np.float32)
    for _, sums, exchange in found:
        for part in exchange.parts:
            arrived[part] = sums[part]
            assert not exchange.residual[part].any(), "the own part is not sent"
    kept = sum(exchange.residual for *_, exchange in found)
    assert all(kept[bucket.elements].any() for bucket in THREE)
    np.testing.assert_allclose(arrived + kept, sum(sent for sent, *_ in found), rtol=1e-5, atol=1e-6)


def test_a_residual_finds_its_place_in_every_bucket():
    def member(comm):
        sent, _, exchange = _summed(comm, 2, {"name": "kTopK", "sparsity": 0.4})
        other = bucket_exchange(comm, THREE, {"name": "kTopK", "sparsity": 0.4})
        rest = other.take_over(sent)
        return sent, other.residual, rest, exchange.parts

    for given, kept, rest, parts in run_threads(3, member):
        own = np.zeros(18, bool)
        for part in parts:
            own[part] = True
        np.testing.assert_array_equal(rest, np.where(own, given, 0))
        np.testing.assert_array_equal(kept, np.where(own, 0, given))
