"""What every kind of exchange must keep: sums of what was sent, the same values on all ranks, statistics exactly."""

import threading
from functools import partial

import numpy as np
import pytest

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.comm.codecs import Threshold, codec
from singa_dask.errors import ConfigError
from singa_dask.exchange import Bucket, FullExchange, SharedExchange
from singa_dask.exchange.buckets import bucket_bounds, even_counts, fused_buckets
from singa_dask.exchange.coded import CodedSums, CodedValues
from singa_dask.exchange.make import bucket_exchange
from singa_dask.exchange.pipeline import stages_after
from singa_dask.exchange.staging import InPlace, OnDevice, ThroughHost
from singa_dask.net.flat import Entry

SIZE, STEPS = 18, 5
BUCKETS = [Bucket(0, 6, (2, 2, 2)), Bucket(6, 12, (0, 3, 3)), Bucket(12, 18, (6, 0, 0))]
STATISTICS = np.array([1, 6, 8])  # none in the last bucket
OTHERS = np.setdiff1d(np.arange(SIZE), STATISTICS)
CODECS = [{"name": "kHalf"}, {"name": "kPartial", "sparsity": 0.4}, {"name": "kTopK", "sparsity": 0.4}]


def gradients(step, rank):
    return np.random.default_rng([step, rank]).normal(size=SIZE).astype(np.float32)


def steps(exchange, new, change):
    """Steps of an exchange; returns the values of this rank after each."""
    values, after = np.zeros(SIZE, np.float32), []
    for step in range(STEPS):
        exchange.begin(step)
        grads = gradients(step, exchange.comm.rank)
        sums = grads if step % 2 else np.full(SIZE, np.nan, np.float32)
        for bucket in (2, 1, 0):
            exchange.prepare(bucket, grads)
            exchange.reduce_scatter(bucket, grads, sums)
            part = exchange.parts[bucket]
            new[part] = change(new[part], sums[part])
            exchange.all_gather(bucket, values, new)
        after.append(values.copy())
    return after


def total(step):
    return sum(gradients(step, rank) for rank in range(3))


@pytest.mark.parametrize("settings", CODECS)
def test_new_values_are_the_same_on_all_ranks_and_statistics_exact(settings):
    def member(comm):
        exchange = bucket_exchange(comm, BUCKETS, settings, uncoded=STATISTICS, frozen=np.array([2, 9]))
        assert not exchange.exact and exchange.transport.endswith(codec(**settings).name)
        new = np.zeros(SIZE, np.float32)
        after = steps(exchange, new, lambda old, sums: old + sums)
        return after, new, exchange

    found = run_threads(3, member)
    summed = np.zeros(SIZE, np.float32)
    for step in range(STEPS):
        summed += total(step)
        for after, *_ in found:
            np.testing.assert_array_equal(after[step], found[0][0][step])
            np.testing.assert_allclose(after[step][STATISTICS], summed[STATISTICS], rtol=1e-5, atol=1e-6)
            assert not after[step][[2, 9]].any(), "frozen"
    # What has arrived, with what every rank has kept back, is all that was sent.
    arrived = np.zeros(SIZE, np.float32)
    for _, new, exchange in found:
        for part in exchange.parts:
            arrived[part] = new[part]
    kept = sum(exchange.residual for *_, exchange in found)
    moving = np.setdiff1d(OTHERS, [2, 9])
    np.testing.assert_allclose((arrived + kept)[moving], summed[moving], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", [*(partial(codec, **settings) for settings in CODECS), partial(Threshold, 0.8)])
def test_sums_are_the_same_on_all_ranks_and_what_is_kept_back_is_owed(make):
    def member(comm):
        # Another cut of the buckets has left a residual of the own parts too.
        residual = np.full(SIZE, 0.25, np.float32)
        owed = np.zeros(SIZE, np.float32)
        exchange = CodedSums(comm, BUCKETS, make(), residual=residual, owed=owed, uncoded=STATISTICS)
        values, after = np.zeros(SIZE, np.float32), []
        for step in range(STEPS):
            exchange.begin(step)
            grads = gradients(step, comm.rank)
            for bucket in (2, 1, 0):
                exchange.prepare(bucket, grads)
            for bucket in (2, 1, 0):
                exchange.reduce_scatter(bucket, grads, grads)
                exchange.all_gather(bucket, values, grads)
            after.append(values.copy())
        return after, residual, owed

    found = run_threads(3, member)
    for step in range(STEPS):
        for after, *_ in found:
            np.testing.assert_array_equal(after[step], found[0][0][step])
            np.testing.assert_allclose(after[step][STATISTICS], total(step)[STATISTICS], rtol=1e-5, atol=1e-6)
    arrived, sent = sum(found[0][0]), sum(map(total, range(STEPS)))
    kept = sum(residual + owed for _, residual, owed in found)
    np.testing.assert_allclose((arrived + kept)[OTHERS], sent[OTHERS] + 0.75, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("settings", CODECS)
def test_a_sum_that_keeps_nothing_back_is_the_codec_of_the_sum_of_the_codecs(settings):
    def member(comm):
        exchange, grads = CodedSums(comm, BUCKETS, codec(**settings)), gradients(0, comm.rank)
        for bucket in (2, 1, 0):
            exchange.prepare(bucket, grads)
            exchange.reduce_scatter(bucket, grads, grads)
            exchange.all_gather(bucket, grads, grads)
        return grads

    def coded(values):
        coder, out = codec(**settings), np.empty_like(values)
        coder.decode(coder.encode(values), out)
        return out

    found = run_threads(3, member)
    for owner, run in ((owner, bucket.part(owner)) for bucket in BUCKETS for owner in range(3)):
        own, *others = (gradients(0, rank)[run] for rank in (owner, *{0, 1, 2} - {owner}))
        expected = coded(sum(map(coded, others), own))
        for sums in found:
            np.testing.assert_array_equal(sums[run], expected)


@pytest.mark.parametrize("settings", CODECS)
@pytest.mark.parametrize("kind", [CodedValues, CodedSums])
def test_several_buckets_may_be_under_way(kind, settings):
    """In the order of the pipeline: start k, update k + 1, gather k + 2."""

    def member(comm, ahead):
        exchange = kind(comm, BUCKETS, codec(**settings), uncoded=STATISTICS)
        values, new = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
        for step in range(STEPS):
            exchange.begin(step)
            grads, sums = gradients(step, comm.rank), np.zeros(SIZE, np.float32)
            for bucket in (2, 1, 0):
                exchange.prepare(bucket, grads)
                for stage, each in stages_after(bucket, 3, ahead=ahead, overlaps=False):
                    if stage == "start":
                        exchange.start_reduce_scatter(each, grads, sums)
                    elif stage == "update":
                        exchange.reduce_scatter(each, grads, sums)
                        part = exchange.parts[each]
                        new[part] = sums[part] if kind is CodedSums else new[part] + sums[part]
                        exchange.start_all_gather(each, values, new)
                    else:
                        exchange.all_gather(each, values, new)
        return values.tobytes()

    assert run_threads(3, member, True) == run_threads(3, member, False)


@pytest.mark.parametrize("gather", ["all_gather", "gather_exactly"])
def test_shared_memory_sums_where_the_gradients_lie_and_counts_what_was_not_sent(gather):
    memory = [gradients(0, rank) for rank in range(3)]
    values, done = np.zeros(SIZE, np.float32), threading.Barrier(3)

    def member(comm):
        exchange = SharedExchange(comm, BUCKETS, memory)
        assert exchange.exact and exchange.in_place and exchange.transport == "shared memory"
        own, sums = memory[comm.rank], np.zeros(SIZE, np.float32)
        for bucket in (2, 1, 0):
            exchange.prepare(bucket, own)
            exchange.reduce_scatter(bucket, own, sums)
            values[exchange.parts[bucket]] = sums[exchange.parts[bucket]]
            getattr(exchange, gather)(bucket, values, values)
        done.wait(10)
        exchange.reduce_scatter(0, own, own)  # in place: each adds to its own part, which no other one reads
        part = exchange.parts[0]
        return (
            values.copy(),
            own[part],
            total(0)[part],
            dict(comm.nbytes),
            sum(p.stop - p.start for p in exchange.parts),
        )

    for copied, own, expected, nbytes, mine in run_threads(3, member):
        np.testing.assert_allclose(copied, total(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
        assert nbytes["all_gather"] == 4 * (SIZE - mine) and nbytes["reduce_scatter"] == 4 * (SIZE - mine + 4)


def test_a_full_exchange_brings_the_sums_to_all_ranks():
    def member(comm):
        exchange, grads, own = FullExchange(comm, BUCKETS), gradients(0, comm.rank), np.full(SIZE, np.nan, np.float32)
        for bucket in (2, 1, 0):
            exchange.prepare(bucket, grads)
            exchange.reduce_scatter(bucket, grads, own)
            exchange.all_gather(bucket, own, own)
        return own, exchange

    for rank, (own, exchange) in enumerate(run_threads(3, member)):
        np.testing.assert_allclose(own, total(0), rtol=1e-5, atol=1e-6)
        assert exchange.parts == tuple(bucket.part(rank) for bucket in BUCKETS) and not exchange.in_place


def test_a_residual_finds_its_place_in_every_bucket_and_own_parts_are_given_back():
    def member(comm):
        exchange, given = bucket_exchange(comm, BUCKETS, CODECS[2]), gradients(2, comm.rank)
        rest = exchange.take_over(given)
        own = np.isin(np.arange(SIZE), np.r_[exchange.parts])
        np.testing.assert_array_equal(rest, np.where(own, given, 0))
        np.testing.assert_array_equal(exchange.residual, np.where(own, 0, given))

    run_threads(3, member)


@pytest.mark.parametrize("counts", [(), (1, 2), (-1,)])
def test_counts_must_fit_the_group(counts):
    with pytest.raises(ValueError, match="one per rank"):
        FullExchange(SoloCommunicator(), [Bucket(0, 3, counts)])


def test_the_kind_is_that_of_the_job_and_a_rank_on_its_own_sends_nothing():
    alone = [Bucket(0, 4, (4,))]
    for settings in ({"name": "kFull"}, *CODECS):
        exchange = bucket_exchange(SoloCommunicator(), alone, settings)
        assert type(exchange) is FullExchange and exchange.in_place and exchange.exact and exchange.overflows == 0
    with pytest.raises(ConfigError):
        bucket_exchange(SoloCommunicator(), alone, {"name": "kTopK", "sparsity": 7.0})
    kinds = run_threads(3, lambda comm: type(bucket_exchange(comm, BUCKETS, CODECS[0])))
    assert kinds == [CodedValues] * 3


def test_what_an_exchange_without_a_codec_cannot_keep_is_given_back():
    exchange = FullExchange(SoloCommunicator(), [Bucket(0, 4, (4,))])
    residual = np.arange(4.0)
    rest = exchange.take_over(residual)
    assert rest is not residual and rest.tolist() == residual.tolist() and exchange.residual is None


class Device:
    """Ops whose arrays are lists of an outside memory: only `asarray` and `to_host` cross."""

    def asarray(self, array):
        return np.array(array) + 0

    def to_host(self, array):
        return np.array(array)

    def empty(self, shape):
        return np.full(shape, np.nan, np.float32)


def test_on_the_cpu_and_on_a_device_of_its_own_nothing_is_copied():
    for kind, at_once in ((InPlace, True), (lambda *arrays: OnDevice(Device(), *arrays), False)):
        grads, values = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
        staging = kind(grads, values)
        staging.send(slice(0, 4))
        staging.put(np.full(4, 7.0))
        staging.receive(slice(0, 4))
        assert staging.gradients is grads and staging.values is values and values.tolist() == [7.0] * 4
        staging.offer(grads, slice(1, 2))
        assert staging.offered(grads) is grads and staging.at_once == at_once
        assert staging.empty().shape == (4,) and staging.empty().dtype == np.float32


def test_through_the_host_every_bucket_is_copied_there_and_back():
    grads, values = np.arange(4, dtype=np.float32), np.full(4, 9.0, np.float32)
    staging = ThroughHost(Device(), grads, values)
    assert not staging.at_once and staging.values.tolist() == [9.0] * 4 and staging.empty().size == 4
    staging.gradients[...] = -1
    staging.send(slice(1, 3))
    assert staging.gradients.tolist() == [-1, 1, 2, -1]
    staging.put(np.full(4, 5.0))
    assert values.tolist() == staging.values.tolist() == [5.0] * 4
    staging.values[...] = 6
    staging.receive(slice(0, 2))
    assert values.tolist() == [6, 6, 5, 5]
    staging.offer(np.full(4, 3.0), slice(3, 4))
    assert staging.offered(None).tolist() == [-1, 1, 2, 3] and grads.tolist() == [0, 1, 2, 3]


def test_buckets_are_cut_from_the_end_at_the_starts_of_parameters():
    assert bucket_bounds([0, 16, 48, 64], 96, 32) == [0, 16, 64, 96]
    assert bucket_bounds([], 96, 32) == bucket_bounds([0], 96, 1) == [0, 96] and bucket_bounds([], 0, 4) == [0]
    assert [even_counts(8, n) for n in (1, 3)] == [(8,), (2, 3, 3)]
    bucket = Bucket(10, 16, (1, 2, 3))
    assert (bucket.size, bucket.elements) == (6, slice(10, 16))
    assert [bucket.part(rank) for rank in range(3)] == [slice(10, 11), slice(11, 13), slice(13, 16)]


def test_small_parameters_are_fused_and_large_ones_go_alone():
    entries = [
        Entry(str(i), (n,), start, n) for i, (start, n) in enumerate([(0, 4), (4, 3), (7, 20), (27, 2), (29, 2)])
    ]
    assert [(b.start, b.stop) for b in fused_buckets(entries, 31, 5, 2)] == [(0, 7), (7, 27), (27, 31)]
    assert [(b.start, b.stop) for b in fused_buckets(entries, 31, 3, 2)] == [(0, 4), (4, 7), (7, 27), (27, 31)]
    assert [(b.start, b.stop, b.counts) for b in fused_buckets(entries, 31, 100, 2)] == [(0, 31, (15, 16))]
