"""Mini-batches as they are loaded, and the memory that they are loaded into."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.shards import write_shards

from singa_dask.data import Loader, SequenceStream, Stream, StreamConf
from singa_dask.data import loader as loader_module
from singa_dask.data.loader import BufferPool
from singa_dask.data.store import AnyStream, stream_of
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.job_pb2 import StoreProto

STORE = StoreProto(mean_value=127.5, std_value=3)
SEQUENCES = StreamConf(5, shuffle=False, random_skip=9, sequence=7)


def store_of(conf: StreamConf) -> StoreProto:
    return StoreProto(mean_value=127.5, std_value=3, sequence=conf.sequence, lookahead=conf.lookahead)


def expected(stream: AnyStream, arrays, step: int) -> tuple[np.ndarray, np.ndarray]:
    rows = stream.batch(step)
    return (arrays[0][rows].astype(np.float32) - 127.5) / np.float32(3), arrays[1][rows]


class Asked(list):
    """The (first step, steps) that were submitted. Each run is loaded at once."""

    def submit(self, function, *arguments):
        self.append(arguments[-2:])
        future = ThreadFuture()
        future.set_result(function(*arguments))
        return future


@pytest.mark.parametrize("conf", [StreamConf(10, seed=4), SEQUENCES, replace(SEQUENCES, lookahead=2)])
@pytest.mark.parametrize("nranks", [1, 2, 3])
@pytest.mark.parametrize("start", [0, 3])
def test_all_workers_together_get_the_batch_of_the_plan(images, image_arrays, pool, conf, nranks, start):
    stream = stream_of(images, conf)
    loaders = [Loader(stream, store_of(conf), pool.submit, rank, nranks, start_step=start) for rank in range(nranks)]
    for step in range(start, 60):  # several times around, several runs
        batches = [loader.next() for loader in loaders]
        features, labels = expected(stream, image_arrays, step)
        np.testing.assert_array_equal(np.concatenate([b.features for b in batches]), features)
        np.testing.assert_array_equal(np.concatenate([b.labels for b in batches]), labels)
        assert [b.first_row for b in batches] == [conf.batchsize * rank // nranks for rank in range(nranks)]
        assert {(b.total_rows, b.features.dtype.name) for b in batches} == {(conf.batchsize, "float32")}
    for loader in loaders:
        loader.close()


def test_batches_are_views_of_what_was_loaded(images, pool):
    with Loader(Stream(images, StreamConf(4)), STORE, pool.submit) as loader:
        first, second = loader.next(), loader.next()
        assert first.features.base is second.features.base is not None


def test_a_batch_that_is_kept_stays_as_it_was(images, image_arrays, pool):
    """The memory of finished runs is used again, but not while anyone looks at it."""
    stream = Stream(images, StreamConf(10, seed=4))
    with Loader(stream, STORE, pool.submit) as loader:
        kept = [(step, batch) for step in range(120) if (batch := loader.next()) and step % 7 == 0]
        for step, batch in kept:
            np.testing.assert_array_equal(batch.features, expected(stream, image_arrays, step)[0])


@pytest.mark.parametrize(("shape", "sample"), [([], (3, 4, 2)), ([24], (24,)), ([2, 3, 4], (3, 4, 2))])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batches_have_the_nets_shape_and_type(images, pool, shape, sample, dtype):
    store = StoreProto(shape=shape)
    with Loader(Stream(images, StreamConf(5)), store, pool.submit, dtype=dtype) as loader:
        batch = loader.next()
    assert batch.features.shape == (5, *sample)
    assert batch.features.dtype == dtype
    assert batch.labels.dtype == np.int64


def test_sequences_of_single_values_have_no_axis_for_them(tmp_path, pool):
    values = np.arange(100, dtype=np.uint8)[:, np.newaxis]
    manifest = write_shards(tmp_path / "values", values, None, 3, window=16)
    stream = SequenceStream(manifest, StreamConf(4, shuffle=False, sequence=6, lookahead=1))
    with Loader(stream, StoreProto(has_label=False, sequence=6, lookahead=1), pool.submit) as loader:
        first, second = loader.next(), loader.next()
    assert first.labels is None
    np.testing.assert_array_equal(first.features, [[25 * b + t for t in range(7)] for b in range(4)])
    np.testing.assert_array_equal(second.features, first.features + 6)


@pytest.mark.parametrize(
    ("conf", "limits", "steps"),
    [
        (StreamConf(5), {"MAX_CHUNK_NBYTES": 3 * 5 * 24 * 4}, 3),
        (replace(SEQUENCES, lookahead=1), {"MAX_CHUNK_NBYTES": 3 * 5 * 8 * 24 * 4}, 3),
        (replace(SEQUENCES, lookahead=1), {"MIN_CHUNK_STEPS": 1}, 64 // (5 * 8)),
    ],
)
def test_large_rows_are_loaded_few_steps_at_a_time(images, pool, monkeypatch, conf, limits, steps):
    for name, value in limits.items():
        monkeypatch.setattr(loader_module, name, value)
    with Loader(stream_of(images, conf), store_of(conf), pool.submit) as loader:
        assert loader.chunk_steps == steps


def test_nothing_is_loaded_beyond_the_stop_step(images):
    asked = Asked()
    loader = Loader(Stream(images, StreamConf(5)), STORE, asked.submit, start_step=3, stop_step=38)
    for _ in range(35):
        loader.next()
    assert asked == [(3, 32), (35, 3)]
    with pytest.raises(IndexError, match="before step 38"):
        loader.next()


def test_only_so_many_runs_are_loaded_ahead(images):
    asked = Asked()
    loader = Loader(Stream(images, StreamConf(5)), STORE, asked.submit, ahead=2)
    assert asked == [(0, 32), (32, 32)]
    loader.next()
    assert asked == [(0, 32), (32, 32), (64, 32)]
    for _ in range(loader.chunk_steps):
        loader.next()
    assert asked[3:] == [(96, 32)]


def test_a_damaged_window_is_an_error_at_the_step_that_needs_it(images, pool):
    path = images.folder / images.shards[0].file
    data = bytearray(path.read_bytes())
    data[-40] ^= 1  # inside the labels, which come last
    path.write_bytes(data)
    loader = Loader(Stream(images, StreamConf(67, shuffle=False)), STORE, pool.submit)
    with pytest.raises(DataError, match=r"shard-00000\.h5: window \d+ .* is damaged"), loader:
        loader.next()


def test_a_bad_shard_is_found_before_the_first_step_even_if_it_is_needed_late(images, pool):
    (images.folder / images.shards[2].file).unlink()
    loader = Loader(Stream(images, StreamConf(5, shuffle=False)), STORE, pool.submit)
    with pytest.raises(DataError, match=r"shard-00002\.h5: does not exist"), loader:
        loader.next()


def test_another_version_of_the_data_set_is_an_error(images, pool):
    path = images.folder / "manifest.json"
    stream = Stream(images, StreamConf(5))
    path.write_text(path.read_text().replace('"notes": []', '"notes": ["other"]'))
    loader = Loader(stream, STORE, pool.submit)
    with pytest.raises(DataError, match="differs from the version of the data set"), loader:
        loader.next()


def test_loading_that_hangs_is_an_error_after_the_timeout(images):
    futures = []

    def submit(*_):
        futures.append(ThreadFuture())
        return futures[-1]

    loader = Loader(Stream(images, StreamConf(5)), STORE, submit, timeout_s=0.2)
    with pytest.raises(DataError, match=r"steps 0 to 31 were not loaded within 0\.2 s"):
        loader.next()
    assert loader.wait_s >= 0.2
    loader.close()
    assert all(future.cancelled() for future in futures)
    with pytest.raises(DataError, match="closed"):
        loader.next()


def test_fewer_rows_than_workers_is_an_error(images, pool):
    with pytest.raises(ConfigError, match="a mini-batch of 2 rows cannot be shared by 3 workers"):
        Loader(Stream(images, StreamConf(2)), STORE, pool.submit, 0, 3)


def test_a_process_maps_each_shard_once_as_long_as_a_loader_is_open(images, pool):
    def mapped():
        return sum(str(images.folder) in line for line in Path("/proc/self/maps").read_text().splitlines())

    loaders = [Loader(Stream(images, StreamConf(40, seed=seed)), STORE, pool.submit) for seed in range(3)]
    for loader in loaders:
        loader.next()
        assert mapped() == len(images.shards)
    for loader in loaders:
        loader.close()
    while mapped():  # by tasks that had begun
        time.sleep(0.01)


def cached() -> int:
    return loader_module._shard_folder.cache_info().currsize


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_opens_the_shards_itself(images, pool):
    with Loader(Stream(images, StreamConf(5)), STORE, pool.submit) as loader:
        loader.next()
        assert cached() > 0
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:
            assert child.submit(cached).result(20) == 0


@pytest.mark.parametrize(
    ("total", "batchsize", "nranks"), [(47, 10, 3), (40, 10, 2), (1, 5, 3), (13, 6, 5), (7, 7, 1)]
)
@pytest.mark.parametrize("channels", ["last", "first"])
def test_one_pass_ends_with_a_short_mini_batch_of_which_some_workers_have_no_row(
    tmp_path, pool, total, batchsize, nranks, channels
):
    x = np.arange(total * 12, dtype=np.float32).reshape(total, 3, 2, 2)
    manifest = write_shards(tmp_path / "x", x, np.arange(total), window=4, channels=channels)
    stream = Stream(manifest, StreamConf(batchsize, shuffle=False, once=True))
    loaders = [Loader(stream, StoreProto(), pool.submit, rank, nranks) for rank in range(nranks)]
    in_net = x if channels == "last" else np.moveaxis(x, 1, -1)
    for first in range(0, total, batchsize):
        batches = [loader.next() for loader in loaders]
        rows = range(first, min(first + batchsize, total))
        assert [row for batch in batches for row in batch.labels] == [*rows]
        np.testing.assert_array_equal(np.concatenate([batch.features for batch in batches]), in_net[rows])
        sizes = [len(batch.labels) for batch in batches]
        assert {batch.total_rows for batch in batches} == {len(rows)}
        assert [batch.first_row for batch in batches] == [*np.cumsum([0, *sizes])[:-1]]
    for loader in loaders:
        with pytest.raises(IndexError, match="asked to stop"):
            loader.next()
        loader.close()


# Memory


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture
def buffers() -> BufferPool:
    return BufferPool(10_000)


def test_memory_is_used_again_once_the_last_view_is_gone(buffers):
    array = buffers.empty((10, 20), np.float32)
    assert array.flags.writeable
    assert (array.shape, array.dtype) == ((10, 20), np.float32)
    where = address(array)
    view = array.reshape(5, 2, 20)[2:, 1]
    del array
    assert sum(memory.nbytes for memory in buffers._free) == 0
    other = buffers.empty((10, 20), np.float32)
    assert address(other) != where
    del view
    assert sum(memory.nbytes for memory in buffers._free) == 800
    assert address(buffers.empty((100,), np.float64)) == where


def test_a_living_view_is_never_overwritten(buffers):
    views = []
    for i in range(20):
        array = buffers.empty((50,), np.int64)
        array[:] = i
        views = [*views[i % 3 == 1 :], array[10:20]]
    assert [int(view[0]) for view in views] == [int(view.max()) for view in views] == list(range(7, 20))


def test_no_more_is_kept_than_was_asked_for(buffers):
    arrays = [buffers.empty((3000,), np.uint8) for _ in range(6)]
    arrays.clear()
    assert sum(memory.nbytes for memory in buffers._free) == 9000


def test_memory_far_too_large_is_not_used(buffers):
    buffers.empty((9000,), np.uint8)
    small = buffers.empty((10,), np.uint8)
    assert small.nbytes == 10
    assert sum(memory.nbytes for memory in buffers._free) == 9000


def test_arrays_travel_like_any_other(buffers):
    array = buffers.empty((4,), np.float32)
    array[:] = 7
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)), array)


def test_threads_may_share_a_pool(buffers):
    def overwritten(number: int) -> bool:
        for _ in range(300):
            array = buffers.empty((100,), np.int64)
            array[:] = number
            if (array != number).any():
                return True
        return False

    with ThreadPoolExecutor(4) as threads:
        assert not any(threads.map(overwritten, range(4)))
