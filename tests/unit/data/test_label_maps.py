"""Integer maps (N, H, W) are labels of positions, whatever holds them."""

import dask.array as da
import h5py
import numpy as np
import pytest
from support.shards import write_shards

from singa_dask import load, shard
from singa_dask.data.columns import Role
from singa_dask.data.in_place import index
from singa_dask.data.ingest.write import write
from singa_dask.data.sources import hdf5
from singa_dask.errors import DataError

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((30, 6, 5, 2)).astype("f4")
Y = DRAW.integers(0, 3, (30, 6, 5)).astype(np.uint8)


def column(manifests):
    return manifests[""].column("y")


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "i8", "u4"])
@pytest.mark.parametrize("chunks", [None, 7])
def test_maps_of_integers_are_labels(tmp_path, dtype, chunks):
    y = Y.astype(dtype)
    given = (X, y) if chunks is None else (da.from_array(X, chunks=(chunks, 6, 5, 2)), da.from_array(y, chunks=chunks))
    found = column(shard(*given, tmp_path / "s", shuffle=False))
    assert (found.role, found.shape, found.dtype, found.classes) == (Role.LABEL, (6, 5), "uint8", 3)
    np.testing.assert_array_equal(load(tmp_path / "s")[1], Y)


@pytest.mark.parametrize("axis", [1, 3])
def test_an_axis_of_one_channel_makes_no_difference(tmp_path, axis):
    found = column(shard(X, np.expand_dims(Y, axis), tmp_path / "s", shuffle=False))
    assert found.shape == (6, 5)
    np.testing.assert_array_equal(load(tmp_path / "s")[1], Y)


@pytest.mark.parametrize("dtype", ["i2", "i4", "f4"])
def test_other_numbers_become_the_names_of_classes(tmp_path, dtype):
    values = np.array([-5, 7, 300], dtype)
    found = column(shard(X, values[Y], tmp_path / "s", shuffle=False, labels=True))
    assert found.classes == ("-5", "7", "300")
    np.testing.assert_array_equal(load(tmp_path / "s")[1], Y)


def test_truth_is_a_class_and_numbers_stay_numbers(tmp_path):
    assert column(shard(X, Y > 0, tmp_path / "a")).classes == 2
    assert column(shard(X, Y.astype("f4"), tmp_path / "b")).role is Role.TARGET
    assert column(shard(X, Y, tmp_path / "c", targets=True)).role is Role.TARGET


def test_many_classes_must_be_said(tmp_path):
    many = np.arange(900).reshape(30, 6, 5) % 300
    with pytest.raises(DataError, match=r"300 different.*hardly classes.*targets='y'"):
        shard(X, many, tmp_path / "a")
    found = column(shard(X, many, tmp_path / "b", labels=True))
    assert (found.classes, found.dtype) == (300, "int32")


def test_labels_with_fractions_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"must be integers, but one is 0.5.*--target"):
        shard(X, Y + np.float32(0.5), tmp_path / "s", labels=True)


def test_arrays_that_need_no_conversion(tmp_path):
    found = write_shards(tmp_path / "s", X, Y, classes=["sea", "land", "ice"]).column("y")
    assert (found.role, found.shape, found.dtype) == (Role.LABEL, (6, 5), "uint8")
    with pytest.raises(DataError, match="labels must be 0 to 1 for 2 classes"):
        write_shards(tmp_path / "t", X, Y, classes=["sea", "land"])


def test_hdf5_files_converted_and_in_place(tmp_path):
    with h5py.File(tmp_path / "seg.h5", "w") as file:
        file["images"], file["masks"] = X, Y
    source = hdf5.FORMAT.load(tmp_path / "seg.h5", x="images", y="masks")[""]
    assert column(write(source, tmp_path / "s")).classes == 3
    found = index(source, tmp_path / "p").column("y")
    assert (found.role, found.shape, found.classes) == (Role.LABEL, (6, 5), 3)
