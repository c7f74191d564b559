"""Tables: categories, dates and missing values become features, and the same features when a net predicts."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.blocks import source_of_rows, stored

from singa_dask import shard
from singa_dask.data import Manifest
from singa_dask.data.encoders import Encoder, Encoders
from singa_dask.data.ingest import write
from singa_dask.errors import ConfigError, DataError

ROWS = 60


def table(**more) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": np.arange(ROWS) * 1.5,
            "rooms": np.arange(ROWS) % 7,
            "sold": np.arange(ROWS) % 3 == 0,
            "colour": np.array(["red", "green", "blue"])[np.arange(ROWS) % 3],
            "day": pd.date_range("2024-02-28", periods=ROWS, freq="12h"),
            **more,
        }
    )


def written(tmp_path, frame, cuts=(), name="out", **options):
    """The features of a table in the order of its rows, with the manifest."""
    source = source_of_rows({column: frame[column] for column in frame}, cuts, x=tuple(frame), table=True)
    (manifest,) = write.write(source, tmp_path / name, **{"shuffle": False, "durable": False, **options}).values()
    return stored(manifest)["x"], manifest


def test_columns_become_features(tmp_path):
    frame = table()
    x, manifest = written(tmp_path, frame, (10, 35))
    names = ("age", "rooms", "sold", "colour=blue", "colour=green", "colour=red", "day")
    assert manifest.features.names == names and x.dtype == np.float32
    expected = [
        frame.age,
        frame.rooms,
        frame.sold,
        *(frame.colour == colour for colour in ("blue", "green", "red")),
        np.arange(ROWS) / 2,  # from the first day on
    ]
    np.testing.assert_array_equal(x, np.stack(expected, 1).astype(np.float32))
    np.testing.assert_allclose(manifest.features.mean, x.astype(float).mean(0), rtol=1e-6)


@settings(max_examples=25)
@given(st.data())
def test_encoders_give_what_the_shards_hold(tmp_path_factory, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, ROWS), max_size=4)))
    frame = table(
        size=pd.Categorical.from_codes(np.arange(ROWS) % 2, ["S", "M", "unused"]),
        count=pd.array([*range(ROWS - 1), None], "Int64"),
        code=np.arange(ROWS) % 4 * 10,
        seen=pd.date_range("2020-01-01", periods=ROWS, tz="Europe/Vienna"),
        took=pd.to_timedelta(np.arange(ROWS), "h"),
        mixed=[Decimal(1), *[2.5] * (ROWS - 1)],
        flag=pd.array([True, None] * (ROWS // 2), "boolean"),
    )
    for name in data.draw(st.lists(st.sampled_from(["age", "colour", "day", "size", "code"]), unique=True)):
        holes = data.draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=20))
        frame[name] = frame[name].mask(frame.index.isin(holes))
    numbers = data.draw(st.sampled_from(["mean", "median", "most_frequent"]))
    missing = dict.fromkeys(frame, numbers) | dict.fromkeys(["colour", "size", "code"], "most_frequent")
    encode = {"code": data.draw(st.sampled_from(["onehot", "ordinal"])), "size": ["S", "M", "L"]}
    shuffle = data.draw(st.booleans())
    options = {"missing": missing, "encode": encode, "shuffle": shuffle, "nshards": 2}
    frame["row"] = np.arange(ROWS)
    x, manifest = written(tmp_path_factory.mktemp("t"), frame, cuts, **options)
    encoders = Encoders.from_json(json.loads(manifest.description)["encoders"])
    assert encoders.names == manifest.features.names and np.isfinite(x).all()
    np.testing.assert_array_equal(encoders.apply(frame)[x[:, -1].astype(int)], x)


def test_missing_values_name_column_sample_and_option(tmp_path):
    frame = table()
    frame.loc[[17, 40], "age"] = np.nan
    message = r"column 'age': 2 value\(s\) are missing, the first in sample 17\. Fill them with the option missing"
    with pytest.raises(DataError, match=message):
        written(tmp_path, frame, (10,))
    frame = table()
    frame.loc[33, "colour"] = None
    with pytest.raises(DataError, match=r"column 'colour': 1 value\(s\) are missing, the first in sample 33\."):
        written(tmp_path, frame, (10,))
    with pytest.raises(DataError, match="'colour': holds texts, so the mean cannot replace missing values"):
        written(tmp_path, frame, missing="mean")
    with pytest.raises(DataError, match="'age': holds numbers, so 'none' cannot replace missing values"):
        written(tmp_path, frame, missing={"age": "none"})


@pytest.mark.parametrize(("how", "filled"), [("mean", 3.6), ("median", 2.0), ("most_frequent", 1.0), (-7, -7.0)])
def test_imputers(tmp_path, how, filled):
    frame = pd.DataFrame({"v": [1.0, np.nan, 2.0, 1.0, np.nan, 4.0, 10.0], "w": range(7)})
    x, manifest = written(tmp_path, frame, (2, 3, 5), missing={"v": how})
    np.testing.assert_allclose(x[:, 0], [1, filled, 2, 1, filled, 4, 10], rtol=1e-6)
    assert manifest.encoders[0]["fill"] == pytest.approx(filled)
    new = Encoders.from_json(list(manifest.encoders)).apply({"v": np.array([np.nan]), "w": np.array([1])})
    np.testing.assert_allclose(new, [[filled, 1]], rtol=1e-6)


def test_a_text_replaces_missing_categories(tmp_path):
    frame = pd.DataFrame({"c": ["a", None, "b"], "n": [1, 2, 3]})
    x, manifest = written(tmp_path, frame, (1,), missing={"c": "none"})
    assert manifest.features.names == ("c=a", "c=b", "c=none", "n")
    np.testing.assert_array_equal(x[:, :3], [[1, 0, 0], [0, 0, 1], [0, 1, 0]])


def test_imputers_are_fitted_on_the_training_samples(tmp_path):
    frame = pd.DataFrame({"v": np.where(np.arange(200) % 4 == 0, np.nan, np.arange(200.0))})
    frame["row"] = np.arange(200)
    source = source_of_rows({name: frame[name] for name in frame}, (90,), x=("v", "row"), table=True)
    manifests = write.write(source, tmp_path / "out", validation=0.5, missing="mean", durable=False)
    rows = {name: stored(manifest)["x"][:, 1].astype(int) for name, manifest in manifests.items()}
    expected = np.nanmean(frame.v[rows["train"]])
    assert abs(expected - np.nanmean(frame.v)) > 1e-6
    for manifest in manifests.values():
        assert manifest.encoders[0]["fill"] == pytest.approx(expected)
    x = stored(manifests["validation"])["x"]
    np.testing.assert_allclose(x[rows["validation"] % 4 == 0, 0], expected, rtol=1e-6)


def test_too_many_categories_name_column_and_options(tmp_path):
    frame = pd.DataFrame({"id": [f"n{i}" for i in range(30)]})
    with pytest.raises(DataError, match=r"'id': has 30 different texts, but one-hot .* limited to 20 .*ordinal"):
        written(tmp_path, frame, (11,), max_categories=20)
    x, _ = written(tmp_path, frame, (11,), max_categories=20, encode={"id": "ordinal"})
    np.testing.assert_array_equal(np.sort(x[:, 0]), np.arange(30))


def test_numbers_as_categories_keep_their_order(tmp_path):
    frame = pd.DataFrame({"n": [10, 9, 2, 10]})
    x, manifest = written(tmp_path, frame, (1,), encode={"n": "ordinal"})
    assert manifest.encoders[0]["categories"] == ["2", "9", "10"]
    np.testing.assert_array_equal(x[:, 0], [2, 1, 0, 2])
    apply = Encoders.from_json(list(manifest.encoders)).apply
    np.testing.assert_array_equal(apply({"n": np.array([2.0, 10.0])}), [[0], [2]])
    np.testing.assert_array_equal(apply({"n": np.array(["9"])}), [[1]])


def test_a_column_must_have_one_kind(tmp_path):
    source = source_of_rows({"a": np.arange(8.0)}, (4,), x=("a",), table=True)
    source.blocks[1].columns["a"] = np.array(["7", "x", "8", "9"])
    with pytest.raises(DataError, match=r"'a': holds numbers from sample 0 on and texts from sample 4 on\."):
        write.write(source, tmp_path / "out")
    source.blocks[1].columns["a"] = np.array([1, "x", 2, 3], object)
    with pytest.raises(DataError, match=r"'a', row 1 of its block: 'x' is neither .* mixes int, str.*In 4-8"):
        write.write(source, tmp_path / "out")


def test_a_block_whose_values_are_all_missing_has_any_kind(tmp_path):
    frame = pd.DataFrame({"c": ["a"] * 5 + ["b"], "d": pd.date_range("2024", periods=6), "v": [1.5] * 5 + [2.0]})
    source = source_of_rows({name: frame[name] for name in frame}, (3,), x=tuple(frame), table=True)
    nothing = np.full(3, np.nan)
    source.blocks[0].columns.update({"c": nothing, "d": nothing, "v": np.array([None] * 3, object)})
    missing = {"c": "most_frequent", "d": "median", "v": 9}
    (manifest,) = write.write(source, tmp_path / "out", missing=missing, shuffle=False, durable=False).values()
    np.testing.assert_array_equal(
        stored(manifest)["x"], [[1, 0, 1, 9]] * 3 + [[1, 0, 0, 1.5], [1, 0, 1, 1.5], [0, 1, 2, 2]]
    )
    source.blocks[1].columns["c"] = nothing
    with pytest.raises(DataError, match="'c': has no value in any row"):
        write.write(source, tmp_path / "bad", missing=missing)


def test_large_whole_numbers_warn(tmp_path, caplog):
    written(tmp_path, pd.DataFrame({"id": 2**24 + np.arange(9), "v": range(9)}))
    assert "id: whole numbers beyond 16,777,216 lose digits" in caplog.text


FITTED = Encoders(
    [Encoder("n", "number", fill=1.0), Encoder("c", "onehot", ("a", "b")), Encoder("d", "date", origin=19000.0)]
)


def test_what_predictions_refuse():
    frame = {"n": np.array([1.0, 2]), "c": np.array(["a", "b"]), "d": np.array(["2022-01-08", "2022-01-09"], "M8[D]")}
    np.testing.assert_array_equal(FITTED.apply(frame), [[1, 1, 0, 0], [2, 0, 1, 1]])
    np.testing.assert_array_equal(FITTED.apply(pd.DataFrame(frame)), FITTED.apply(frame))
    refused = [
        ({"c": np.array(["a", "z"])}, "column 'c', row 1: the category 'z' was not in the training data"),
        ({"c": np.array(["a", None], object)}, r"column 'c', row 1: is missing \(1 of 2 rows\)"),
        ({"c": frame["d"]}, "column 'c': holds dates, but the net was trained with categories"),
        ({"n": np.array([1, np.inf])}, "column 'n', row 1: is infinite"),
        ({"n": np.array(["1", "2"])}, "column 'n': holds texts, but the net was trained with numbers"),
        ({"d": np.array([1.0, 2.0])}, "column 'd': holds numbers, but the net was trained with dates"),
    ]
    for change, said in refused:
        with pytest.raises(DataError, match=said):
            FITTED.apply({**frame, **change})
    with pytest.raises(DataError, match=r"column 'c': is not there, .* Did you mean C\?"):
        FITTED.apply({"n": frame["n"], "C": frame["c"], "d": frame["d"]})


def test_unknown_categories_can_be_zeros(tmp_path):
    frame = pd.DataFrame({"c": ["a", "b"], "o": ["u", "v"]})
    _, manifest = written(tmp_path, frame, encode={"o": "ordinal"}, unknown="zeros")
    encoders = Encoders.from_json(list(manifest.encoders))
    np.testing.assert_array_equal(
        encoders.apply(pd.DataFrame({"c": ["z", "b"], "o": ["z", "v"]})), [[0, 0, -1], [0, 1, 1]]
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "pickle"}, r"encoders\[1\]\.kind: must be one of number, onehot"),
        ({"column": 3}, "column: must be a text"),
        ({"categories": ["a", "a"]}, "categories: must be distinct texts"),
        ({"categories": []}, "categories: must be distinct texts"),
        ({"fill": "c"}, "fill: must be one of the categories"),
        ({"unknown": "ignore"}, "unknown: must be error or zeros"),
        ({"kind": "number"}, "categories: must be missing"),
        ({"kind": "date", "categories": [], "origin": float("nan")}, "origin: must be a finite number"),
    ],
)
def test_encoders_of_foreign_manifests_are_checked(change, said):
    entries = FITTED.to_json()
    assert Encoders.from_json(json.loads(json.dumps(entries))) == FITTED
    entries[1] |= change
    with pytest.raises(DataError, match=said):
        Encoders.from_json(entries)
    with pytest.raises(DataError, match="must be a list"):
        Encoders.from_json("abc")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"missing": {"agee": "mean"}}, r"missing: names a column .* 'agee'. Did you mean age\?"),
        ({"missing": "meen"}, "missing: must be a way to fill"),
        ({"missing": {"age": None}}, "missing: must be a way to fill"),
        ({"encode": {"colour": "target"}}, "encode: is unknown for column 'colour'"),
        ({"unknown": "skip"}, "unknown: must be error or zeros"),
    ],
)
def test_wrong_options_of_tables(tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        shard(table(), None, tmp_path / "out", **options)


class TestAnswers:
    """Labels and targets."""

    def column(self, tmp_path, y, cuts=(7,), **settings):
        options = {key: settings.pop(key) for key in ("shuffle",) if key in settings}
        source = source_of_rows({"x": np.arange(float(len(y))), "label": y}, cuts, y=("label",), **settings)
        (manifest,) = write.write(source, tmp_path / "out", durable=False, overwrite=True, **options).values()
        got = stored(manifest)
        order = np.argsort(got["x"])
        return manifest.column("y"), got["y"][order]

    @pytest.mark.parametrize("make", [np.array, lambda v: np.array(v, object), pd.Series, pd.Categorical, np.bytes_])
    def test_texts_are_classes_in_sorted_order(self, tmp_path, make):
        y = make(["dog", "cat", "dog", "emu"] * 10)
        column, labels = self.column(tmp_path, y)
        assert (column.role, column.dtype, column.classes) == ("label", "int64", ("cat", "dog", "emu"))
        np.testing.assert_array_equal(labels, [1, 0, 1, 2] * 10)

    def test_truth_values_are_two_classes(self, tmp_path):
        column, labels = self.column(tmp_path, np.arange(20) % 3 == 0)
        assert column.classes == ("False", "True")
        np.testing.assert_array_equal(labels, np.arange(20) % 3 == 0)

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
    def test_whole_numbers_from_zero_stay(self, tmp_path, dtype):
        column, labels = self.column(tmp_path, (np.arange(20) % 4).astype(dtype)[:, None])
        assert (column.classes, column.shape) == (4, ())
        np.testing.assert_array_equal(labels, np.arange(20) % 4)

    def test_other_whole_numbers_name_the_classes(self, tmp_path, caplog):
        y = np.array([-1, 7, 30])[np.arange(30) % 3]
        column, labels = self.column(tmp_path, y)
        assert column.classes == ("-1", "7", "30") and "the labels are not 0 to 2, but -1 to 30" in caplog.text
        np.testing.assert_array_equal(labels, np.arange(30) % 3)

    def test_numbers_are_targets(self, tmp_path, caplog):
        y = np.random.default_rng(0).random(500)
        column, targets = self.column(tmp_path, y)
        assert (column.role, column.dtype, column.classes) == ("target", "float64", None)
        np.testing.assert_array_equal(targets, y)
        assert not caplog.records
        column, targets = self.column(tmp_path, np.arange(20.0) % 2)
        assert column.role == "target" and "holds only 2 different numbers (0, 1)" in caplog.text
        column, labels = self.column(tmp_path, np.arange(20.0) % 2, roles={"label": "label"})
        assert (column.role, column.classes, labels.dtype) == ("label", 2, np.int64)
        column, _ = self.column(tmp_path, np.arange(60).reshape(20, 3))
        assert (column.role, column.shape) == ("target", (3,))

    def test_whole_numbers_can_be_targets(self, tmp_path):
        column, targets = self.column(tmp_path, np.arange(20) * 10, roles={"label": "target"})
        assert (column.role, column.dtype) == ("target", "int64")
        np.testing.assert_array_equal(targets, np.arange(20) * 10)

    @pytest.mark.parametrize("texts", [True, False])
    def test_many_values_are_hardly_classes(self, tmp_path, texts):
        y = np.arange(100)
        with pytest.raises(DataError, match=r"has 100 different .* in 100 samples, .* set labels='label'") as told:
            self.column(tmp_path, y.astype(str) if texts else y)
        assert ("set targets='label'" in str(told.value)) is not texts
        assert self.column(tmp_path, y, roles={"label": "label"})[0].classes == 100

    def test_labels_must_fit_the_classes(self, tmp_path):
        names = {"label": ("a", "b", "c")}
        column, _ = self.column(tmp_path, np.arange(20) % 2, classes=names)
        assert column.classes == ("a", "b", "c")
        for y in (np.arange(20) % 4, np.arange(20) % 3 - 1):
            with pytest.raises(DataError, match="labels must be 0 to 2 for 3 classes"):
                self.column(tmp_path, y, classes=names)
        _, labels = self.column(tmp_path, np.array(["c", "a"] * 10), classes=names)
        np.testing.assert_array_equal(labels, [2, 0] * 10)
        with pytest.raises(DataError, match=r"the label 'd' \(in the block from sample 7 on\) is not one of the 3"):
            self.column(tmp_path, np.array(["c"] * 10 + ["d"] * 5), classes=names)

    def test_labels_must_not_be_missing(self, tmp_path):
        y = np.array(["a", "b"] * 10, object)
        y[13] = None
        with pytest.raises(DataError, match=r"1 label\(s\) are missing, the first in sample 13"):
            self.column(tmp_path, y)
        y = np.arange(20) % 2.0
        y[13] = np.nan
        for roles in ({}, {"label": "label"}):
            with pytest.raises(DataError, match=r"'label': 1 .* the first in sample 13"):
                self.column(tmp_path, y, roles=roles)
        with pytest.raises(DataError, match=r"must be whole numbers, but row 1 of its block is 0\.5"):
            self.column(tmp_path, np.arange(20) / 2, (), roles={"label": "label"})
        with pytest.raises(DataError, match="dates can be neither labels nor targets"):
            self.column(tmp_path, np.arange(20).astype("M8[D]"))

    @pytest.mark.parametrize("make", [np.sort, lambda y: np.sort(y).astype(str)])
    def test_sorted_labels_that_are_not_shuffled_warn(self, tmp_path, caplog, make):
        y = make(np.arange(40) % 4)
        self.column(tmp_path, y, (5, 20), shuffle=True)
        self.column(tmp_path, y[::-1], (5, 20), shuffle=False)
        self.column(tmp_path, np.roll(y, 12), (2,), shuffle=False)
        assert not caplog.records
        self.column(tmp_path, y, (5, 20), shuffle=False)
        assert "the labels 'y' are sorted, and the samples are not shuffled" in caplog.text
        assert "sorted" in Manifest.load(tmp_path / "out").notes[0]

    def test_texts_and_numbers_do_not_mix(self, tmp_path):
        source = source_of_rows({"x": np.arange(4.0), "y": np.array(["a", "b", "a", "b"])}, (2,), y=("y",))
        source.blocks[1].columns["y"] = np.array([1, 2])
        with pytest.raises(DataError, match="'y': holds texts in some blocks and numbers in others"):
            write.write(source, tmp_path / "out")

    def test_whole_and_broken_numbers_are_targets_together(self, tmp_path):
        source = source_of_rows({"x": np.arange(4.0), "y": np.array([1, 2, 3, 4])}, (2,), y=("y",))
        source.blocks[1].columns["y"] = np.array([1.5, 2])
        (manifest,) = write.write(source, tmp_path / "out", shuffle=False, durable=False).values()
        np.testing.assert_array_equal(stored(manifest)["y"], [1, 2, 1.5, 2])


def test_a_text_of_its_own_in_every_sample_is_told(tmp_path, caplog):
    frame = pd.DataFrame({"id": [f"S{i}" for i in range(30)], "kind": ["a", "b"] * 15, "v": np.arange(30.0)})
    shard(frame, np.arange(30.0) / 7, tmp_path / "out", durable=False)
    assert "id: has another text in every sample" in caplog.text and "--drop" in caplog.text
    assert "kind" not in caplog.text
