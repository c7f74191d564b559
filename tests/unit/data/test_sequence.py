"""Mini-batches of sequences, against their definition."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singa_dask.data.columns import Column, Role
from singa_dask.data.manifest import Manifest, Shard
from singa_dask.data.plan import Stream, StreamConf
from singa_dask.data.sequence import SequenceStream
from singa_dask.data.stream import stream_of
from singa_dask.errors import ConfigError

COLUMNS = (Column("x", Role.FEATURE, "uint8", (1,)),)


def manifest_of(total: int, window: int = 4) -> Manifest:
    shard = Shard("shard-00000.h5", total, ("0" * 32,) * -(-total // window))
    return Manifest(total, COLUMNS, window, (shard,))


@st.composite
def streams(draw) -> SequenceStream:
    """Of any group, with a part that is from just large enough to a few times as large."""
    batchsize, sequence, lookahead = draw(st.integers(1, 6)), draw(st.integers(1, 7)), draw(st.integers(0, 4))
    ngroups = draw(st.integers(1, 4))
    least = batchsize * (sequence + lookahead) * ngroups
    conf = StreamConf(
        batchsize,
        draw(st.integers(0, 2**64 - 1)),
        draw(st.integers(0, ngroups - 1)),
        ngroups,
        shuffle=False,
        random_skip=draw(st.integers(0, 50)),
        sequence=sequence,
        lookahead=lookahead,
    )
    return SequenceStream(manifest_of(draw(st.integers(least, 4 * least))), conf)


steps = st.integers(0, 10_000)


@settings(max_examples=150)
@given(streams(), steps)
def test_a_batch_is_what_the_definition_says(stream, step):
    conf, total = stream.conf, stream.manifest.total
    begin = total * conf.group // conf.ngroups
    n = total * (conf.group + 1) // conf.ngroups - begin
    expected = [
        [
            begin + (stream.skip + n // conf.batchsize * row + step * conf.sequence + place) % n
            for place in range(width)
        ]
        for row in range(conf.batchsize)
        for width in [conf.sequence + conf.lookahead]
    ]
    batch = stream.batch(step)
    assert batch.tolist() == expected
    assert batch.dtype == np.int64
    assert len(np.unique(batch)) == batch.size  # no record twice


@settings(max_examples=100)
@given(streams(), steps)
def test_the_next_batch_goes_on_where_this_one_stopped(stream, step):
    this, following = stream.batch(step), stream.batch(step + 1)
    own = stream.conf.sequence
    np.testing.assert_array_equal(following[:, : stream.conf.lookahead], this[:, own:])
    successors = stream.first + (this[:, own - 1] - stream.first + 1) % stream.samples
    np.testing.assert_array_equal(following[:, 0], successors)


@settings(max_examples=100)
@given(streams(), steps, st.integers(1, 7))
def test_the_rows_of_all_workers_make_up_the_batch(stream, step, nranks):
    shares = [stream.share(step, rank, nranks) for rank in range(nranks)]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in shares]), stream.batch(step))
    sizes = [len(rows) for _, rows in shares]
    assert [first for first, _ in shares] == list(np.cumsum([0, *sizes[:-1]]))
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60)
@given(streams())
def test_groups_are_disjoint_and_an_epoch_shows_every_record(stream):
    seen = []
    for group in range(stream.conf.ngroups):
        own = SequenceStream(stream.manifest, replace(stream.conf, group=group, lookahead=0))
        epoch = [own.batch(step) for step in range(own.steps_per_epoch)]
        seen.append(np.unique(epoch))
        assert len(np.unique(epoch[:-1])) < own.samples  # and not in a step less
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(stream.manifest.total))


@settings(max_examples=60)
@given(streams(), steps)
def test_resuming_at_a_step_is_asking_for_it(stream, step):
    resumed = pickle.loads(pickle.dumps(stream))
    np.testing.assert_array_equal(resumed.batch(step), stream.batch(step))
    assert resumed.fingerprint == stream.fingerprint


def test_random_skip_shifts_the_ring():
    manifest, conf = manifest_of(40), StreamConf(2, shuffle=False, random_skip=5, sequence=3)
    shifted = {SequenceStream(manifest, replace(conf, seed=seed)).batch(0)[0, 0] for seed in range(60)}
    assert shifted == set(range(6))


CONF = StreamConf(2, seed=4, shuffle=False, sequence=5, lookahead=1)


@pytest.mark.parametrize(
    "change",
    [
        {"batchsize": 3},
        {"sequence": 4},
        {"lookahead": 2},
        {"ngroups": 2},
        {"ngroups": 2, "group": 1},
        {"random_skip": 9},
    ],
)
def test_the_fingerprint_tells_different_streams_apart(change):
    manifest = manifest_of(50)
    fingerprint = stream_of(manifest, CONF).fingerprint
    assert stream_of(manifest, replace(CONF, **change)).fingerprint != fingerprint
    assert stream_of(manifest_of(49), CONF).fingerprint != fingerprint
    assert stream_of(manifest, replace(CONF, seed=5)).fingerprint == fingerprint  # nothing is drawn
    assert stream_of(manifest, replace(CONF, sequence=0, lookahead=0)).fingerprint != fingerprint


def test_a_conf_without_sequence_is_of_single_samples():
    assert isinstance(stream_of(manifest_of(50), replace(CONF, sequence=0, lookahead=0)), Stream)
    assert isinstance(stream_of(manifest_of(50), CONF), SequenceStream)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sequence": 0}, r"store_conf\.sequence: must be at least 1. Received: 0"),
        ({"lookahead": -1}, r"store_conf\.lookahead: must not be negative. Received: -1"),
        ({"shuffle": True}, r"store_conf\.shuffle: sequences cannot be shuffled"),
        ({"batchsize": 0}, r"store_conf\.batchsize: must be at least 1"),
        ({"batchsize": 9}, r"batchsize: 9 rows of 6 records do not fit into the 50 records .*: 9. Use at most 8"),
        ({"batchsize": 5, "ngroups": 2}, r"the 25 records .* of one of 2 worker groups.*Use at most 4"),
        ({"sequence": 50}, r"2 rows of 51 records do not fit.*Use a shorter sequence, or more data"),
    ],
)
def test_faults_name_the_key_and_the_way_out(change, fault):
    with pytest.raises(ConfigError, match=fault):
        SequenceStream(manifest_of(50), replace(CONF, **change))


def test_the_least_data_is_enough():
    assert SequenceStream(manifest_of(12), CONF).batch(0).tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


@settings(max_examples=150)
@given(streams())
def test_one_pass_has_no_record_twice_and_misses_at_most_the_end_of_each_row(stream):
    conf = replace(stream.conf, random_skip=0, once=True)
    once = SequenceStream(stream.manifest, conf)
    records = np.concatenate([once.batch(step)[:, : conf.sequence].ravel() for step in range(once.steps)])
    assert len(np.unique(records)) == len(records)
    assert once.samples - len(records) <= conf.batchsize * once.row_records
    last = once.batch(once.steps - 1)
    assert (np.diff(last, axis=1) == 1).all(), "no row goes on at the other end of the records"
