"""A data set as arrays in memory."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask import load
from singa_dask.data import write_shards
from singa_dask.errors import DataError


def test_all_samples_of_all_shards_as_they_were_written(images, image_arrays):
    x, y = load(images.folder)
    for found, given in zip((x, y), image_arrays, strict=True):
        np.testing.assert_array_equal(found, given)
    assert x.dtype == np.uint8
    x[0] = 0  # a copy of the shards, to write to
    np.testing.assert_array_equal(load(images.folder, "x")[0], image_arrays[0])


def test_columns_by_name_and_data_without_labels(tmp_path):
    draw = np.random.default_rng(0)
    x, weight = draw.normal(size=(9, 2)).astype(np.float32), draw.uniform(size=9).astype(np.float32)
    write_shards(tmp_path / "a", x, np.zeros(9, int), 2, weight=weight, classes=1)
    found = load(tmp_path / "a", ["weight", "x"])
    np.testing.assert_array_equal(found[0].ravel(), weight)
    np.testing.assert_array_equal(found[1], x)
    write_shards(tmp_path / "b", x)
    assert load(tmp_path / "b")[1] is None
    with pytest.raises(DataError, match=r"has no column 'wieght'. It has: x, y, weight. Did you mean weight\?"):
        load(tmp_path / "a", "wieght")


def test_named_data_sets_unless_a_folder_of_shards_has_the_name(tmp_path, monkeypatch):
    x, y = load("digits/test")
    np.testing.assert_array_equal(load("dataset:digits/test")[0], x)
    assert (x.shape, y.shape, set(y.tolist())) == ((359, 8, 8, 1), (359,), set(range(10)))
    monkeypatch.chdir(tmp_path)
    write_shards("digits/test", np.ones((3, 2), np.float32))
    assert load("digits/test")[0].shape == (3, 2)
    with pytest.raises(DataError, match="digits has the splits train, test"):
        load("digits/tset")


def test_damage_is_found(images):
    shard = images.path_of(images.shards[1])
    content = bytearray(shard.read_bytes())
    content[-20] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        load(images.folder)
