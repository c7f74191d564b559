"""Labels and targets are the same in all containers and types that hold them, and refused where one is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import pytest
import xarray
import zarr

from singa_dask import Classifier, Model, Regressor, layers, shard
from singa_dask.errors import DataError

N = 60
X = np.random.default_rng(0).normal(size=(N, 2))
PLACES = np.where(np.arange(N) < 2, np.arange(N), X[:, 0] > 0).astype(int)
# Labels by their values, of which float64 knows the first two as one.
LABELS = {
    "ids": (np.array([2**53, 2**53 + 1]), ["int64", "Int64", "int64[pyarrow]", "Sparse[int]", "object"]),
    "small integers": (np.array([3, 7]), ["int64", "Int8", "int16[pyarrow]", "object"]),
    "booleans": (np.array([False, True]), ["bool", "boolean", "bool[pyarrow]", "Sparse[bool]", "object"]),
}
HOLDERS: dict[str, Callable[[pd.Series], Any]] = {
    "Series": lambda y: y,
    "DataFrame": lambda y: y.to_frame("y"),
    "Series of Dask": lambda y: dd.from_pandas(y, npartitions=2),
    "array of objects": lambda y: y.to_numpy(object),
}


@pytest.mark.parametrize("labels", LABELS)
def test_classes_are_those_of_numpy(labels: str) -> None:
    values, dtypes = LABELS[labels]
    expected, wrong = values[PLACES], list[str]()
    reference = Classifier(epochs=1, random_state=0).fit(X, expected)
    score = reference.score(X, expected)
    for dtype in dtypes:
        y = pd.Series(expected).astype(dtype)
        for holder, of in HOLDERS.items():
            if (holder, dtype) == ("Series of Dask", "object"):
                continue
            lazy = holder == "Series of Dask"
            x = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]), npartitions=2) if lazy else X
            net = Classifier(epochs=1, random_state=0).fit(x, of(y))
            same = net.classes_.dtype.kind == values.dtype.kind and (net.classes_ == values).all()
            own = (np.asarray(net.predict(x)) == expected).mean()
            if not same or abs(net.score(x, of(y)) - own) > 1e-9 or (own != score and not lazy):
                wrong.append(f"{dtype}, {holder}: {net.classes_!r}")
    assert not wrong, "\n".join(wrong)


TARGETS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda y: y,
    "float32": lambda y: y.astype("f4"),
    "masked array": lambda y: np.ma.masked_invalid(y) if np.isnan(y).any() else np.ma.array(y),
    "list": lambda y: y.tolist(),
    "DataArray": lambda y: xarray.DataArray(y, dims="n"),
    "zarr": lambda y: zarr.array(y),
    "HDF5": lambda y: h5py.File.in_memory().create_dataset("y", data=y),
}
TARGETS |= {
    f"{holder} of {dtype}": lambda y, of=HOLDERS[holder], dtype=dtype: of(pd.Series(y).astype(dtype))
    for holder in ("Series", "DataFrame")
    for dtype in ("float64", "Float64", "Float32", "float64[pyarrow]")
}
WHOLE = {f"Series of {dtype}": dtype for dtype in ("Int64", "int32[pyarrow]")}


def test_targets_that_are_missing_or_infinite_are_refused() -> None:
    net = [layers.RecordInput(shape=[2], target_shape=[1]), layers.InnerProduct(num_output=1), layers.EuclideanLoss()]
    model, whole, wrong = Model(net, seed=0), np.arange(1.0, N), list[str]()

    def verdict(y: Any) -> str:
        try:
            return f"taken, {model.evaluate(X[: N - 1], y)}"
        except DataError as error:
            return str(error)

    expected = verdict(whole)
    for name, of in TARGETS.items():
        for fault, told in {np.nan: "missing", np.inf: "infinite", -np.inf: "infinite"}.items():
            found = verdict(of(np.where(np.arange(N - 1) == 3, fault, whole)))
            if not (found.startswith(f"y: a value is {told}") and "the first in sample 3." in found):
                wrong.append(f"{name}, {fault}: {found}")
        if verdict(of(whole)) != expected:
            wrong.append(f"{name}: {verdict(of(whole))} for {expected}")
    for name, dtype in WHOLE.items():
        y = pd.Series(whole).astype(dtype)
        found = [verdict(y), verdict(y.mask(y.index == 3))]
        if found[0] != expected or "missing, the first in sample 3." not in found[1]:
            wrong.append(f"{name}: {found}")
    assert not wrong, "\n".join(wrong)


DAYS = pd.date_range("2020-01-01", periods=N)
DATES = pd.DataFrame({"day": DAYS, "v": X[:, 0]})


def test_dates_of_arrow_are_days(tmp_path: Path) -> None:
    new = DATES.assign(day=DATES.day.dt.date.astype("date32[pyarrow]"))
    first, second = (Regressor(epochs=1, random_state=0).fit(x, X[:, 1]) for x in (DATES, new))
    for net in (first, second):
        np.testing.assert_array_equal(net.predict(new), first.predict(DATES))
        np.testing.assert_array_equal(net.model_.predict(new), first.model_.predict(DATES))
    held = [shard(x, X[:, 1], tmp_path / "out", test_from="2020-02-01", overwrite=True) for x in (DATES, new)]
    assert held[0]["test"] == held[1]["test"]
    lacking = new.assign(day=new.day.mask(new.index == 3))
    for call in (first.predict, first.model_.predict, lambda x: shard(x, X[:, 1], tmp_path / "o")):
        with pytest.raises(DataError, match=r"column 'day'.*missing"):
            call(lacking)


def test_samples_that_are_stored_or_named_twice() -> None:
    x = pd.DataFrame(X, columns=["a", "b"])
    net = Regressor(epochs=1, random_state=0).fit(x, X[:, 0])
    plain = Regressor(epochs=1, random_state=0).fit(X, X[:, 0])
    np.testing.assert_array_equal(plain.model_.predict(zarr.array(X)), plain.model_.predict(X))
    stored = plain.model_.evaluate(zarr.array(X), zarr.array(X[:, 0]))
    assert stored == plain.model_.evaluate(X, X[:, 0])
    twice = pd.concat([x, x[["a"]]], axis=1)
    for call in (net.predict, net.model_.predict, lambda x: net.model_.evaluate(x, X[:, 0])):
        with pytest.raises((DataError, ValueError), match="several columns are named 'a'"):
            call(twice)


def test_weights_of_one_column_and_answers_in_a_mapping() -> None:
    net, weight = Regressor(epochs=1, random_state=0).fit(X, X[:, 0]), pd.Series(np.arange(N) + 1.0)
    assert net.score(X, X[:, 0], weight.to_frame("w")) == net.score(X, X[:, 0], weight)
    for call in (net.score, net.fit):
        with pytest.raises(ValueError, match=r"sample_weight must be \(N,\), a number for each sample"):
            call(X, X[:, 0], np.ones((N, 1)))
        with pytest.raises(ValueError, match="y is a mapping, and must be an array"):
            call(X, {"y": X[:, 0]})


def test_a_column_of_categories_is_called_so() -> None:
    x = pd.DataFrame({"v": X[:, 0], "c": np.arange(N) % 3})
    of_numbers = Regressor(epochs=1, random_state=0).fit(x, X[:, 1])
    with pytest.raises(ValueError, match=r"column 'c' holds category.*astype"):
        of_numbers.predict(x.astype({"c": "category"}))
    dated = x.assign(c=DAYS.astype("category"))
    of_dates = Regressor(epochs=1, random_state=0).fit(dated, X[:, 1])
    with pytest.raises(DataError, match=r"column 'c': holds dates.*astype..category"):
        of_dates.predict(dated.assign(c=DAYS))
