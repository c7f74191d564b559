"""Containers of other libraries: masked values are missing, sparse ones are zeros, tables are read by their names."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from support.shards import write_shards

from singa_dask import Classifier, Model, Regressor, layers, load, shard
from singa_dask.data.containers import dense
from singa_dask.data.native import native
from singa_dask.errors import DataError

X = np.arange(24.0).reshape(8, 3)
Y = np.arange(8) % 2


def masked(values):
    hidden = np.ma.masked_array(values, mask=np.zeros(np.shape(values), bool))
    hidden[2] = np.ma.masked
    return hidden


def lazily(values):
    return da.from_array(values, chunks=(4, *values.shape[1:]), asarray=False)


class Foreign:
    """A table that is known by Arrow's interface alone."""

    def __init__(self, table: pa.Table) -> None:
        self._table, self.columns = table, table.column_names

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


TAKES = {
    "shard": lambda x, y, out: shard(x, y, out),
    "shard, Dask": lambda x, y, out: shard(lazily(x), lazily(y), out),
    "write_shards": lambda x, y, out: write_shards(out, x, y),
    "Classifier": lambda x, y, out: Classifier(epochs=1).fit(x, y),
    "Regressor": lambda x, y, out: Regressor(epochs=1).fit(x, y),
    "partial_fit, Dask": lambda x, y, out: Regressor().partial_fit(lazily(x), lazily(y)),
}


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize(
    ("x", "y"),
    [(masked(X), Y), (masked(X.astype(np.int32)), Y), (X, masked(X[:, 0] / 2)), (X, masked(Y + 0.5))],
    ids=["floats", "integers", "targets", "other targets"],
)
def test_masked_values_are_missing(tmp_path, take, x, y):
    if take == "Classifier" and y.dtype.kind == "f":
        pytest.skip("takes classes")
    with pytest.raises((DataError, ValueError), match=r"NaN|not a finite"):
        TAKES[take](x, y, tmp_path / "out")


def test_what_no_mask_hides_is_as_it_was(tmp_path):
    np.testing.assert_array_equal(dense(np.ma.masked_array(X)), X)
    assert dense(np.ma.masked_array(Y)).dtype == Y.dtype
    assert (
        np.isnat(dense(masked(np.arange(8).astype("M8[D]")))[2])
        and dense(masked(np.array(list("abcdefgh"))))[2] is None
    )


@pytest.mark.parametrize("make", [sp.csr_matrix, sp.coo_array, lambda x: lazily(x).map_blocks(sp.csr_matrix)])
def test_sparse_matrices_are_written_block_by_block(tmp_path, make):
    y = lazily(Y) if hasattr(make(X), "__dask_graph__") else Y
    shard(make(X), y, tmp_path / "out", shuffle=False)
    np.testing.assert_array_equal(load(tmp_path / "out")[0], X)


@pytest.mark.parametrize("kind", [pa.Table.from_pandas, lambda frame: Foreign(pa.Table.from_pandas(frame))])
def test_tables_of_other_libraries_are_read_by_the_names_of_their_columns(tmp_path, kind):
    frame = pd.DataFrame({"a": X[:, 0], "b": np.where(Y, "yes", "no")})
    given, column = kind(frame), pa.Table.from_pandas(frame)["a"]
    assert native(given).equals(frame) and native(frame) is frame and native(X) is X
    made = [shard(table, y, tmp_path / name)[""] for name, table, y in (("1", frame, X[:, 1]), ("2", given, column))]
    assert made[0].encoders == made[1].encoders
    eager = Regressor(epochs=2, random_state=0).fit(frame[["a"]], X[:, 0])
    np.testing.assert_array_equal(eager.predict(kind(frame[["a"]])), eager.predict(frame[["a"]]))


@pytest.mark.parametrize("names", [[0, 1], pd.MultiIndex.from_product([["a"], [1, 2]]), ["a", "b"]])
def test_columns_may_have_names_that_are_no_texts(tmp_path, names):
    frame = pd.DataFrame(X[:, :2], columns=names)
    model = Model([layers.RecordInput("data", shape=[2]), layers.InnerProduct(num_output=1)], seed=1)
    expected = model.predict(X[:, :2])
    model.described = {"data": shard(frame, X[:, 2], tmp_path / "out")[""].description}
    np.testing.assert_array_equal(model.predict(frame[list(frame)[::-1]]), expected)


def test_complex_columns_are_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"column 'z': holds complex128, .* Leave the column out\. \(In rows 0 to 7\.\)"
    ):
        shard(pd.DataFrame({"a": Y, "z": X[:, 0] * 1j}), X[:, 0] / 2, tmp_path / "out")


def test_a_model_that_knows_its_columns_takes_them_by_name(tmp_path):
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1] ** 2})
    model = Model([layers.RecordInput("data", shape=[2]), layers.InnerProduct(num_output=1)], seed=1)
    model.described = {"data": shard(frame, X[:, 2], tmp_path / "out")[""].description}
    swapped = model.predict(pa.Table.from_pandas(frame[["b", "a"]]))
    np.testing.assert_array_equal(swapped, model.predict(frame).to_numpy())
