"""Columns of any numeric type and shape, from arrays through shards to mini-batches."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.shards import write_shards

from singa_dask.data import (
    Loader,
    Manifest,
    make_stream,
    numba_gather,
    resolve_normalisation,
    store_info,
)
from singa_dask.data.columns import DTYPES, Role, guess_channels, stored_dtype
from singa_dask.data.manifest_reader import read_description
from singa_dask.data.normalise import Normaliser
from singa_dask.data.schema import VERSION
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.job_pb2 import Phase, StoreProto

SHAPES = {
    "scalar": ((), "none", (1,)),
    "vector": ((5,), "none", (5,)),
    "plane": ((4, 6), "none", (4, 6, 1)),
    "image": ((4, 5, 2), "last", (4, 5, 2)),
    "field": ((2, 4, 5), "first", (4, 5, 2)),
    "volume": ((3, 4, 5), "none", (3, 4, 5, 1)),
    "volumes": ((2, 3, 4, 5), "first", (3, 4, 5, 2)),
}


def loaded(manifest, pool, phase=Phase.kTest, **fields):
    """All mini-batches of one pass in the order of the files: features and labels."""
    store = StoreProto(path=str(manifest.folder), batchsize=[manifest.total], **fields)
    stream = make_stream(store, manifest, seed=0, phase=phase)
    with Loader(stream, store, pool.submit) as loader:
        batch = loader.next()
        return batch.features.copy(), None if batch.labels is None else batch.labels.copy()


def in_net(x: np.ndarray, channels: str, shape: tuple[int, ...]) -> np.ndarray:
    x = np.moveaxis(x, 1, -1) if channels == "first" else x
    return x.reshape(len(x), *shape).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*(("field", dtype) for dtype in DTYPES), *((kind, "int16") for kind in SHAPES if kind != "field")],
)
def test_every_type_and_shape_reaches_the_net(tmp_path, pool, dtype, kind):
    shape, channels, net_shape = SHAPES[kind]
    x = np.random.default_rng(0).integers(0, 100, (20, *shape)).astype(dtype)
    manifest = write_shards(tmp_path / "out", x, None, 2, channels=channels, window=4)
    column = manifest.features
    assert (column.dtype, column.shape, column.net_shape) == (dtype, shape, net_shape)
    assert store_info(StoreProto(path=str(tmp_path / "out"), has_label=False)).sample_shape == net_shape
    features, labels = loaded(manifest, pool, has_label=False)
    assert labels is None
    np.testing.assert_array_equal(features, in_net(x, channels, net_shape))


@pytest.mark.parametrize("channels", ["first", "last"])
def test_normalisation_per_channel_is_that_of_numpy(tmp_path, pool, channels):
    x = np.random.default_rng(0).normal(5, 3, (40, 3, 4, 2) if channels == "last" else (40, 2, 3, 4))
    manifest = write_shards(tmp_path / "out", x.astype(np.float32), np.zeros(40, int), 3, channels=channels)
    store = StoreProto(normalise=True)
    resolve_normalisation(store, manifest.features, manifest.features, None)
    assert len(store.mean) == 2 and not store.normalise
    features, _ = loaded(manifest, pool, mean=store.mean, std=store.std)
    net = in_net(x, channels, (3, 4, 2)).astype(np.float64)
    expected = (net - net.mean((0, 1, 2))) / net.std((0, 1, 2))
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_normalisation_of_vectors_is_per_value_and_names_what_is_constant(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    x[:, 1] = 7
    manifest = write_shards(tmp_path / "out", x)
    store = StoreProto(normalise=True)
    resolve_normalisation(store, manifest.features, manifest.features, None)
    np.testing.assert_allclose(store.mean, x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(store.std, np.where(np.arange(3) == 1, 1, x.std(0)), rtol=1e-5)


def test_normalisation_excludes_numbers_of_the_job(tmp_path):
    column = write_shards(tmp_path / "out", np.ones((4, 2))).features
    with pytest.raises(ConfigError, match="normalise: excludes mean_value"):
        resolve_normalisation(StoreProto(normalise=True, mean_value=1), column, column, None)


@pytest.mark.parametrize("kind", ["scalar", "vector", "field"])
def test_targets_are_numbers_of_any_shape(tmp_path, pool, kind):
    shape, channels, net_shape = SHAPES[kind]
    x, y = np.arange(24.0).reshape(12, 2), np.random.default_rng(0).normal(size=(12, *shape))
    manifest = write_shards(tmp_path / "out", x, y, 2, window=4)
    assert manifest.targets is not None and manifest.targets.role is Role.TARGET
    store = StoreProto(normalise_target=True)
    resolve_normalisation(store, manifest.features, manifest.features, manifest.targets)
    _, labels = loaded(manifest, pool)
    np.testing.assert_allclose(labels, in_net(y, channels, net_shape), rtol=1e-6)
    _, scaled = loaded(manifest, pool, target_mean=store.target_mean, target_std=store.target_std)
    np.testing.assert_allclose(scaled.mean(), 0, atol=1e-6)
    axes = tuple(range(scaled.ndim - 1))
    np.testing.assert_allclose(scaled.std(axes), 1, rtol=1e-5)


@pytest.mark.parametrize("column", ["weight", "y"])
def test_a_layer_reads_the_columns_that_the_job_names(tmp_path, pool, column):
    x, y, weight = np.arange(10.0).reshape(5, 2), np.array([0, 1, 1, 0, 2]), np.linspace(1, 2, 5)
    manifest = write_shards(tmp_path / "out", x, y, weight=weight)
    features, labels = loaded(manifest, pool, column=column)
    np.testing.assert_allclose(features, {"weight": weight, "y": y}[column][:, np.newaxis], rtol=1e-6)
    np.testing.assert_array_equal(labels, y)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), "none"),
        ((7,), "none"),
        ((28, 28), "none"),
        ((3, 24, 24), "first"),
        ((24, 24, 3), "last"),
        ((16, 24, 24), "first"),
        ((24, 24, 16), "last"),
        ((1, 8, 8), "first"),
        ((2, 16, 16, 16), "first"),
        ((16, 16, 16, 5), "last"),
        ((3, 4, 4), "first"),
        ((3, 4, 2), None),
        ((8, 8, 8), None),
        ((10, 20, 30), None),
    ],
)
def test_the_shape_tells_where_the_channels_are_or_nothing_is_guessed(shape, expected):
    assert guess_channels(shape) == expected


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("bool", "uint8"),
        ("int8", "int16"),
        (">f4", "float32"),
        ("uint32", "int64"),
        ("f8", "float64"),
        *((other, None) for other in ("uint64", "complex64", "O", "U3", "M8[s]")),
    ],
)
def test_numbers_are_stored_without_a_loss(given, stored):
    assert stored_dtype(np.dtype(given)) == (None if stored is None else np.dtype(stored))


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (1, "by an older version of singa_dask. Write it again with `singa-dask shard`"),
        (VERSION - 1, "by an older version"),
        (VERSION + 1, "by a newer version of singa_dask. Install that one"),
    ],
)
def test_other_versions_are_refused(tmp_path, version, says):
    write_shards(tmp_path / "out", np.zeros((6, 4), np.float32), np.arange(6) % 3)
    path = tmp_path / "out" / "manifest.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "version": version}))
    with pytest.raises(DataError, match=rf"manifest\.json: was written {says}"):
        Manifest.load(tmp_path / "out")
    description = json.dumps({**fields, "version": version})
    with pytest.raises(DataError, match="the description of the data was written by a"):
        read_description(description)


@pytest.mark.parametrize("sequence", [0, 3])
def test_a_share_is_held_out_of_training(tmp_path, sequence):
    manifest = write_shards(tmp_path / "out", np.arange(200.0)[:, np.newaxis], None, 3, window=4)
    store = StoreProto(has_label=False, validation_share=0.2, sequence=sequence, batchsize=[8])

    def read(phase: int) -> set[int]:
        stream = make_stream(store, manifest, seed=phase, phase=phase)
        return {*np.concatenate([stream.batch(step).ravel() for step in range(-(-stream.samples // 8))]).tolist()}

    train, test = read(Phase.kTrain), read(Phase.kTest)
    assert test == read(Phase.kVal) and not train & test and 36 <= len(test) <= 44
    assert min(test) > max(train) if sequence else train | test == {*range(200)}


def test_a_share_leaves_something_to_train(tmp_path):
    manifest = write_shards(tmp_path / "out", np.ones((8, 2)), window=8)
    with pytest.raises(ConfigError, match=r"validation_share: holds out all 1 windows.*smaller --window"):
        make_stream(StoreProto(validation_share=0.5, batchsize=[2]), manifest, seed=0)


def test_half_precision_is_widened_exactly(tmp_path, pool):
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = bits[np.isfinite(bits)].reshape(-1, 32)
    manifest = write_shards(tmp_path / "out", x, None, 3)
    features, _ = loaded(manifest, pool, has_label=False)
    np.testing.assert_array_equal(features.view(np.uint32), x.astype(np.float32).view(np.uint32))


def test_large_targets_are_loaded_few_steps_at_a_time(tmp_path, pool):
    manifest = write_shards(tmp_path / "out", np.zeros((40, 2)), np.zeros((40, 64, 64)), window=8)
    store = StoreProto(path=str(tmp_path / "out"), batchsize=[40])
    with Loader(make_stream(store, manifest, seed=0), store, pool.submit) as loader:
        assert loader.chunk_steps == (16 << 20) // (40 * (64 * 64 + 2) * 4) == 25


# Kernels


D = 37
ARRAY = np.linspace(1, 9, D)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stored", [np.uint8, np.float32])
@pytest.mark.parametrize("mean", [None, 127.5, ARRAY])
@pytest.mark.parametrize("std", [None, 3.7, ARRAY])
def test_kernels_equal_the_numpy_reference(dtype, stored, mean, std):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, D)).astype(stored)
    x.flags.writeable = False  # as a memory map is
    rows = np.array([3, 3, 0, 19, 7])
    normaliser = Normaliser(mean, std, dtype)
    places = np.array([1, 0, 4, 5, 2])
    written = np.full((6, D), -1, dtype)
    normaliser.gather(x, rows, places, written)
    out = written[places]
    np.testing.assert_array_equal(out, normaliser.reference(x, rows))
    assert (written[3] == -1).all()
    expected = (x[rows].astype(np.float64) - (0 if mean is None else mean)) / (1 if std is None else std)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", ["gather", "subtract", "normalise", "subtract_D", "normalise_D"])
def test_the_interpreter_lock_is_released(kernel):
    assert getattr(numba_gather, kernel).targetoptions["nogil"]
