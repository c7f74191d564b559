"""Samples that are written with the encoders and classes of a folder."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.blocks import stored

from singa_dask import shard
from singa_dask.errors import ConfigError, DataError

TRAIN = pd.DataFrame({"n": [1.0, np.nan, 3.0, 4.0], "c": ["a", "b", "c", "a"], "k": [10, 20, 10, 20], "d": 0.5})
OPTIONS = {"missing": {"n": "mean"}, "encode": {"k": "onehot"}, "shuffle": False, "durable": False}


@pytest.fixture
def train(tmp_path):
    return shard(TRAIN, pd.Series([3, 7, 9, 3]), tmp_path / "train", **OPTIONS)[""]


def like(train, tmp_path, X, y, **options):
    manifest = shard(X, y, tmp_path / "more", like=train, shuffle=False, durable=False, **options)[""]
    return stored(manifest), manifest


def test_encoders_and_classes_are_those_of_the_folder(tmp_path, train):
    more = pd.DataFrame({"d": [1.0, 2.0], "k": [20, 20], "c": ["c", "c"], "n": [np.nan, 5.0]})
    got, manifest = like(train, tmp_path, more, pd.Series([9, 7]))
    assert manifest.features.names == train.features.names and manifest.encoders == train.encoders
    assert manifest.targets.classes == train.targets.classes == ("3", "7", "9")
    np.testing.assert_allclose(got["x"], [[8 / 3, 0, 0, 1, 0, 1, 1], [5, 0, 0, 1, 0, 1, 2]], rtol=1e-6)
    np.testing.assert_array_equal(got["y"], [2, 1])


Y = pd.Series([3, 3, 3, 3])


@pytest.mark.parametrize(
    ("X", "y", "said"),
    [
        (TRAIN.assign(c=["a", "z", "a", "a"]), Y, r"'c': the category 'z' is not in the training samples \(1 such\)"),
        (TRAIN.assign(d=[1, np.nan, 1, 1]), Y, "'d': 1 value.* in sample 1, and the training samples had none"),
        (TRAIN.assign(n=["a", "b", "c", "d"]), Y, "'n': holds texts, but the training samples numbers"),
        (TRAIN.drop(columns="c"), Y, "column 'c': is not there, but .*train has it"),
        (TRAIN, pd.Series([3, 5, 7, 9]), "the label '5' .* is not one of the 3 classes"),
    ],
)
def test_what_the_training_samples_did_not_have_is_an_error(tmp_path, train, X, y, said):
    with pytest.raises(DataError, match=said):
        like(train, tmp_path, X, y)


def test_the_encoders_are_not_named_twice(tmp_path, train):
    with pytest.raises(ConfigError, match="missing: cannot be set together with like"):
        like(train, tmp_path, TRAIN, Y, missing="mean")


def test_arrays_must_have_the_same_shape(tmp_path):
    x = np.random.default_rng(0).random((6, 4, 4))
    train = shard(x, np.arange(6) % 3, tmp_path / "train", durable=False)[""]
    got, manifest = like(train, tmp_path, x[:2], np.array([1, 1]))
    assert manifest.targets.classes == 3 and got["y"].tolist() == [1, 1]
    with pytest.raises(DataError, match=r"'x': has the shape \(4, 3\), but in .*train \(4, 4\)"):
        like(train, tmp_path, x[:2, :, :3], np.array([1, 1]), overwrite=True)
