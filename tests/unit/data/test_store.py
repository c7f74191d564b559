from __future__ import annotations

import h5py
import numpy as np
import pytest
from support.shards import write_shards
from support.sources import write_file

from singa_dask import shard
from singa_dask.data import make_stream, statistics_path, store_info
from singa_dask.data.normalise import make_normaliser
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.job_pb2 import Phase, StoreProto


def store(manifest, **fields) -> StoreProto:
    return StoreProto(**{"backend": "hdf5", "path": str(manifest.folder), "batchsize": [10], **fields})


@pytest.fixture
def flat(tmp_path):
    return write_shards(tmp_path / "flat", np.arange(240, dtype=np.float32).reshape(20, 12), None)


@pytest.fixture
def sequences(tmp_path):
    return write_shards(tmp_path / "whole", np.zeros((6, 12, 5), np.float32), np.zeros(6, np.int64))


@pytest.mark.parametrize(
    ("data", "given", "shape", "sample_shape"),
    [
        ("images", [], (2, 3, 4), (3, 4, 2)),
        ("images", [2, 3, 4], (2, 3, 4), (3, 4, 2)),
        ("images", [24], (24,), (24,)),
        ("flat", [], (12,), (12,)),
        ("flat", [12], (12,), (12,)),
        ("flat", [3, 4], (3, 4), (3, 4, 1)),
        ("flat", [1, 2, 6], (1, 2, 6), (2, 6, 1)),
    ],
)
def test_shapes_are_channels_first_in_jobs_and_last_in_nets(request, data, given, shape, sample_shape):
    manifest = request.getfixturevalue(data)
    info = store_info(store(manifest, shape=given, has_label=data == "images"))
    assert (info.path, info.shape, info.sample_shape) == (manifest.folder, shape, sample_shape)


@pytest.mark.parametrize(
    ("data", "fields", "fault"),
    [
        *(
            ("images", {"shape": shape}, r"store_conf\.shape.*write shape: 2 shape: 3 shape: 4")
            for shape in ([3, 4, 2], [25], [24, 1], [2, 3, 2, 2], [2, 4, 3])
        ),
        ("sequences", {"shape": [5], "sequence": 12}, r"x\.reshape\(-1, 5\)\. sequence joins 12"),
        ("flat", {"shape": [3, 2, 2], "has_label": False}, r"store_conf\.shape"),
        (
            "images",
            {"backend": "kvfile", "path": "data/train_data.bin"},
            r"^store_conf\.backend.*`singa-dask shard kvfile --source data/train_data.bin --out shards/train_data`",
        ),
        ("images", {"backend": "textfile"}, r"SINGA's stores.*singa-dask shard"),
        ("images", {"backend": "hdf"}, "Did you mean hdf5"),
        ("images", {"path": ""}, r"^store_conf\.path: is missing"),
        ("images", {"encoded": True}, "encoded"),
        ("images", {"column": "xx"}, r"store_conf\.column.*no such column.*xx.*Did you mean x"),
        ("images", {"label": "yy"}, r"store_conf\.label.*no such column"),
        ("flat", {}, r"has_label: .* has no labels.*Set has_label: false"),
    ],
)
def test_faults_of_the_job_name_the_key_and_the_way_out(request, data, fields, fault):
    with pytest.raises(ConfigError, match=fault):
        store_info(store(request.getfixturevalue(data), **fields))


def test_of_several_columns_of_features_a_layer_names_one(tmp_path):
    (made,) = shard({"a": np.ones((4, 2)), "b": np.ones((4, 3))}, np.arange(4.0), tmp_path / "two").values()
    with pytest.raises(ConfigError, match=r"store_conf\.column: is missing.* Name one of them .*: a, b\."):
        store_info(store(made))
    assert store_info(store(made, column="b")).shape == (3,)


def test_a_bad_shard_is_found_when_the_job_is_planned(images):
    path = images.folder / images.shards[2].file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"shard-00002\.h5"):
        store_info(store(images))


def test_notes_of_a_data_set_are_logged(tmp_path, caplog):
    manifest = write_shards(tmp_path / "out", np.ones((4, 2)))
    caplog.clear()
    store_info(store(manifest, has_label=False))
    assert f"{tmp_path}: column 'x' is constant in the training samples" in caplog.text


def normalised(manifest, x: np.ndarray, **fields) -> np.ndarray:
    normaliser = make_normaliser(store(manifest, **fields), manifest.features)
    return normaliser.reference(x.reshape(len(x), -1), np.arange(len(x))).reshape(x.shape)


def test_mean_and_std_come_from_the_files_of_the_shards(images, image_arrays):
    x, folder = image_arrays[0], str(images.folder)
    found = normalised(images, x, mean_file=folder, std_file=f"{folder}/statistics.h5")
    np.testing.assert_allclose(found, (x - x.mean(0)) / x.std(0), rtol=1e-4, atol=1e-5)


def test_a_folder_of_shards_and_a_named_data_set_stand_for_their_statistics(images, tmp_path, monkeypatch):
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path / "cache"))
    expected = images.folder / "statistics.h5"
    assert statistics_path(str(images.folder)) == statistics_path(str(expected)) == expected
    named = statistics_path("dataset:digits/train")
    assert named.is_file() and statistics_path("dataset:digits/train/statistics.h5") == named
    assert statistics_path(str(tmp_path / "mean.h5")) == tmp_path / "mean.h5"
    (tmp_path / "mean.bin").write_bytes(b"a mean image of SINGA")
    with pytest.raises(DataError, match=r"mean\.bin: is not an HDF5 file\. Name a folder of shards"):
        statistics_path(str(tmp_path / "mean.bin"))


@pytest.mark.parametrize("value", [np.array([3.0, 5.0]), np.float32(4), np.full((3, 4, 2), 7)])
def test_mean_files_of_users_may_hold_a_value_per_channel_or_one(images, image_arrays, tmp_path, value):
    path = write_file("hdf5", tmp_path / "mean.h5", {"mean": value})
    x = image_arrays[0]
    np.testing.assert_allclose(normalised(images, x, mean_file=str(path)), x - value.astype(np.float32))


@pytest.mark.parametrize(
    ("value", "fields", "error", "fault"),
    [
        (np.ones((2, 3, 4)), {}, DataError, r"s\.h5.*shape"),
        (np.zeros((3, 4, 2)), {}, DataError, r"s\.h5.*std of 0"),
        (np.full(2, np.nan), {}, DataError, r"s\.h5.*not finite"),
        (h5py.ExternalLink("other.h5", "std"), {}, DataError, "external link"),
        (1.0, {"std_value": 1}, ConfigError, "std_file: excludes std_value"),
        (None, {"std_value": 0}, ConfigError, r"std_value: must be finite, and not 0 for std\. Received: 0"),
        (None, {"mean_value": float("inf")}, ConfigError, "mean_value"),
    ],
)
def test_bad_and_contradictory_normalisation_is_an_error(images, tmp_path, value, fields, error, fault):
    if value is not None:
        fields = {**fields, "std_file": str(write_file("hdf5", tmp_path / "s.h5", {"std": value}))}
    with pytest.raises(error, match=fault):
        make_normaliser(store(images, **fields), images.features)


@pytest.mark.parametrize(
    ("phase", "fields", "shuffled"),
    [
        (Phase.kTrain, {}, True),
        (Phase.kTest, {}, False),
        (Phase.kVal, {}, False),
        (Phase.kTrain, {"shuffle": False}, False),
        (Phase.kTest, {"shuffle": True}, True),
        (Phase.kTrain, {"sequence": 5}, False),
    ],
)
def test_training_is_shuffled_and_testing_is_not_unless_the_job_says_so(images, phase, fields, shuffled):
    assert make_stream(store(images, **fields), images, seed=0, phase=phase).conf.shuffle == shuffled


def test_the_stream_reads_the_sequences_that_the_job_describes(images):
    stream = make_stream(store(images, sequence=5, lookahead=2), images, seed=0)
    assert stream.row_records == 7
    assert stream.batch(0)[:2].tolist() == [list(range(7)), list(range(20, 27))]
    with pytest.raises(ConfigError, match=r"sequence: must be at least 1"):
        make_stream(store(images, lookahead=1, shuffle=False), images, seed=0)


def test_each_group_may_have_a_batch_size_of_its_own(images):
    job = store(images, batchsize=[4, 6])
    assert [make_stream(job, images, seed=0, group=g, ngroups=2).batchsize for g in (0, 1)] == [4, 6]
    with pytest.raises(ConfigError, match=r"batchsize: must be given once, or once per worker group \(3\)"):
        make_stream(job, images, seed=0, ngroups=3)
