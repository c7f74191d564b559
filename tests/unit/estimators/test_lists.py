"""Estimators, `shard` and models on lists of samples that have names, whichever container was trained on."""

import numpy as np
import pandas
import pytest

from singa_dask import Regressor, layers, shard
from singa_dask.data.shards import ShardFolder
from singa_dask.errors import DataError

xarray = pytest.importorskip("xarray")

A = np.random.default_rng(0).normal(size=(12, 3, 3)).astype(np.float32)
Y = A[:, -1, 0]
WHOLE = xarray.DataArray(A, {"f": [*"abc"]}, ("n", "time", "f"), attrs={"units": "K"})
ROWS = [*WHOLE]
FRAMES = [pandas.DataFrame(each, columns=[*"abc"]) for each in A]
SETS = [each.to_dataset("f") for each in ROWS]
TRAINED = {"array": WHOLE, "DataArrays": ROWS, "DataFrames": FRAMES, "Datasets": SETS}
GIVEN = {
    "array, other features": WHOLE.sel(f=[*"cba"]),
    "array, other dimensions": WHOLE.transpose("n", "f", "time"),
    "DataArrays, other features": [each.sel(f=[*"bca"]) for each in ROWS],
    "DataArrays, other dimensions": [each.T for each in ROWS],
    "DataFrames": [each[[*"cab"]] for each in FRAMES],
    "objects": pandas.Series([each[[*"cab"]] for each in FRAMES]).to_numpy(),
    "Datasets": [each[[*"cab"]] for each in SETS],
}
REFUSED = {
    "other names": ([each.assign_coords(f=[*"xyz"]) for each in ROWS], "are x, y, z, but were a, b, c"),
    "one array with other names": (WHOLE.assign_coords(f=[*"xyz"]), "are x, y, z, but were a, b, c"),
    "columns of other names": ([each.set_axis([*"xyz"], axis=1) for each in FRAMES], r"X\[0\] lacks the columns"),
}


def recurrent():
    return Regressor([layers.GRU(dim_hidden=3), layers.InnerProduct(num_output=1)], epochs=1, random_state=0)


@pytest.mark.parametrize("trained", TRAINED)
def test_lists_are_read_by_the_names_of_training(trained):
    y = xarray.DataArray(Y, dims="n") if trained == "array" else Y
    fitted = recurrent().fit(TRAINED[trained], y)
    expected = np.ravel(fitted.predict(A))
    for given in GIVEN.values():
        np.testing.assert_array_equal(np.ravel(fitted.predict(given)), expected)
    for given, message in REFUSED.values():
        with pytest.raises((DataError, ValueError), match=message):
            fitted.predict(given)
    if trained in ("array", "DataArrays"):
        for given in GIVEN.values():
            np.testing.assert_allclose(np.ravel(fitted.model_.predict(given)), expected, rtol=1e-5)
        with pytest.raises(DataError, match="has the units 'degC', but 'K'"):
            fitted.predict([each.assign_attrs(units="degC") for each in ROWS])


def test_lists_of_different_lengths_are_read_by_their_names():
    lengths = [1 + i % 3 for i in range(12)]
    given = [each[:steps] for each, steps in zip(ROWS, lengths, strict=True)]
    fitted = recurrent().fit([each.T if i % 2 else each.sel(f=[*"cab"]) for i, each in enumerate(given)], Y)
    expected = fitted.predict(given)
    np.testing.assert_array_equal(fitted.predict([each.sel(f=[*"bca"]).T for each in given]), expected)
    assert fitted.score([each.T for each in given], Y) == fitted.score(given, Y)


@pytest.mark.parametrize("trained", ["array", "DataArrays", "DataFrames"])
def test_shards_know_the_names_in_a_list(trained, tmp_path):
    first = shard(TRAINED[trained], Y, tmp_path / "first", shuffle=False)[""]
    for name in ("DataArrays, other features", "DataFrames", "Datasets"):
        again = shard(GIVEN[name], Y, tmp_path / name, shuffle=False, like=first)[""]
        np.testing.assert_array_equal(ShardFolder(again).reader(0).column("x"), A.reshape(12, 9))
    with pytest.raises(DataError, match="are x, y, z, but were a, b, c"):
        shard(REFUSED["other names"][0], Y, tmp_path / "other", like=first)


def test_tables_and_arrays_are_read_by_the_names_of_each_other():
    table, array = pandas.DataFrame(A[:, 0], columns=[*"abc"]), WHOLE[:, 0]
    rows = [row for _, row in table.iterrows()]
    given = [table[[*"cba"]], array.sel(f=[*"bca"]), [row[[*"cab"]] for row in rows], [*array.sel(f=[*"cba"])]]
    for trained in (table, array, rows):
        fitted = Regressor([layers.InnerProduct(num_output=1)], epochs=1, random_state=0)
        fitted.fit(trained, xarray.DataArray(Y, dims="n") if trained is array else Y)
        expected = np.ravel(fitted.predict(A[:, 0]))
        for each in given[trained is table :]:
            np.testing.assert_allclose(np.ravel(fitted.predict(each)), expected, rtol=1e-6)
        with pytest.raises(DataError, match="are x, y, z, but were a, b, c"):
            fitted.predict(array.assign_coords(f=[*"xyz"]))
