"""Samples that cannot become shards: the error says where they are, and nothing is left."""

import os

import numpy as np
import pandas as pd
import pytest
from support.blocks import write_rows

from singa_dask import shard
from singa_dask.data.columns import Role
from singa_dask.errors import ConfigError, DataError

NINE = {"x": np.arange(9.0)}
ROWS = np.arange(40.0)
TARGETS = np.ones((40, 3))
WITH_Y = {"y": ("y",)}
NAMED = WITH_Y | {"classes": {"y": ("a", "b", "c")}}
LABELLED = WITH_Y | {"roles": {"y": Role.LABEL}}
TABLE = {"x": ("a",), "table": True}


def changed(values, *changes):
    """A copy of the values with others at some places."""
    values = np.array(values, object if any(value is None for _, value in changes) else None)
    for place, value in changes:
        values[place] = value
    return values


def columns(y, **more):
    return {"x": np.arange(float(len(y))), "y": y, **more}


@pytest.mark.parametrize(
    ("blocks", "options", "error", "said"),
    [
        (NINE, {"validation": 1.0}, ConfigError, "validation: must be a share"),
        (NINE, {"validation": 0.5, "test": 0.5}, ConfigError, "must leave samples to train"),
        (NINE, {"validation": 0.001}, ConfigError, "validation: gets none of 9 samples"),
        (NINE, {"nshards": 10}, ConfigError, "nshards: must be from 1 to 9"),
        (NINE, {"window": 0}, ConfigError, "window: must be at least 1"),
        (NINE, {"like": "nowhere"}, DataError, "nowhere: is not a folder of shards"),
        (NINE, {"seed": -1}, ConfigError, "seed: must not be negative"),
        (NINE, {"ordered": True}, ConfigError, "the order of the samples of rows matters"),
        (NINE, {"missing": "median"}, ConfigError, "missing: is for the columns of a table"),
        ({"x": np.ones((5, 6, 7, 8))}, {}, ConfigError, "'x' do not tell which axis is that of the channels"),
        ({"x": np.zeros((0, 3))}, {}, DataError, "rows: holds no samples"),
        ([{"x": np.zeros((0, 3))}] * 3, {}, DataError, "rows: holds no samples"),
        ({"x": np.array([1.0, 2, 3, 1e39])}, {}, DataError, r"1 value\(s\) .* beyond float32, .* sample 3"),
        (
            [{"x": np.ones((10, 3))}, {"x": np.ones((10, 4))}],
            {},
            DataError,
            r"samples have the shape \(3,\), but from sample 10 on \(4,\)",
        ),
        ([columns(np.arange(8), x=np.arange(9))], WITH_Y, DataError, r"'x' has 9 rows, but 'y' has 8.*\(In 0-9\.\)"),
        # masks and weights
        (
            columns(TARGETS, m=TARGETS[:, :2]),
            {"y": ("y",), "mask": "m"},
            DataError,
            r"mask: must be shaped like the targets \(y \(3,\)\)",
        ),
        (
            columns(TARGETS, w=changed(ROWS, (21, -1))),
            {"y": ("y",), "weight": "w"},
            DataError,
            r"weight: must not be negative, but sample 21 has -1\.",
        ),
        # labels
        (columns(np.arange(100)), WITH_Y, DataError, "100 different .* in 100 samples.* targets=.* labels="),
        (columns(np.arange(100).astype(str)), WITH_Y, DataError, "has 100 different .*, .* set labels='y'[^=]*$"),
        *(
            (columns(y), NAMED, DataError, "labels must be 0 to 2 for 3 classes")
            for y in (np.arange(20) % 4, np.arange(20) % 3 - 1)
        ),
        (
            [columns(np.array(["c"] * 7)), columns(np.array(["c", "d"]))],
            NAMED,
            DataError,
            r"the label 'd' \(in the block from sample 7 on\) is not one of the 3",
        ),
        (columns(changed(["a", "b"] * 9, (13, None))), WITH_Y, DataError, r"1 label\(s\) are missing, .* sample 13"),
        (columns(changed(ROWS % 2, (13, np.nan))), WITH_Y, DataError, r"'y': 1 .* the first in sample 13"),
        (
            columns(changed(ROWS % 2, (13, np.nan))),
            LABELLED,
            DataError,
            r"'y': 1 .* the first in sample 13",
        ),
        (
            columns(ROWS / 2),
            LABELLED,
            DataError,
            r"must be integers, but row 1 of its block is 0\.5",
        ),
        (columns(ROWS.astype("M8[D]")), WITH_Y, DataError, "dates can be neither labels nor targets"),
        (
            [columns(np.array(["a", "b"])), columns(np.array([1, 2]))],
            WITH_Y,
            DataError,
            "'y': holds texts in some blocks and numbers in others",
        ),
        # columns of a table
        (
            [{"a": ROWS[:10]}, {"a": changed(ROWS, (7, np.nan), (9, np.nan))}],
            TABLE,
            DataError,
            r"column 'a': 2 value\(s\) are missing, the first in sample 17\. Fill them with the option missing",
        ),
        (
            [{"a": np.array(["u"] * 10)}, {"a": changed(["u"] * 9, (3, None))}],
            TABLE,
            DataError,
            r"column 'a': 1 value\(s\) are missing, the first in sample 13\.",
        ),
        ({"a": np.array(["u", None])}, TABLE | {"missing": "mean"}, DataError, "texts, so the mean cannot replace"),
        ({"a": ROWS}, TABLE | {"missing": {"a": "none"}}, DataError, "'a': holds numbers, so 'none' cannot replace"),
        (
            [{"a": ROWS[:4]}, {"a": np.array(["7", "x"])}],
            TABLE,
            DataError,
            r"'a': holds numbers from sample 0 on and texts from sample 4 on\.",
        ),
        (
            [{"a": ROWS[:4]}, {"a": np.array([1, "x", 2, 3], object)}],
            TABLE,
            DataError,
            r"'a', row 1 of its block: 'x' is of another type .* mixes int, str.*In 4-8",
        ),
        ({"a": np.full(3, np.nan)}, TABLE | {"missing": {"a": 9}}, DataError, "'a': has no value in any row"),
        (
            [{"a": np.array([f"n{i}" for i in range(a, a + 11)])} for a in (0, 10)],
            TABLE | {"max_categories": 20},
            DataError,
            r"'a': has 21 different texts.* limited to 20\. .*--drop a\b.*--date a=.*--category a=.*ordinal",
        ),
    ],
)  # fmt: skip
def test_what_cannot_become_shards_is_refused_and_leaves_nothing(tmp_path, blocks, options, error, said):
    with pytest.raises(error, match=said):
        write_rows(tmp_path / "out", blocks, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("bad", "said"), [(np.nan, "2 value(s) are NaN"), (np.inf, "2 value(s) are infinite or beyond float32")]
)
@pytest.mark.parametrize("name", ["x", "y"])
def test_values_that_are_not_finite_are_counted_and_placed(tmp_path, name, bad, said, dtype):
    values = {"x": np.ones((50, 4), dtype), "y": np.ones((50, 4), dtype)}
    values[name][[17, 33], 2] = bad
    with pytest.raises(DataError) as told:
        write_rows(tmp_path / "out", values, (10, 20), y=("y",))
    assert f"column '{name}': {said}, the first in sample 17." in str(told.value)


X, Y = np.ones((90, 2)), np.arange(90) % 3


@pytest.mark.parametrize(
    ("X", "y", "options", "error", "said"),
    [
        (X, Y, {"out": None}, ConfigError, "out: must be the folder for the shards"),
        ({}, None, {}, ConfigError, "X: must hold at least one array"),
        (X, Y, {"labels": "z"}, ConfigError, r"labels: names a column that y does not have.*'z'"),
        (X, Y, {"labels": True, "targets": True}, ConfigError, "labels name the same column"),
        (X, Y, {"channels": "middle"}, ConfigError, "channels: has a wrong value"),
        (X, Y, {"channels": {"z": "first"}}, ConfigError, "channels: names an unknown column"),
        (X, Y, {"sample_weight": {"a": Y, "b": Y}}, ConfigError, "sample_weight: must be one array"),
        (3, None, {}, DataError, "X: must have the samples along its first axis, but it is one value"),
        (np.zeros((2, 1, 1, 1, 1, 1)), None, {}, DataError, "at most 4 axes"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), None, {}, DataError, "two columns have the same name: a, a"),
        (pd.DataFrame(X), None, {"missing": {"0": None}}, ConfigError, "missing: must be a way to fill"),
        (pd.DataFrame(X), None, {"missing": {"00": "mean"}}, ConfigError, r"missing: names a column .* '00'"),
        (pd.DataFrame(X), None, {"missing": "meen"}, ConfigError, "missing: must be a way to fill"),
        (pd.DataFrame(X), None, {"encode": {"0": "target"}}, ConfigError, "encode: is unknown for column '0'"),
        (pd.DataFrame(X), None, {"unknown": "skip"}, ConfigError, "unknown: must be error or zeros"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_shard_are_named(tmp_path, X, y, options, error, said):
    with pytest.raises(error, match=said):
        shard(X, y, **{"out": tmp_path / "out", **options})
