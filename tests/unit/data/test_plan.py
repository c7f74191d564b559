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
from singa_dask.errors import ConfigError

COLUMNS = (Column("x", Role.FEATURE, "float32", (1,)),)


def manifest_of(sizes: list[int], window: int) -> Manifest:
    shards = tuple(Shard(f"shard-{i:05d}.h5", n, ("0" * 32,) * -(-n // window)) for i, n in enumerate(sizes))
    return Manifest(sum(sizes), COLUMNS, window, shards)


manifests = st.builds(manifest_of, st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(1, 9))
seeds = st.integers(0, 2**64 - 1)


def streams(manifest: Manifest, ngroups: int, **conf: object) -> list[Stream]:
    return [Stream(manifest, StreamConf(group=g, ngroups=ngroups, **conf)) for g in range(ngroups)]


@settings(max_examples=60)
@given(manifests, seeds, st.integers(1, 4), st.booleans())
def test_groups_are_disjoint_and_every_epoch_visits_each_sample_once(manifest, seed, ngroups, shuffle):
    ngroups = min(ngroups, len(manifest.windows))
    epochs = []
    for stream in streams(manifest, ngroups, batchsize=3, seed=seed, shuffle=shuffle):
        first, second = (np.sort(stream.run(e * stream.samples, (e + 1) * stream.samples)) for e in (0, 5))
        np.testing.assert_array_equal(first, second)
        epochs.append(first)
    np.testing.assert_array_equal(np.sort(np.concatenate(epochs)), np.arange(manifest.total))
    sizes = [epoch.size for epoch in epochs]
    assert max(sizes) - min(sizes) <= manifest.window


@pytest.mark.parametrize("seed", range(5))
def test_short_windows_even_out_the_groups(seed):
    manifest = manifest_of([4, 8, 4], 8)
    assert [window.samples for window in manifest.windows] == [4, 8, 4]
    assert [stream.samples for stream in streams(manifest, 2, batchsize=1, seed=seed)] == [8, 8]


@settings(max_examples=60)
@given(manifests, seeds, st.integers(1, 100), st.integers(1, 7), st.integers(0, 40))
def test_shares_make_up_the_batch_for_any_number_of_workers(manifest, seed, batchsize, nranks, step):
    stream = Stream(manifest, StreamConf(batchsize, seed))
    shares = [stream.share(step, rank, nranks) for rank in range(nranks)]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in shares]), stream.batch(step))
    sizes = [rows.size for _, rows in shares]
    assert [first for first, _ in shares] == list(np.cumsum([0, *sizes[:-1]]))
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == batchsize


@settings(max_examples=60)
@given(manifests, seeds, st.integers(1, 40), st.integers(0, 30), st.integers(0, 50))
def test_resuming_at_a_step_equals_running_to_it(manifest, seed, batchsize, step, skip):
    conf = StreamConf(batchsize, seed, random_skip=skip)
    ran = Stream(manifest, conf)
    before = [ran.batch(s) for s in range(step + 3)]
    resumed = pickle.loads(pickle.dumps(Stream(manifest, conf)))
    for s in (step + 2, step, step + 1):
        np.testing.assert_array_equal(resumed.batch(s), before[s])
    # Batches are consecutive pieces of the endless order.
    order = ran.run(ran.skip, ran.skip + batchsize * (step + 3))
    for s, batch in enumerate(before):
        np.testing.assert_array_equal(batch, np.sort(order[s * batchsize : (s + 1) * batchsize]))


def test_epochs_groups_and_seeds_have_orders_of_their_own():
    manifest = manifest_of([500, 500], 8)
    stream = Stream(manifest, StreamConf(10, seed=1))
    first, second = stream.run(0, 1000), stream.run(1000, 2000)
    other = Stream(manifest, StreamConf(10, seed=2)).run(0, 1000)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)
    # Well mixed: neighbours in the order are rarely neighbours in the file, and do not come in the files' order.
    assert np.mean(np.abs(np.diff(first)) == 1) < 0.05
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.2


def test_a_worker_reads_about_its_share_of_a_block():
    manifest = manifest_of([4096], 64)
    stream = Stream(manifest, StreamConf(64, seed=0))
    windows = [set(), set()]
    for step in range(8):  # one block: 8 windows of 64 samples
        for rank in range(2):
            windows[rank] |= set(stream.share(step, rank, 2)[1] // 64)
    assert max(map(len, windows)) <= 5


def test_unshuffled_streams_go_in_the_order_of_the_files_and_wrap_around():
    stream = Stream(manifest_of([5, 4], 2), StreamConf(4, shuffle=False))
    assert [stream.batch(step).tolist() for step in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 8]]
    assert stream.steps_per_epoch == 3


def test_a_batch_may_be_larger_than_an_epoch():
    stream = Stream(manifest_of([5], 2), StreamConf(12))
    np.testing.assert_array_equal(np.bincount(stream.batch(0))[:5].clip(2, 3), np.bincount(stream.batch(0)))
    assert stream.batch(0).size == 12


def test_random_skip_is_seeded_and_bounded():
    manifest = manifest_of([50], 5)
    skips = {Stream(manifest, StreamConf(4, seed, random_skip=3)).skip for seed in range(60)}
    assert skips == {0, 1, 2, 3}
    assert (
        Stream(manifest, StreamConf(4, 7, random_skip=3)).skip
        == Stream(manifest, StreamConf(4, 7, random_skip=3)).skip
    )


def test_order_is_fixed_for_ever():
    """A change of these numbers breaks the resuming of every checkpoint that users have: then raise plan.RULE."""
    assert permutation((1, 2, 3), 8).tolist() == [1, 3, 7, 5, 2, 0, 4, 6]
    assert Stream(manifest_of([20], 4), StreamConf(5, seed=9)).run(0, 10).tolist() == [
        5,
        10,
        3,
        8,
        1,
        2,
        12,
        0,
        17,
        15,
    ]


@pytest.mark.parametrize(
    "change", [{"batchsize": 5}, {"seed": 1}, {"ngroups": 2}, {"shuffle": False}, {"random_skip": 1}]
)
def test_fingerprint_names_everything_that_decides_the_order(change):
    manifest, conf = manifest_of([50], 5), StreamConf(4)
    fingerprint = Stream(manifest, conf).fingerprint
    assert Stream(manifest, conf).fingerprint == fingerprint
    assert Stream(manifest, replace(conf, **change)).fingerprint != fingerprint
    assert Stream(manifest_of([49], 5), conf).fingerprint != fingerprint


def test_too_few_windows_for_the_groups_is_an_error_with_a_way_out():
    with pytest.raises(
        ConfigError, match=r"cluster\.nworker_groups: 4 worker groups cannot share the 3 windows.*--window"
    ):
        Stream(manifest_of([6], 2), StreamConf(2, group=0, ngroups=4))


@pytest.mark.parametrize(
    ("conf", "key"), [({"batchsize": 0}, "batchsize"), ({"batchsize": 1, "random_skip": -1}, "skip")]
)
def test_impossible_settings_are_errors(conf, key):
    with pytest.raises(ConfigError, match=key):
        Stream(manifest_of([6], 2), StreamConf(**conf))


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
    assert endless.fingerprint != stream.fingerprint
