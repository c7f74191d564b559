from __future__ import annotations

from collections.abc import Callable

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
from support.shards import write_shards

from singa_dask import load, shard
from singa_dask.data import Manifest, ShardFolder, shard_files
from singa_dask.data.ingest import blocks
from singa_dask.data.ingest.layout import choose_window
from singa_dask.errors import ConfigError, DataError


def test_statistics_are_those_of_the_whole_set(images, image_arrays):
    x = image_arrays[0].astype(np.float64)
    np.testing.assert_allclose(images.features.mean, x.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(images.features.std, x.std((0, 1, 2)), rtol=1e-12)
    with h5py.File(images.folder / "statistics.h5") as file:
        np.testing.assert_allclose(file["mean"], x.mean(0), rtol=1e-6)
        np.testing.assert_allclose(file["std"], x.std(0), rtol=1e-6)


WRITERS = {
    "NumPy": lambda x, y, w, out: write_shards(out, x, y, weight=w),
    "Dask": lambda x, y, w, out: shard(da.from_array(x, chunks=(7, 3)), y, out, sample_weight=w, targets=True)[""],
    "pandas": lambda x, y, w, out: shard(pd.DataFrame(x), y, out, sample_weight=w, targets=True)[""],
    "HDF5 in place": lambda x, y, w, out: in_place(x, y, w, out),
}


def in_place(x, y, weight, out):
    with h5py.File(out.with_suffix(".h5"), "w") as file:
        file["x"], file["y"], file["w"] = x, y, weight
    names = {"x": "x", "target": "y", "weight": "w"}
    return shard_files("hdf5", out, source=out.with_suffix(".h5"), in_place=True, **names)[""]


@pytest.mark.parametrize("writer", WRITERS)
def test_statistics_are_those_of_samples_that_occur_as_often_as_they_weigh(tmp_path, writer):
    rng = np.random.default_rng(3)
    x, y, weight = rng.normal(3, 2, (40, 3)), rng.normal(size=40), rng.integers(0, 4, 40).astype(np.float32)
    x[weight == 0], y[weight == 0] = 1e9, -1e9
    made = WRITERS[writer](x, y, weight, tmp_path / "out")
    for column, values in ((made.features, x), (made.targets, y)):
        repeated = np.repeat(values, weight.astype(int), axis=0)
        np.testing.assert_allclose(column.mean, np.atleast_1d(repeated.mean(0)), rtol=1e-6)
        np.testing.assert_allclose(column.std, np.atleast_1d(repeated.std(0)), rtol=1e-6)
    with pytest.raises(DataError, match="the weights of all samples are 0"):
        WRITERS[writer](x, y, 0 * weight, tmp_path / "none")


def test_a_position_that_never_changes_gets_std_1(tmp_path):
    x = np.ones((10, 3), np.float32)
    x[:, 1] = np.arange(10) / 20
    write_shards(tmp_path / "out", x, None)
    with h5py.File(tmp_path / "out" / "statistics.h5") as file:
        np.testing.assert_allclose(file["std"], [1, np.arange(10).std() / 20, 1], rtol=1e-6)


def test_a_shuffle_seed_moves_samples_and_their_labels_together(tmp_path, image_arrays):
    x, y = load(write_shards(tmp_path / "out", *image_arrays, 2, classes=7, shuffle_seed=3).folder)
    numbers = x[:, 0, 0, 0]
    assert not np.array_equal(numbers, np.arange(len(x)))
    np.testing.assert_array_equal(np.sort(numbers), np.arange(len(x)))
    np.testing.assert_array_equal(y, numbers % 7)


def test_writing_twice_gives_the_same_bytes(tmp_path, image_arrays):
    first, second = (write_shards(tmp_path / name, *image_arrays, 2) for name in "ab")
    assert first.digest == second.digest
    for one in first.shards:
        assert (first.folder / one.file).read_bytes() == (second.folder / one.file).read_bytes()


@pytest.mark.parametrize(
    ("total", "nbytes", "expected"),
    [
        (60_000, 784, 256),
        (1_438, 64, 16),
        (10, 4, 1),
        (50_000, 3072, 256),
        (1_281_167, 150_528, 16),
        (100, 1 << 28, 1),
    ],
)
def test_windows_are_small_enough_to_shuffle(total, nbytes, expected):
    assert choose_window(total, nbytes) == expected


@pytest.mark.parametrize(
    ("features", "labels", "options", "fault"),
    [
        (np.zeros((4, 2, 2, 2, 2, 2)), None, {}, "at most 4 axes are possible"),
        (np.zeros((0, 2)), None, {}, "holds no samples"),
        (np.zeros((4, 5, 6, 7)), None, {}, "do not tell which axis.*channels"),
        (np.zeros((4, 2), "S1"), None, {}, "'x': holds .S1, but arrays must hold numbers"),
        (np.full((4, 2), np.nan), None, {}, "'x': 8 value.* NaN, the first in sample 0"),
        (np.full((4, 2), 1e300), None, {}, "beyond float32"),
        (np.zeros((4, 2)), np.zeros(3, int), {}, "X has 4 samples, but y has 3"),
        (np.zeros((4, 2)), None, {"weight": np.ones(5)}, "X has 4 samples, but sample_weight has 5"),
        (np.zeros((4, 2)), None, {"weight": np.array([1.0, -1, 1, 1])}, "sample 1 has -1"),
        (np.zeros((4, 2)), np.arange(4), {"classes": list("abc")}, "y.*labels must be 0 to 2 for 3 classes"),
        (np.zeros((4, 2)), np.array([0, 1, 2, -1]), {"classes": list("abcd")}, "y.*labels must be 0 to 3"),
        (np.zeros((4, 2)), None, {"nshards": 5}, "nshards: must be from 1 to 4 for 4 samples. Received: 5"),
        (np.zeros((4, 2)), None, {"nshards": 0}, "nshards"),
        (np.zeros((4, 2)), None, {"window": 0}, "window"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_bad_input_is_an_error_and_leaves_nothing_behind(tmp_path, features, labels, options, fault):
    with pytest.raises((ConfigError, DataError), match=fault):
        write_shards(tmp_path / "out", features, labels, **options)
    assert list(tmp_path.iterdir()) == []


def test_only_folders_of_shards_are_overwritten_and_if_asked_for(tmp_path, image_arrays):
    out = tmp_path / "project" / "data"
    first = write_shards(out, *image_arrays)
    with pytest.raises(DataError, match="exists already"):
        write_shards(out, *image_arrays, 2)
    assert write_shards(out, *image_arrays, 2, overwrite=True).digest != first.digest
    assert [p.name for p in out.parent.iterdir()] == ["data"]
    for thesis in (out.parent / "thesis.tex", out / "notes.txt"):
        thesis.write_text("years of work")
        with pytest.raises(DataError, match="not a folder of shards and is not overwritten"):
            write_shards(thesis.parent, *image_arrays, overwrite=True)
    assert Manifest.load(out).total == 203


class Decoding:
    """Samples that are decoded when they are read, in blocks of one. at: what happens at each row."""

    shape, dtype = (8, blocks.BLOCK_NBYTES // 4), np.dtype(np.float32)

    def __init__(self, at: Callable[[int], None]) -> None:
        self.at = at

    def __getitem__(self, rows: slice) -> np.ndarray:
        self.at(rows.start)
        return np.zeros((rows.stop - rows.start, 2), np.float32)


def test_a_failure_in_the_middle_leaves_the_old_data_set(tmp_path, image_arrays):
    def fail(row: int) -> None:
        if row > 2:
            raise DataError("cannot decode")

    first = write_shards(tmp_path / "out", *image_arrays)
    with pytest.raises(DataError, match="cannot decode"):
        write_shards(tmp_path / "out", Decoding(fail), overwrite=True)
    ShardFolder(first).verify()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_target_that_appears_meanwhile_is_kept(tmp_path):
    out = tmp_path / "out" / "theirs"
    with pytest.raises(DataError, match="exists already"):
        write_shards(out.parent, Decoding(lambda row: out.mkdir(parents=True, exist_ok=True)))
    assert [p.name for p in out.parent.iterdir()] == ["theirs"] and len(list(tmp_path.iterdir())) == 1


def test_values_that_float32_cannot_tell_apart_are_noted(tmp_path):
    x = np.arange(100.0)[:, np.newaxis]
    assert write_shards(tmp_path / "near", x).notes == ()
    integers, far = write_shards(tmp_path / "far", x + 1.7e9).notes
    assert "integers beyond 16,777,216 lose digits" in integers and "column 'x' has values far from 0" in far
