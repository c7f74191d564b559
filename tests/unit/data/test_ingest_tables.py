"""Tables: categories, dates and missing values become features, and the same features when a net predicts."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.blocks import stored, write_rows

from singa_dask import shard
from singa_dask.data.columns import Role
from singa_dask.data.encoders import Encoder, Encoders
from singa_dask.data.load import load
from singa_dask.data.manifest_reader import read_description
from singa_dask.data.sharding import shard_files
from singa_dask.errors import ConfigError, DataError, nearest

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


def written(tmp_path, columns, cuts=(), name="out", **options):
    """The features of a table, or of the columns of each block, in the order of the rows; and the manifest."""
    frame = isinstance(columns, pd.DataFrame)
    names = tuple(columns if frame else columns[0])
    options = {"shuffle": False, "x": names, "table": True, **options}
    (manifest,) = write_rows(tmp_path / name, {**columns} if frame else columns, cuts, **options).values()
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
    encoders = read_description(manifest.description).encoders
    assert encoders.names == manifest.features.names and np.isfinite(x).all()
    np.testing.assert_array_equal(encoders.apply(frame)[x[:, -1].astype(int)], x)


@pytest.mark.parametrize(("how", "filled"), [("mean", 3.6), ("median", 2.0), ("most_frequent", 1.0), (-7, -7.0)])
def test_imputers(tmp_path, how, filled):
    frame = pd.DataFrame({"v": [1.0, np.nan, 2.0, 1.0, np.nan, 4.0, 10.0], "w": range(7)})
    x, manifest = written(tmp_path, frame, (2, 3, 5), missing={"v": how})
    np.testing.assert_allclose(x[:, 0], [1, filled, 2, 1, filled, 4, 10], rtol=1e-6)
    assert manifest.encoders[0].fill == pytest.approx(filled)
    new = manifest.encoders.apply({"v": np.array([np.nan]), "w": np.array([1])})
    np.testing.assert_allclose(new, [[filled, 1]], rtol=1e-6)


def test_a_text_replaces_missing_categories(tmp_path):
    frame = pd.DataFrame({"c": ["a", None, "b"], "n": [1, 2, 3]})
    x, manifest = written(tmp_path, frame, (1,), missing={"c": "none"})
    assert manifest.features.names == ("c=a", "c=b", "c=none", "n")
    np.testing.assert_array_equal(x[:, :3], [[1, 0, 0], [0, 0, 1], [0, 1, 0]])


def test_imputers_are_fitted_on_the_training_samples(tmp_path):
    frame = pd.DataFrame({"v": np.where(np.arange(200) % 4 == 0, np.nan, np.arange(200.0))})
    frame["row"] = np.arange(200)
    options = {"x": ("v", "row"), "table": True, "validation": 0.5, "missing": "mean"}
    manifests = write_rows(tmp_path / "out", {**frame}, (90,), **options)
    rows = {name: stored(manifest)["x"][:, 1].astype(int) for name, manifest in manifests.items()}
    expected = np.nanmean(frame.v[rows["train"]])
    assert abs(expected - np.nanmean(frame.v)) > 1e-6
    for manifest in manifests.values():
        assert manifest.encoders[0].fill == pytest.approx(expected)
    x = stored(manifests["validation"])["x"]
    np.testing.assert_allclose(x[rows["validation"] % 4 == 0, 0], expected, rtol=1e-6)


def test_numbers_as_categories_keep_their_order(tmp_path):
    frame = pd.DataFrame({"n": [10, 9, 2, 10]})
    x, manifest = written(tmp_path, frame, (1,), encode={"n": "ordinal"})
    assert manifest.encoders[0].categories == ("2", "9", "10")
    np.testing.assert_array_equal(x[:, 0], [2, 1, 0, 2])
    apply = manifest.encoders.apply
    np.testing.assert_array_equal(apply({"n": np.array([2.0, 10.0])}), [[0], [2]])
    np.testing.assert_array_equal(apply({"n": np.array(["9"])}), [[1]])


def test_a_block_whose_values_are_all_missing_has_any_kind(tmp_path):
    days = pd.date_range("2024-01-04", periods=3)
    nothing = {"c": np.full(3, np.nan), "d": np.full(3, np.nan), "v": np.array([None] * 3, object)}
    blocks = [nothing, {"c": pd.Series(["a", "a", "b"]), "d": pd.Series(days), "v": np.array([1.5, 1.5, 2])}]
    x, _ = written(tmp_path, blocks, missing={"c": "most_frequent", "d": "median", "v": 9})
    np.testing.assert_array_equal(x, [[1, 0, 1, 9]] * 3 + [[1, 0, 0, 1.5], [1, 0, 1, 1.5], [0, 1, 2, 2]])


def test_large_whole_numbers_warn(tmp_path, caplog):
    written(tmp_path, pd.DataFrame({"id": 2**24 + np.arange(9), "v": range(9)}))
    assert "id: integers beyond 16,777,216 lose digits" in caplog.text


FITTED = Encoders(
    [Encoder("n", "number", fill=1.0), Encoder("c", "onehot", ("a", "b")), Encoder("d", "date", origin=19000.0)]
)


FRAME = {"n": np.array([1.0, 2]), "c": np.array(["a", "b"]), "d": np.array(["2022-01-08", "2022-01-09"], "M8[D]")}


@pytest.mark.parametrize("make", [dict, pd.DataFrame])
def test_predictions_encode_mappings_and_frames(make):
    np.testing.assert_array_equal(FITTED.apply(make(FRAME)), [[1, 1, 0, 0], [2, 0, 1, 1]])


@pytest.mark.parametrize("cell", [[1, 2], {"one": 1}, {1, 2}])
def test_cells_of_several_values_are_refused(tmp_path, cell):
    frame = pd.DataFrame({"a": [cell] * 4, "b": range(4)})
    with pytest.raises(DataError, match=rf"column 'a': has several values in a cell \({type(cell).__name__}\)\. Make"):
        shard(frame, np.arange(4), tmp_path / "shards")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"c": np.array(["a", "z"])}, "column 'c', row 1: the category 'z' was not in the training data"),
        ({"c": np.array(["a", None], object)}, r"column 'c', row 1: is missing \(1 of 2 rows\)"),
        ({"c": FRAME["d"]}, "column 'c': holds dates, but the net was trained with categories"),
        ({"n": np.array([1, np.inf])}, "column 'n', row 1: is infinite"),
        ({"n": np.array(["1", "2"])}, "column 'n': holds texts, but the net was trained with numbers"),
        ({"d": np.array([1.0, 2.0])}, "column 'd': holds numbers, but the net was trained with dates"),
        ({"c": None, "C": FRAME["c"]}, r"column 'c': is not there, .* Did you mean C\?"),
    ],
)
def test_what_predictions_refuse(change, said):
    with pytest.raises(DataError, match=said):
        FITTED.apply({name: values for name, values in {**FRAME, **change}.items() if values is not None})


@pytest.mark.parametrize(
    ("value", "known", "said"),
    [
        ("Ko\u0308ln", "K\u00f6ln", "the Unicode form NFC"),
        ("K\u00f6ln", "Ko\u0308ln", "the Unicode form NFD"),
        ("\ufb01n", "fin", "the Unicode form NFKC"),
    ],
)
def test_texts_that_differ_in_their_unicode_form_are_told(value, known, said):
    assert nearest(value, ["Bonn", known]) == f"Did you mean {known} in {said} (unicodedata.normalize)?"
    assert nearest("Bon", ["Bonn", known]) == "Did you mean Bonn?"


def test_unknown_categories_can_be_zeros(tmp_path):
    frame = pd.DataFrame({"c": ["a", "b"], "o": ["u", "v"]})
    _, manifest = written(tmp_path, frame, encode={"o": "ordinal"}, unknown="zeros")
    encoders = manifest.encoders
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
        (None, "must be a list"),
    ],
)
def test_encoders_of_foreign_manifests_are_checked(change, said):
    entries = FITTED.to_json()
    assert Encoders.from_json(json.loads(json.dumps(entries))) == FITTED
    entries[1] |= change or {}
    with pytest.raises(DataError, match=said):
        Encoders.from_json("abc" if change is None else entries)


EVEN, NAMES = np.arange(20) % 2, ("a", "b", "c")
MAPS = np.arange(20 * 6).reshape(20, 2, 3) % 2
TEXTS = ["dog", "cat", "dog", "emu"] * 5


@pytest.mark.parametrize(
    ("y", "settings", "found", "numbers", "said"),
    [
        *(
            (make(TEXTS), {}, ("label", "int64", ("cat", "dog", "emu")), [1, 0, 1, 2] * 5, "")
            for make in (np.array, partial(np.array, dtype=object), pd.Series, pd.Categorical, np.bytes_)
        ),
        (EVEN == 0, {}, ("label", "int64", ("False", "True")), EVEN == 0, ""),
        *(
            ((np.arange(20) % 4).astype(dtype)[:, None], {}, ("label", "int64", 4), np.arange(20) % 4, "")
            for dtype in ("int8", "uint8", "int64", "uint64")
        ),
        (
            np.array([-1, 7, 30])[np.arange(30) % 3],
            {},
            ("label", "int64", ("-1", "7", "30")),
            np.arange(30) % 3,
            "the labels are not 0 to 2, but -1 to 30",
        ),
        (np.linspace(0, 1, 90), {}, ("target", "float64", None), np.linspace(0, 1, 90), ""),
        (1.0 * EVEN, {}, ("target", "float64", None), EVEN, "holds only 2 different numbers (0, 1)"),
        (1.0 * MAPS, {}, ("target", "float64", None), MAPS, "holds only 2 different numbers (0, 1)"),
        (1.0 * MAPS, {"roles": {"label": Role.TARGET}}, ("target", "float64", None), MAPS, ""),
        (1.0 * EVEN, {"roles": {"label": Role.LABEL}}, ("label", "int64", 2), EVEN, ""),
        (np.arange(60).reshape(20, 3), {}, ("target", "int64", None), np.arange(60).reshape(20, 3), ""),
        (np.arange(20) * 10, {"roles": {"label": Role.TARGET}}, ("target", "int64", None), np.arange(20) * 10, ""),
        (np.arange(100), {"roles": {"label": Role.LABEL}}, ("label", "int64", 100), np.arange(100), ""),
        (EVEN, {"classes": {"label": NAMES}}, ("label", "int64", NAMES), EVEN, ""),
        (np.array(["c", "a"] * 10), {"classes": {"label": NAMES}}, ("label", "int64", NAMES), [2, 0] * 10, ""),
    ],
)
def test_labels_and_targets_are_told_by_their_values(tmp_path, caplog, y, settings, found, numbers, said):
    columns = {"x": np.arange(float(len(y))), "label": y}
    (manifest,) = write_rows(tmp_path / "out", columns, (7,), y=("label",), **settings).values()
    column, got = manifest.column("y"), stored(manifest)
    assert (column.role, column.dtype, column.classes) == found
    np.testing.assert_array_equal(got["y"][np.argsort(got["x"])], numbers)
    assert said in caplog.text and bool(said) == bool(caplog.records)


def test_whole_and_broken_numbers_are_targets_together(tmp_path):
    blocks = [{"x": np.arange(2.0), "y": np.array(y)} for y in ([1, 2], [1.5, 2])]
    (manifest,) = write_rows(tmp_path / "out", blocks, y=("y",), shuffle=False).values()
    np.testing.assert_array_equal(stored(manifest)["y"], [1, 2, 1.5, 2])


SORTED = np.sort(np.arange(40) % 4)


@pytest.mark.parametrize(
    ("y", "shuffle", "warned"),
    [
        (SORTED, False, True),
        (SORTED.astype(str), False, True),
        (SORTED, True, False),
        (SORTED[::-1], False, False),
        (np.roll(SORTED, 12), False, False),
    ],
)
def test_sorted_labels_that_are_not_shuffled_warn(tmp_path, caplog, y, shuffle, warned):
    columns = {"x": np.arange(40.0), "y": y}
    (manifest,) = write_rows(tmp_path / "out", columns, (5, 12, 20), y=("y",), shuffle=shuffle).values()
    assert ("the labels 'y' are sorted, and the samples are not shuffled" in caplog.text) == warned
    assert len(manifest.notes) == warned


def test_a_text_of_its_own_in_every_sample_is_told(tmp_path, caplog):
    frame = pd.DataFrame({"id": [f"S{i}" for i in range(30)], "kind": ["a", "b"] * 15, "v": np.arange(30.0)})
    shard(frame, np.arange(30.0) / 7, tmp_path / "out", durable=False)
    assert "id: has another text in every sample" in caplog.text and "--drop" in caplog.text
    assert "kind" not in caplog.text


NAIVE = pd.Series(pd.date_range("2024-06-01", periods=6, freq="h"))
SPANS = pd.Series(pd.to_timedelta(range(6), "h"))
KINDS_OF_TIME = {"date": NAIVE, "zoned date": NAIVE.dt.tz_localize("Europe/Berlin"), "timedelta": SPANS}
KINDS_OF_TIME["number"] = pd.Series(np.arange(6.0))


@pytest.mark.parametrize("objects", [False, True])
@pytest.mark.parametrize("before", KINDS_OF_TIME)
def test_dates_zoned_dates_timedeltas_and_numbers_are_not_taken_for_each_other(tmp_path, before, objects):
    column = KINDS_OF_TIME[before]
    made = shard(pd.DataFrame({"t": column}), np.arange(6.0), tmp_path / "out", shuffle=False)[""]
    x, _ = load(tmp_path / "out")
    assert made.encoders[0].kind == before
    for kind, values in KINDS_OF_TIME.items():
        given = pd.DataFrame({"t": values.astype(object) if objects else values})
        if kind == before:
            np.testing.assert_allclose(made.encoders.apply(given), x)
            continue
        with pytest.raises(DataError, match=f"column 't': holds {kind}s, but the net was trained with {before}s"):
            made.encoders.apply(given)
        with pytest.raises(DataError, match=f"column 't': holds {kind}s, but the training samples {before}s"):
            shard(given, np.arange(6.0), tmp_path / "other", like=made)


def test_objects_that_mix_dates_with_and_without_a_time_zone_are_refused(tmp_path):
    mixed = pd.Series([*NAIVE.astype(object), KINDS_OF_TIME["zoned date"][0]], dtype=object)
    with pytest.raises(DataError, match="The column mixes dates with a time zone, without one"):
        shard(pd.DataFrame({"t": mixed}), np.arange(7.0), tmp_path / "out")


def test_dates_are_no_categories(tmp_path):
    with pytest.raises(DataError, match="column 't': holds dates, which cannot be categories"):
        shard(pd.DataFrame({"t": NAIVE}), np.arange(6.0), tmp_path / "out", encode={"t": "onehot"})


# With the encoders and classes of a folder


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


@pytest.mark.parametrize(
    ("column", "note"),
    [
        (
            [f"{i},{i % 10}" for i in range(30)] * 2,
            r"c: holds texts that look like numbers, such as '0,0', .* 30 categor",
        ),
        ([f"{i} %" for i in range(30)] * 2, "look like numbers, such as '0 %'"),
        ([f"{i} days 07:00:00" for i in range(30)] * 2, "look like numbers, such as '0 days 07:00:00'"),
        ([f"({i}+1j)" for i in range(30)] * 2, r"look like numbers, such as '\(0\+1j\)'"),
        ([f"1.{i:03d},50" for i in range(30)] * 2, r"look like numbers, such as '1\.000,50'"),
        (
            [f"{i + 1:02d}.01.2024" for i in range(30)] * 2,
            r"c: .* look like dates, such as '01\.01\.2024', .* 30 categ.* --date c=%d\.%m\.%Y .*to_datetime",
        ),
        ([f"1/{i + 1}/24" for i in range(30)] * 2, "--date c=%m/%d/%y "),
        ([f"2024-01-{i + 1:02d} 10:00" for i in range(30)] * 2, "--date c=%Y-%m-%d %H:%M "),
        ([f"10.0.0.{i}" for i in range(30)] * 2, ""),
        (["a1", "b2"] * 30, ""),
        ([1.7e9 + 30 * i for i in range(60)], "column 'c' has values far from 0 that differ little"),
        ([float(i) for i in range(60)], ""),
    ],
)
def test_columns_that_are_not_what_they_seem_are_named(tmp_path, caplog, column, note):
    frame = pd.DataFrame({"c": column, "d": np.arange(60.0)})
    notes = "; ".join(shard(frame, np.arange(60) / 2, tmp_path / "out")[""].notes)
    assert re.search(note, notes) if note else not notes
    if "--date" in note:
        assert not shard(frame, np.arange(60) / 2, tmp_path / "given", encode={"c": "onehot"})[""].notes


FLOATS = {
    "whole": ([0.0, 1.0, 1.0], Role.LABEL, "float64"),
    "of 32 bits": ([3.0, 1.0, 1.0], Role.LABEL, "float32"),
    "later ones": ([0.0, 1.0] * 40_000 + [0.5], "--target", "float64"),
    "broken": ([0.5, 1.0, 1.0], Role.TARGET, "float64"),
    "missing": ([0.0, None, 1.0], "missing", "float64"),
    "decimals": ([Decimal("0.0"), Decimal("1.0"), Decimal("1.0")], Role.LABEL, None),
}


@pytest.mark.parametrize(
    ("kind", "case"),
    [*(("parquet", case) for case in FLOATS), ("csv", "whole"), ("csv", "broken"), ("csv", "missing")],
)
def test_floats_that_are_whole_are_labels_where_that_is_said(tmp_path, kind, case):
    values, role, dtype = FLOATS[case]
    frame = pd.DataFrame({"a": np.arange(len(values)), "y": pd.Series(values, dtype=dtype)})
    path = tmp_path / f"a.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path, index=False)
    if isinstance(role, Role):
        (manifest,) = shard_files(kind, tmp_path / "s", source=path, label="y").values()
        assert manifest.column("y").role is role
    else:
        with pytest.raises(DataError, match=role):
            shard_files(kind, tmp_path / "s", source=path, label="y")
