"""Classes and labels in files of predictions: the same values from every source, in every format."""

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray

from singa_dask import Classifier, layers, shard
from singa_dask.data.columns import Column, Role
from singa_dask.inference.classes import as_flags, as_in_data, labels_of_data, labels_of_shards
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of

DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(30, 5, 4, 2)).astype(np.float32)
PLACES = (X[:, 0, 0, 0] > 0).astype(int) + (X[:, 1, 1, 1] > 1)
MAPS = (X[..., 0] > 0).astype(int) + (X[..., 0] > 1)


def label(classes, coded=False):
    return Column("y", Role.LABEL, "int64", (), classes=classes, coded=coded)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("1", "2"), "i"),
        (("-1", "1"), "i"),
        (("01", "2"), "O"),
        (("1", "b"), "O"),
        (("9" * 30,), "O"),
        (("1.0",), "O"),
    ],
)
def test_classes_are_integers_only_where_all_are(names, kind):
    assert as_in_data(names).dtype.kind == kind
    assert [*map(str, as_in_data(names))] == [*names]


@pytest.mark.parametrize(
    ("values", "column", "expected"),
    [
        ([1, 3, 2], label(("1", "2", "3")), [1, 3, 2]),
        ([1.0, np.nan, 3.0], label(("1", "2", "3")), [1, None, 3]),
        (["1", "3"], label(("1", "2", "3")), [1, 3]),
        ([b"1", b"3"], label(("1", "2", "3")), [1, 3]),
        ([1, 4, 0, -9], label(("1", "2", "3")), [1, 4, 0, None]),
        ([-1, 1], label(("-1", "1")), [-1, 1]),
        ([0, 2, -100], label(3), [0, 2, None]),
        ([0, 1], label(("10", "20"), coded=True), [10, 20]),
        ([1, 1], label(("1", "2"), coded=True), [2, 2]),
        ([0, 1, -1, 5], label(("cat", "dog")), ["cat", "dog", None, "5"]),
        ([1, 2], label(("1", "2", "x")), ["1", "2"]),
        ([True, False], label(("False", "True")), ["True", "False"]),
        ([True, False], label(2), [1, 0]),
        (["cat", "new"], label(("cat", "dog")), ["cat", "new"]),
        (np.array(["cat", None, np.nan], object), label(("cat", "dog")), ["cat", None, None]),
        (np.array(["1", None], object), label(("1", "2")), [1, None]),
        (["one", "2"], label(("1", "2")), ["one", "2"]),
    ],
)
def test_labels_are_as_the_classes_are(values, column, expected):
    assert labels_of_data(np.array(values), column).tolist() == expected


def test_labels_of_shards_are_the_classes_of_their_places():
    assert labels_of_shards(np.array([[0, 2], [-1, 1]]), label(("5", "6", "8"))).tolist() == [[5, 8], [None, 6]]
    assert labels_of_shards(np.array([1, -100]), label(2)).tolist() == [1, None]
    assert labels_of_shards(np.array([1, 0]), label(("cat", "dog"))).tolist() == ["dog", "cat"]


CLASSES = {"numbers": np.array([1, 2, 3]), "gaps": np.array([-7, 40, 200]), "text": np.array(["red", "sea", "sun"])}


@pytest.mark.parametrize("name", [*CLASSES, "maps"])
@pytest.mark.parametrize("suffix", ["csv", "parquet", "h5", "nc"])
@pytest.mark.parametrize("source", ["shards", "file"])
def test_files_have_the_classes_of_the_data(tmp_path, nets, name, suffix, source):
    y, net = nets[name]
    data, options = tmp_path / "s", {}
    if source == "shards":
        shard(X, y, data, shuffle=False, labels=True, durable=False)
    else:
        data, options = tmp_path / "a.h5", {"x": ["x"], "y": ["y"]}
        with h5py.File(data, "w") as file:
            file["x"], file["y"] = X, y.astype("S") if y.dtype.kind == "U" else y
    out = tmp_path / f"p.{suffix}"
    predict_blocks(net.model_, blocks_of(net.model_, str(data), **options), out)
    if suffix == "h5":
        with h5py.File(out) as file:
            (group,) = (file[key] for key in file if key != "sample")
            found = {
                key: group[key].asstr()[:] if y.dtype.kind == "U" else group[key][:] for key in ("class", "label")
            }
            assert list(group["probabilities"].attrs["classes"]) == net.classes_.tolist()
    elif suffix == "nc":
        with xarray.open_dataset(out, engine="h5netcdf") as file:
            found = {key: file[key].to_numpy() for key in ("class", "label")}
            if y.dtype.kind == "U":
                assert found["label"].dtype == np.int32
                names = [np.array(file[key].attrs["flag_meanings"].split()) for key in found]
                found = {key: of[found[key]] for key, of in zip(found, names, strict=True)}
            assert file["classes"].to_numpy().tolist() == net.classes_.tolist()
    else:
        found = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    np.testing.assert_array_equal(np.ravel(found["class"]), net.predict(X).ravel())
    np.testing.assert_array_equal(np.ravel(found["label"]), y.ravel())
    if suffix != "csv" and y.dtype.kind != "U":
        assert np.asarray(found["class"]).dtype == np.asarray(found["label"]).dtype == np.int64


def test_labels_of_other_classes_are_told_where_flags_cannot_say_them(caplog):
    labels = np.ma.array(np.array(["sun", "ash", "red", "sea"], object), mask=[False, False, True, False])
    found, missing = as_flags(labels, np.array(["red", "sea", "sun"], object))
    assert found.tolist() == [2, -1, -1, 1] and missing == {"_FillValue": -1}
    assert "labels of other classes than those of the net, 'ash', are missing" in caplog.text


@pytest.fixture(scope="module")
def nets():
    made = {name: (of[PLACES], [layers.InnerProduct(num_output=3)]) for name, of in CLASSES.items()}
    made["maps"] = np.array([1, 2, 3])[MAPS], [layers.Convolution(num_filters=3, kernel=1)]
    return {name: (y, Classifier(net, epochs=1, random_state=0).fit(X, y)) for name, (y, net) in made.items()}
