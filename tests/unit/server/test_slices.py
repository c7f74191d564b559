"""How the flat parameters are cut."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.exchange import bucket_bounds
from singa_dask.server import partition
from singa_dask.server.slices import ALIGNMENT, even_cuts

members = st.integers(1, 9)


@given(blocks=st.integers(0, 60), nworkers=members, nservers=members, beside=st.booleans())
def test_every_element_is_in_one_slice_of_one_worker_and_one_server(blocks, nworkers, nservers, beside):
    size = blocks * ALIGNMENT
    cut = partition(size, nworkers, nservers, beside=beside)

    ends = [0]
    for index, s in enumerate(cut.slices):
        assert s.index == index and s.start == ends[-1] and s.size > 0 and s.start % ALIGNMENT == 0
        ends.append(s.stop)
    (bucket,) = cut.buckets
    assert ends[-1] == size == cut.size == sum(bucket.counts) == bucket.size

    worker_ends = [0, *accumulate(bucket.counts)]
    server_ends = [0, *accumulate(even_cuts(size, nservers))]
    for s in cut.slices:
        assert worker_ends[s.worker] <= s.start and s.stop <= worker_ends[s.worker + 1]
        assert server_ends[s.server] <= s.start and s.stop <= server_ends[s.server + 1]
    # Cut no finer than the two ranges demand: one message per worker and server that share elements.
    assert len({(s.worker, s.server) for s in cut.slices}) == len(cut.slices)
    assert [s for i in range(nworkers) for s in cut.of_worker(i)] == list(cut.slices)
    assert [s for i in range(nservers) for s in cut.of_server(i)] == list(cut.slices)
    assert bucket.counts == tuple(sum(s.size for s in cut.of_worker(i)) for i in range(nworkers))


@given(
    nworkers=members, nservers=members, beside=st.booleans(), data=st.data(),
    bounds=st.lists(st.integers(0, 60), min_size=2, max_size=5).map(sorted),
)  # fmt: skip
def test_a_group_that_lacks_workers_deals_their_slices_to_the_others(nworkers, nservers, beside, data, bounds):
    bounds = [ALIGNMENT * (bound - bounds[0]) for bound in bounds]
    cut = partition(bounds[-1], nworkers, nservers, beside=beside, bounds=bounds)
    count = data.draw(st.integers(1, nworkers))
    fewer = cut.dealt_to(count)
    assert fewer.size == cut.size
    for before, now in zip(cut.slices, fewer.slices, strict=True):
        assert (now.index, now.start, now.stop, now.server) == (before.index, before.start, before.stop, before.server)
    workers = {before.worker: now.worker for before, now in zip(cut.slices, fewer.slices, strict=True)}
    assert all(workers[a] <= workers[b] for a in workers for b in workers if a < b)
    for bucket in fewer.buckets:
        assert len(bucket.counts) == count and sum(bucket.counts) == bucket.size
        for s in fewer.slices:
            if bucket.start <= s.start < bucket.stop:
                part = bucket.part(s.worker)
                assert part.start <= s.start and s.stop <= part.stop
    assert cut.dealt_to(nworkers) == cut


@given(blocks=st.integers(0, 60), nworkers=members, nservers=members)
def test_beside_gives_each_server_the_range_of_the_worker_beside_it(blocks, nworkers, nservers):
    cut = partition(blocks * ALIGNMENT, nworkers, nservers, beside=True)
    if nservers <= nworkers:
        assert all(s.worker == s.server for s in cut.slices)
        assert not any(cut.buckets[0].counts[nservers:])
    else:
        assert list(cut.buckets[0].counts) == even_cuts(cut.size, nworkers)


@given(blocks=st.integers(0, 60), nworkers=members, nservers=members)
def test_separate_servers_leave_the_workers_equal_ranges(blocks, nworkers, nservers):
    cut = partition(blocks * ALIGNMENT, nworkers, nservers, beside=False)
    (bucket,) = cut.buckets
    assert max(bucket.counts) - min(bucket.counts) <= ALIGNMENT


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=9), wanted=st.integers(1, 12),
    nworkers=members, nservers=members, beside=st.booleans(),
)  # fmt: skip
def test_a_partition_cuts_only_where_it_may(lengths, wanted, nworkers, nservers, beside):
    starts = [ALIGNMENT * start for start in accumulate(lengths, initial=0)]
    size = starts.pop()
    bounds = bucket_bounds(starts, size, ALIGNMENT * wanted)
    cut = partition(size, nworkers, nservers, beside=beside, bounds=bounds, cuts=starts)
    assert {s.start for s in cut.slices} <= set(starts)
    assert [0, *(s.stop for s in cut.slices)] == [*(s.start for s in cut.slices), size]
    assert all(sum(bucket.counts) == bucket.size and len(bucket.counts) == nworkers for bucket in cut.buckets)
    for bucket in cut.buckets:  # no range is longer than its even share and a parameter at either end
        longest = ALIGNMENT * max(lengths)
        assert max(bucket.counts) <= bucket.size / (min(nworkers, nservers) if beside else nworkers) + longest


@given(blocks=st.integers(0, 20), owned=st.lists(st.integers(0, 9), min_size=1, max_size=6), beside=st.booleans())
@pytest.mark.parametrize("nservers", [1, 2, 3, 6])
def test_own_shards_follow_the_replicated_parameters(nservers, blocks, owned, beside):
    size, own = blocks * ALIGNMENT, [count * ALIGNMENT for count in owned]
    plain = partition(size, len(own), nservers, beside=beside)
    cut = partition(size, len(own), nservers, beside=beside, own=own)
    assert cut.buckets == plain.buckets and cut.slices[: len(plain.slices)] == plain.slices

    ends = [0, *(s.stop for s in cut.slices)]
    assert [s.start for s in cut.slices] == ends[:-1] and ends[-1] == cut.size == size + sum(own)
    assert all(s.size > 0 and s.index == i for i, s in enumerate(cut.slices))
    for worker, (first, last) in enumerate(pairwise(accumulate(own, initial=size))):
        others = [s for s in cut.slices if first <= s.start < last]
        assert all(s.worker == worker for s in others)
        if beside and nservers == len(own):
            assert all(s.server == worker for s in others)
        mine = [s for s in cut.of_worker(worker) if s.start >= size]
        assert [(s.index, s.size) for s in mine] == [(s.index, s.size) for s in others]
        assert [s.start for s in mine] == [size + s.start - first for s in others]


def test_a_worker_between_two_servers_says_two_messages():
    cut = partition(6 * ALIGNMENT, 3, 2, beside=False)
    assert [(s.size // ALIGNMENT, s.worker, s.server) for s in cut.slices] == [
        (2, 0, 0),
        (1, 1, 0),
        (1, 1, 1),
        (2, 2, 1),
    ]


sizes = st.lists(st.integers(1, 9), max_size=12)


@given(sizes=sizes, wanted=st.integers(1, 300), nworkers=members, nservers=members, beside=st.booleans())
def test_buckets_hold_whole_parameters_and_are_cut_like_nets(sizes, wanted, nworkers, nservers, beside):
    starts = [ALIGNMENT * sum(sizes[:i]) for i in range(len(sizes))]
    size = ALIGNMENT * sum(sizes)
    bounds = bucket_bounds(starts, size, wanted)
    assert bounds[0] == 0 and bounds[-1] == size and set(bounds[1:-1]) <= set(starts)
    lengths = [stop - start for start, stop in pairwise(bounds)]
    assert all(length >= wanted for length in lengths[1:]), "only the first bucket may be smaller"
    cut = partition(size, nworkers, nservers, beside=beside, bounds=bounds)
    assert [(b.start, b.stop) for b in cut.buckets] == list(pairwise(bounds))
    assert [s.index for s in cut.slices] == list(range(len(cut.slices)))
    assert sum(s.size for s in cut.slices) == size
    for bucket in cut.buckets:
        alone = partition(bucket.size, nworkers, nservers, beside=beside)
        inside = [s for s in cut.slices if bucket.start <= s.start < bucket.stop]
        assert [(s.worker, s.server, s.start - bucket.start, s.stop - bucket.start) for s in inside] == [
            (s.worker, s.server, s.start, s.stop) for s in alone.slices
        ]
        assert all(p.start <= s.start and s.stop <= p.stop for s in inside for p in [bucket.part(s.worker)])
