"""Parquet files as a source."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.sources import read_all, write_file

from singa_dask.data.columns import Role
from singa_dask.data.sources import parquet
from singa_dask.errors import DataError

FRAME = pd.DataFrame(
    {
        "f": np.linspace(-1, 1, 40),
        "i": np.arange(40),
        "kind": pd.Categorical(["u", "v"] * 20),
        "text": ["p", None] * 20,
        "when": pd.date_range("2020-01-01", periods=40),
        "price": [Decimal("1.50"), Decimal("2.25")] * 20,
        "label": np.arange(40) % 3,
    },
    index=pd.Index(np.arange(40) * 7, name="id"),
)


LISTS = pd.DataFrame({"target": [0.5, 1.5]})


def test_columns_are_series_without_the_index(tmp_path):
    source = parquet.FORMAT.load(write_file("parquet", tmp_path / "t.parquet", FRAME))[""]
    assert source.table and source.x == ("f", "i", "kind", "text", "when", "price") and source.y == ("label",)
    found = source.blocks[0].read()
    assert set(found) == {*FRAME}
    np.testing.assert_array_equal(found["f"], FRAME["f"])
    assert found["kind"].tolist() == FRAME["kind"].tolist()
    assert found["text"].isna().sum() == 20
    assert found["price"].tolist() == [1.5, 2.25] * 20
    assert found["when"].dtype.kind == "M"


@pytest.mark.parametrize(
    ("options", "x", "y", "roles"),
    [
        ({"label": "i", "x": ["f"]}, ("f",), ("i",), {"i": Role.LABEL}),
        ({"target": "f", "drop": ["kind", "text", "when", "price"]}, ("i", "label"), ("f",), {"f": Role.TARGET}),
        ({"label": "f", "x": "i"}, ("i",), ("f",), {"f": Role.TARGET}),
        ({"label": -1, "x": [0, 1]}, ("f", "i"), ("label",), {"label": Role.LABEL}),
    ],
)
def test_columns_are_chosen_by_name_or_number(tmp_path, options, x, y, roles):
    source = parquet.FORMAT.load(write_file("parquet", tmp_path / "t.parquet", FRAME), **options)[""]
    assert (source.x, source.y, source.roles) == (x, y, roles)
    assert set(source.blocks[0].read()) == {*x, *y}


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float64(), 3), pa.large_list(pa.int16())])
def test_lists_of_one_length_are_vectors(tmp_path, kind):
    rows = [[1, 2, 3], [4, 5, 6]]
    pq.write_table(pa.table({"v": pa.array(rows, kind), "target": [0.5, 1.5]}), tmp_path / "t.parquet")
    source = parquet.FORMAT.load(tmp_path / "t.parquet")[""]
    assert not source.table
    np.testing.assert_array_equal(source.blocks[0].read()["v"], rows)


def test_folders_may_name_a_column(tmp_path):
    FRAME[["f", "kind", "label"]].to_parquet(tmp_path / "t", partition_cols=["kind"])
    source = parquet.FORMAT.load(tmp_path / "t")[""]
    assert source.x == ("f", "kind")
    found = read_all(source)
    assert found["kind"].tolist() == ["u"] * 20 + ["v"] * 20
    np.testing.assert_array_equal(found["f"], np.r_[FRAME["f"][::2], FRAME["f"][1::2]])


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (pd.DataFrame({"b": [b"1"], "label": [1]}), "column 'b' is of type binary.*--drop"),
        (pd.DataFrame({"b": [{"c": 1}], "label": [1]}), "column 'b' is of type struct"),
        (pd.DataFrame({"b": [], "label": []}), "has no rows"),
        (pd.DataFrame({"v": [[1.0]], "a": [1.0], "label": [1]}), "'v' holds a vector.*--x v"),
        (LISTS.assign(v=[[1.0, 2], [3.0]]), "list of 1 values in row 1 of a block, but 2 in others"),
        (LISTS.assign(v=[[1.0, 2], None]), "list of -1 values in row 1"),
        (LISTS.assign(v=[[1.0, 2], [3.0, None]]), "lists with missing values"),
    ],
)
def test_faults_name_the_column_and_the_way_out(tmp_path, frame, fault):
    with pytest.raises(DataError, match=fault):
        read_all(parquet.FORMAT.load(write_file("parquet", tmp_path / "t.parquet", frame))[""])


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (FRAME[["f"]], "column 'label' is only in one of"),
        (FRAME[["f", "label"]].astype({"f": str}), "column 'f' is of type .*string, but of type double in"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, frame, fault):
    write_file("parquet", tmp_path / "a.parquet", FRAME[["f", "label"]])
    write_file("parquet", tmp_path / "b.parquet", frame)
    with pytest.raises(DataError, match=rf"b\.parquet: {fault}"):
        parquet.FORMAT.load(tmp_path)
