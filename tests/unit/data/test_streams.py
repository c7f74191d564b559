"""Which samples form each mini-batch: single samples and sequences, against their definitions."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singa_dask.data.columns import Column, Role
from singa_dask.data.manifest import Manifest, Shard
from singa_dask.data.plan import Stream, StreamConf, permutation
from singa_dask.data.schema import Schema
from singa_dask.data.sequence import SequenceStream
from singa_dask.data.store import stream_of
from singa_dask.errors import ConfigError

COLUMNS = (Column("x", Role.FEATURE, "float32", (1,)),)


def manifest_of(sizes: list[int], window: int = 4) -> Manifest:
    shards = tuple(Shard(f"shard-{i:05d}.h5", n, ("0" * 32,) * -(-n // window)) for i, n in enumerate(sizes))
    return Manifest(sum(sizes), Schema(COLUMNS), window, shards)


manifests = st.builds(manifest_of, st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(1, 9))
seeds = st.integers(0, 2**64 - 1)
steps = st.integers(0, 10_000)


@st.composite
def singles(draw) -> Stream:
    conf = StreamConf(draw(st.integers(1, 40)), draw(seeds), random_skip=draw(st.integers(0, 50)))
    return Stream(draw(manifests), conf)


@st.composite
def sequences(draw) -> SequenceStream:
    """Of any group, with a part that is from just large enough to a few times as large."""
    batchsize, sequence, lookahead = draw(st.integers(1, 6)), draw(st.integers(1, 7)), draw(st.integers(0, 4))
    ngroups = draw(st.integers(1, 4))
    least = batchsize * (sequence + lookahead) * ngroups
    groups = {"group": draw(st.integers(0, ngroups - 1)), "ngroups": ngroups}
    form = {"sequence": sequence, "lookahead": lookahead, "random_skip": draw(st.integers(0, 50))}
    conf = StreamConf(batchsize, draw(seeds), shuffle=False, **groups, **form)
    return SequenceStream(manifest_of([draw(st.integers(least, 4 * least))]), conf)


@settings(max_examples=150)
@given(singles() | sequences(), steps, st.integers(1, 7))
def test_shares_make_up_the_batch_for_any_number_of_workers(stream, step, nranks):
    shares = [stream.share(step, rank, nranks) for rank in range(nranks)]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in shares]), stream.batch(step))
    sizes = [len(rows) for _, rows in shares]
    assert [first for first, _ in shares] == list(np.cumsum([0, *sizes[:-1]]))
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == stream.conf.batchsize


@settings(max_examples=60)
@given(singles() | sequences(), st.integers(0, 30))
def test_resuming_at_a_step_equals_running_to_it(stream, step):
    before = [stream.batch(s) for s in range(step + 3)]
    resumed = pickle.loads(pickle.dumps(stream))
    assert resumed.fingerprint == stream.fingerprint
    for s in (step + 2, step, step + 1):
        np.testing.assert_array_equal(resumed.batch(s), before[s])


CONF = StreamConf(2, seed=4, shuffle=False, sequence=5, lookahead=1)


@pytest.mark.parametrize(
    ("conf", "change", "same"),
    [
        *((StreamConf(4), {key: 1}, False) for key in ("seed", "random_skip")),
        (StreamConf(4), {"batchsize": 5}, False),
        (StreamConf(4), {"ngroups": 2}, False),
        (StreamConf(4), {"shuffle": False}, False),
        (StreamConf(4, shuffle=False), {"once": True}, False),
        (CONF, {"batchsize": 3}, False),
        (CONF, {"sequence": 4}, False),
        (CONF, {"lookahead": 2}, False),
        (CONF, {"ngroups": 2}, False),
        (replace(CONF, ngroups=2), {"group": 1}, False),
        (CONF, {"random_skip": 9}, False),
        (CONF, {"seed": 5}, True),  # nothing is drawn
        (CONF, {"sequence": 0, "lookahead": 0}, False),
    ],
)
def test_the_fingerprint_tells_different_streams_apart(conf, change, same):
    fingerprint = stream_of(manifest_of([50]), conf).fingerprint
    assert stream_of(manifest_of([50]), conf).fingerprint == fingerprint
    assert (stream_of(manifest_of([50]), replace(conf, **change)).fingerprint == fingerprint) == same
    assert stream_of(manifest_of([49]), conf).fingerprint != fingerprint


@pytest.mark.parametrize(
    ("conf", "change", "fault"),
    [
        (StreamConf(2), {"batchsize": 0}, "batchsize"),
        (StreamConf(2), {"random_skip": -1}, "skip"),
        (StreamConf(2), {"ngroups": 14}, r"cluster\.nworker_groups: 14 worker groups .* the 13 windows.*--window"),
        (CONF, {"sequence": -1}, r"store_conf\.sequence: must be at least 1. Received: -1"),
        (CONF, {"lookahead": -1}, r"store_conf\.lookahead: must not be negative. Received: -1"),
        (CONF, {"shuffle": True}, r"store_conf\.shuffle: sequences cannot be shuffled"),
        (CONF, {"batchsize": 9}, r"batchsize: 9 rows of 6 records do not fit into the 50 .*: 9. Use at most 8"),
        (CONF, {"batchsize": 5, "ngroups": 2}, r"the 25 records .* of one of 2 worker groups.*Use at most 4"),
        (CONF, {"sequence": 50}, r"2 rows of 51 records do not fit.*Use a shorter sequence, or more data"),
    ],
)  # fmt: skip
def test_faults_name_the_key_and_the_way_out(conf, change, fault):
    with pytest.raises(ConfigError, match=fault):
        stream_of(manifest_of([50]), replace(conf, **change))


def test_sequences_of_shuffled_records_are_refused():
    with pytest.raises(ConfigError, match=r"sequence: .*in random order. Received: 5. Write .* --no-shuffle"):
        stream_of(replace(manifest_of([50]), order="shuffled, seed 0"), CONF)


@pytest.mark.parametrize("conf", [StreamConf(4), replace(CONF, sequence=3, lookahead=0)])
def test_random_skip_is_seeded_and_bounded(conf):
    skips = [stream_of(manifest_of([50]), replace(conf, seed=seed, random_skip=3)).skip for seed in [*range(60)] * 2]
    assert set(skips) == {0, 1, 2, 3} and skips[:60] == skips[60:]


# Single samples


@settings(max_examples=60)
@given(manifests, seeds, st.integers(1, 4), st.booleans())
def test_groups_are_disjoint_and_every_epoch_visits_each_sample_once(manifest, seed, ngroups, shuffle):
    ngroups = min(ngroups, len(manifest.windows))
    epochs = []
    for group in range(ngroups):
        stream = Stream(manifest, StreamConf(3, seed, group, ngroups, shuffle))
        first, second = (np.sort(stream.run(e * stream.samples, (e + 1) * stream.samples)) for e in (0, 5))
        np.testing.assert_array_equal(first, second)
        epochs.append(first)
    np.testing.assert_array_equal(np.sort(np.concatenate(epochs)), np.arange(manifest.total))
    sizes = [epoch.size for epoch in epochs]
    assert max(sizes) - min(sizes) <= manifest.window


@pytest.mark.parametrize("seed", range(5))
def test_short_windows_even_out_the_groups(seed):
    manifest = manifest_of([4, 8, 4], 8)
    assert [Stream(manifest, StreamConf(1, seed, group, 2)).samples for group in range(2)] == [8, 8]


@settings(max_examples=60)
@given(singles(), st.integers(0, 30))
def test_batches_are_consecutive_pieces_of_the_endless_order(stream, step):
    begin = stream.skip + stream.batchsize * step
    np.testing.assert_array_equal(stream.batch(step), np.sort(stream.run(begin, begin + stream.batchsize)))


def test_epochs_and_seeds_have_orders_of_their_own():
    stream, other = (Stream(manifest_of([500, 500], 8), StreamConf(10, seed=seed)) for seed in (1, 2))
    first = stream.run(0, 1000)
    for different in (stream.run(1000, 2000), other.run(0, 1000)):
        assert not np.array_equal(first, different)
    # Well mixed: neighbours in the order are rarely neighbours in the file, and do not come in the files' order.
    assert np.mean(np.abs(np.diff(first)) == 1) < 0.05
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.2


def test_a_worker_reads_about_its_share_of_a_block():
    stream = Stream(manifest_of([4096], 64), StreamConf(64))
    for rank in range(2):  # one block: 8 windows of 64 samples
        assert len({w for step in range(8) for w in (stream.share(step, rank, 2)[1] // 64).tolist()}) <= 5


def test_unshuffled_streams_go_in_the_order_of_the_files_and_wrap_around():
    stream = Stream(manifest_of([5, 4], 2), StreamConf(4, shuffle=False))
    assert [stream.batch(step).tolist() for step in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 8]]
    assert stream.steps_per_epoch == 3


def test_order_is_fixed_for_ever():
    """A change of these numbers breaks the resuming of every checkpoint that users have: then raise plan.RULE."""
    assert permutation((1, 2, 3), 8).tolist() == [1, 3, 7, 5, 2, 0, 4, 6]
    order = Stream(manifest_of([20], 4), StreamConf(5, seed=9)).run(0, 10)
    assert order.tolist() == [5, 10, 3, 8, 1, 2, 12, 0, 17, 15]


@settings(max_examples=60)
@given(manifests, st.integers(1, 100), st.integers(1, 7))
def test_one_pass_has_every_sample_once_in_the_order_of_the_files(manifest, batchsize, nranks):
    stream = Stream(manifest, StreamConf(batchsize, shuffle=False, once=True))
    assert stream.steps == -(-manifest.total // batchsize)
    shares = [stream.share(step, rank, nranks) for step in range(stream.steps) for rank in range(nranks)]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in shares]), np.arange(manifest.total))
    sizes = [stream.rows(step) for step in range(stream.steps)]
    assert set(sizes[:-1]) <= {batchsize} and sum(sizes) == manifest.total
    endless = Stream(manifest, StreamConf(batchsize, shuffle=False))
    assert (endless.steps, endless.rows(10_000)) == (None, batchsize)


# Sequences


@settings(max_examples=150)
@given(sequences(), steps)
def test_a_batch_is_what_the_definition_says(stream, step):
    conf, total = stream.conf, stream.manifest.total
    begin = total * conf.group // conf.ngroups
    n = total * (conf.group + 1) // conf.ngroups - begin
    width = conf.sequence + conf.lookahead
    expected = [
        [begin + (stream.skip + n // conf.batchsize * row + step * conf.sequence + t) % n for t in range(width)]
        for row in range(conf.batchsize)
    ]
    batch = stream.batch(step)
    assert batch.tolist() == expected and batch.dtype == np.int64
    assert len(np.unique(batch)) == batch.size  # no record twice


@settings(max_examples=60)
@given(sequences())
def test_groups_of_sequences_are_disjoint_and_an_epoch_shows_every_record(stream):
    seen = []
    for group in range(stream.conf.ngroups):
        own = SequenceStream(stream.manifest, replace(stream.conf, group=group, lookahead=0))
        epoch = [own.batch(step) for step in range(own.steps_per_epoch)]
        seen.append(np.unique(epoch))
        assert len(np.unique(epoch[:-1])) < own.samples  # and not in a step less
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(stream.manifest.total))


@settings(max_examples=150)
@given(sequences())
def test_one_pass_has_no_record_twice_and_misses_at_most_the_end_of_each_row(stream):
    conf = replace(stream.conf, random_skip=0, once=True)
    once = SequenceStream(stream.manifest, conf)
    records = np.concatenate([once.batch(step)[:, : conf.sequence].ravel() for step in range(once.steps)])
    assert len(np.unique(records)) == len(records)
    assert once.samples - len(records) <= conf.batchsize * once.row_records
    last = once.batch(once.steps - 1)
    assert (np.diff(last, axis=1) == 1).all(), "no row goes on at the other end of the records"
