from __future__ import annotations

import h5py
import numpy as np
import pytest

from singa_dask.data import make_stream, statistics_path, store_info, write_shards
from singa_dask.data.normalise import make_normaliser
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.job_pb2 import Phase, StoreProto


def store(manifest, **fields) -> StoreProto:
    return StoreProto(**{"backend": "hdf5", "path": str(manifest.folder), "batchsize": [10], **fields})


@pytest.fixture
def flat(tmp_path):
    return write_shards(tmp_path / "flat", np.arange(240, dtype=np.float32).reshape(20, 12), None)


@pytest.mark.parametrize(
    ("given", "shape", "sample_shape"),
    [([], (2, 3, 4), (3, 4, 2)), ([2, 3, 4], (2, 3, 4), (3, 4, 2)), ([24], (24,), (24,))],
)
def test_image_shapes_are_channels_first_in_jobs_and_last_in_nets(images, given, shape, sample_shape):
    info = store_info(store(images, shape=given))
    assert (info.path, info.shape, info.sample_shape) == (images.folder, shape, sample_shape)


@pytest.mark.parametrize(
    ("given", "shape", "sample_shape"),
    [
        ([], (12,), (12,)),
        ([12], (12,), (12,)),
        ([3, 4], (3, 4), (3, 4, 1)),
        ([1, 2, 6], (1, 2, 6), (2, 6, 1)),
    ],
)
def test_flat_samples_become_images_of_one_channel(flat, given, shape, sample_shape):
    info = store_info(store(flat, shape=given, has_label=False))
    assert (info.shape, info.sample_shape) == (shape, sample_shape)


@pytest.mark.parametrize("given", [[3, 4, 2], [25], [24, 1], [2, 3, 2, 2], [2, 4, 3]])
def test_other_shapes_are_errors_that_give_the_right_one(images, given):
    with pytest.raises(ConfigError, match=r"store_conf\.shape.*write shape: 2 shape: 3 shape: 4"):
        store_info(store(images, shape=given))


def test_whole_sequences_are_told_to_be_records(tmp_path):
    x = np.zeros((6, 12, 5), np.float32)
    manifest = write_shards(tmp_path / "whole", x, np.zeros(6, np.int64))
    with pytest.raises(ConfigError, match=r"x\.reshape\(-1, 5\)\. sequence joins 12"):
        store_info(store(manifest, shape=[5], sequence=12))


def test_flat_samples_of_several_channels_are_ambiguous(flat):
    with pytest.raises(ConfigError, match=r"store_conf\.shape"):
        store_info(store(flat, shape=[3, 2, 2], has_label=False))


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (
            {"backend": "kvfile", "path": "data/train_data.bin"},
            r"^store_conf\.backend.*`singa-dask shard kvfile --source data/train_data.bin --out shards/train_data`",
        ),
        ({"backend": "textfile"}, r"SINGA's stores.*singa-dask shard"),
        ({"backend": "hdf"}, "Did you mean hdf5"),
        ({"path": ""}, r"^store_conf\.path: is missing"),
        ({"encoded": True}, "encoded"),
    ],
)
def test_faults_of_the_job_name_the_key_and_the_way_out(images, fields, fault):
    with pytest.raises(ConfigError, match=fault):
        store_info(store(images, **fields))


def test_labels_that_are_not_there_are_an_error(flat):
    with pytest.raises(ConfigError, match=r"has_label: .* has no labels.*Set has_label: false"):
        store_info(store(flat))


def test_a_bad_shard_is_found_when_the_job_is_planned(images):
    path = images.folder / images.shards[2].file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"shard-00002\.h5"):
        store_info(store(images))


def test_notes_of_a_data_set_are_logged(tmp_path, caplog):
    manifest = write_shards(tmp_path / "out", np.ones((4, 2)), None, notes=["half of it is missing"])
    store_info(store(manifest, has_label=False))
    assert "half of it is missing" in caplog.text


def normalised(store: StoreProto, manifest, x: np.ndarray) -> np.ndarray:
    return (
        make_normaliser(store, manifest.features).reference(x.reshape(len(x), -1), np.arange(len(x))).reshape(x.shape)
    )


def test_mean_and_std_come_from_the_files_of_the_shards(images, image_arrays):
    x = image_arrays[0]
    folder = str(images.folder)
    proto = store(images, mean_file=folder, std_file=f"{folder}/statistics.h5")
    expected = (x - x.mean(0)) / x.std(0)
    np.testing.assert_allclose(normalised(proto, images, x), expected, rtol=1e-4, atol=1e-5)


def test_a_folder_of_shards_stands_for_its_statistics(images, tmp_path):
    expected = images.folder / "statistics.h5"
    assert statistics_path(str(images.folder)) == statistics_path(str(expected)) == expected
    assert statistics_path(str(tmp_path / "mean.h5")) == tmp_path / "mean.h5"
    (tmp_path / "mean.bin").write_bytes(b"a mean image of SINGA")
    with pytest.raises(DataError, match=r"mean\.bin: is not an HDF5 file\. Name a folder of shards"):
        statistics_path(str(tmp_path / "mean.bin"))


def test_a_named_data_set_stands_for_its_statistics_too(tmp_path, monkeypatch):
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path / "cache"))
    path = statistics_path("dataset:digits/train")
    assert path.is_file()
    assert statistics_path("dataset:digits/train/statistics.h5") == path


@pytest.mark.parametrize("value", [np.array([3.0, 5.0]), np.float32(4), np.full((3, 4, 2), 7)])
def test_mean_files_of_users_may_hold_a_value_per_channel_or_one(images, image_arrays, tmp_path, value):
    with h5py.File(tmp_path / "mean.h5", "w") as file:
        file["mean"] = value
    proto = store(images, mean_file=str(tmp_path / "mean.h5"))
    x = image_arrays[0]
    np.testing.assert_allclose(normalised(proto, images, x), x - value.astype(np.float32))


@pytest.mark.parametrize(
    ("value", "fault"),
    [(np.ones((2, 3, 4)), "shape"), (np.zeros((3, 4, 2)), "std of 0"), (np.full(2, np.nan), "not finite")],
)
def test_bad_std_files_are_errors(images, tmp_path, value, fault):
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["std"] = value
    with pytest.raises(DataError, match=rf"s\.h5.*{fault}"):
        make_normaliser(store(images, std_file=str(tmp_path / "s.h5")), images.features)


def test_mean_files_are_no_way_out_of_the_folder_either(images, tmp_path):
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["mean"] = h5py.ExternalLink("other.h5", "mean")
    with pytest.raises(DataError, match="external link"):
        make_normaliser(store(images, mean_file=str(tmp_path / "m.h5")), images.features)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"mean_file": "x", "mean_value": 1}, "mean_file: excludes mean_value"),
        ({"std_value": 0}, r"std_value: must be finite, and not 0 for std\. Received: 0"),
        ({"mean_value": float("inf")}, "mean_value"),
    ],
)
def test_contradictory_normalisation_is_an_error(images, fields, fault):
    with pytest.raises(ConfigError, match=fault):
        make_normaliser(store(images, **fields), images.features)


def test_training_is_shuffled_and_testing_is_not_unless_the_job_says_so(images):
    def shuffled(phase: int, **fields: bool) -> bool:
        return make_stream(store(images, **fields), images, seed=0, phase=phase).conf.shuffle

    assert shuffled(Phase.kTrain)
    assert not shuffled(Phase.kTest)
    assert not shuffled(Phase.kVal)
    assert not shuffled(Phase.kTrain, shuffle=False)
    assert shuffled(Phase.kTest, shuffle=True)


def test_sequences_are_never_shuffled(images):
    for phase in (Phase.kTrain, Phase.kTest):
        stream = make_stream(store(images, sequence=5, lookahead=2), images, seed=0, phase=phase)
        assert (stream.conf.shuffle, stream.row_records) == (False, 7)
        assert stream.batch(0)[:2].tolist() == [list(range(7)), list(range(20, 27))]
    with pytest.raises(ConfigError, match=r"shuffle: sequences cannot be shuffled.*Leave out shuffle or sequence"):
        make_stream(store(images, sequence=5, shuffle=True), images, seed=0)
    with pytest.raises(ConfigError, match=r"sequence: must be at least 1"):
        make_stream(store(images, lookahead=1, shuffle=False), images, seed=0)


def test_each_group_may_have_a_batch_size_of_its_own(images):
    sizes = [
        make_stream(store(images, batchsize=[4, 6]), images, seed=0, group=g, ngroups=2).batchsize for g in (0, 1)
    ]
    assert sizes == [4, 6]
    with pytest.raises(ConfigError, match=r"batchsize: must be given once, or once per worker group \(3\)"):
        make_stream(store(images, batchsize=[4, 6]), images, seed=0, ngroups=3)
