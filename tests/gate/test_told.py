"""What is refused in a sentence that says what was given and the way out, and what is taken as it is meant: tables."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV

from singa_dask import Classifier, Regressor, layers, load, shard, updaters
from singa_dask.data import shard_files
from singa_dask.errors import DataError

N = 24
X = np.random.default_rng(0).normal(size=(N, 3)).astype("f4")
TRUTHS = np.array([True, False] * (N // 2), dtype=object)
SOME = np.array([True, None, False] * (N // 3), dtype=object)
MIXED = np.array([1, "a"] * (N // 2), dtype=object)


def classifier(**given):
    return Classifier([layers.InnerProduct(num_output=2)], epochs=1, random_state=0, **given)


def lazily(y):
    import dask.array as da

    return da.from_array(X, chunks=(8, -1)), da.from_array(y, chunks=8)


LABELS = {"array": np.asarray, "Series": pd.Series, "nullable": lambda y: pd.Series(y, dtype="boolean")}


@pytest.mark.parametrize("container", LABELS)
def test_booleans_are_labels_and_may_not_be_missing(tmp_path, container):
    made = shard(X, LABELS[container](TRUTHS), tmp_path / "s")[""]
    assert made.targets.classes == ("False", "True")
    with pytest.raises(DataError, match=r"'y': 8 label\(s\) are missing, the first in sample 1. Leave out"):
        shard(X, LABELS[container](SOME), tmp_path / "t")
    with pytest.raises(ValueError, match="missing labels"):
        classifier().fit(X, LABELS[container](SOME))


@pytest.mark.parametrize("given", [lambda y: (X, y), lambda y: (X, pd.Series(y)), lazily])
def test_labels_are_of_one_type(tmp_path, given):
    with pytest.raises(ValueError, match=r"y mixes the text 'a' and the int 1. .*y.astype\(str\)"):
        classifier().fit(*given(MIXED))
    with pytest.raises(DataError, match=r"'a' is of another type than those before\. The column mixes int, str\."):
        shard(*given(MIXED), tmp_path / "s")
    classifier().fit(*given(MIXED.astype(str)))


def test_categories_of_booleans_are_those_of_booleans(tmp_path):
    table = pd.DataFrame({"a": X[:, 0], "b": TRUTHS.astype(bool)})
    categories = table.astype({"b": "category"})
    shard(categories, X[:, 1], tmp_path / "s", shuffle=False)
    net = Regressor([layers.InnerProduct(num_output=1)], epochs=1, random_state=0).fit(categories, X[:, 1])
    for other in (table, table.astype({"b": object}), table.astype({"b": "boolean"})):
        shard(other, X[:, 1], tmp_path / "t", like=tmp_path / "s", shuffle=False, overwrite=True)
        assert np.array_equal(*(load(tmp_path / name, "x") for name in "st"))
        assert np.array_equal(net.predict(other), net.predict(categories))
    shard(table, X[:, 1], tmp_path / "n")
    with pytest.raises(DataError, match=r"holds texts, but the training samples numbers\. Convert it: .* astype"):
        shard(categories, X[:, 1], tmp_path / "m", like=tmp_path / "n")
    numbers = Regressor([layers.InnerProduct(num_output=1)], epochs=1, random_state=0).fit(table, X[:, 1])
    with pytest.raises(ValueError, match=r"'b' holds object, such as 'True', .* infer_objects\(\)"):
        numbers.predict(table.astype({"b": object}))


SEPARATORS = {";": "--separator ';'", " ": "--separator ' '", "   ": "read_csv", "\t": r"--separator \$'\\t'"}


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("separator", SEPARATORS)
def test_another_separator_is_asked_for_first(tmp_path, separator, header):
    rows = [["a", "b", "y"]] * header + X.round(2).astype(str).tolist()
    (tmp_path / "t.csv").write_text("\n".join(map(separator.join, rows)))
    asked = rf"t.csv: has one column with the separator ','. .*{SEPARATORS[separator]}.* Otherwise: "
    with pytest.raises(DataError, match=asked):
        shard_files("csv", tmp_path / "s", source=str(tmp_path / "t.csv"), target="y" if header else "2")


def test_a_column_that_is_probably_several_is_noted(tmp_path):
    for separator, notes in ((";", 1), (" ", 0)):
        (tmp_path / "t.csv").write_text("\n".join(separator.join(pair) for pair in ["ab", *["cd", "ef"] * 9]))
        made = shard_files("csv", tmp_path / "s", source=str(tmp_path / "t.csv"), label="none", overwrite=True)[""]
        assert sum("Is the separator another one" in note for note in made.notes) == notes


def test_decimal_commas_are_named(tmp_path):
    (tmp_path / "t.csv").write_text("a;y\n0,5;1,5\n1,5;2,5\n")
    with pytest.raises(DataError, match=r"texts, such as '1,5', cannot be targets\. Write numbers with a decimal"):
        shard_files("csv", tmp_path / "s", source=str(tmp_path / "t.csv"), separator=";", target="y")


def test_settings_of_the_updater_are_parameters():
    y, given = (X[:, 0] > 0) * 1, updaters.SGD(lr=0.1, momentum=0.5)
    search = GridSearchCV(classifier(updater=given), {"updater__lr": [0.2, 0.3]}, cv=2).fit(X, y)
    best = search.best_estimator_.updater.proto
    assert round(best.learning_rate.base_lr, 6) == search.best_params_["updater__lr"] and best.momentum == 0.5
    assert round(given.proto.learning_rate.base_lr, 6) == 0.1, "clones share it"
    with pytest.raises(ValueError, match=r"updater__lr: updater is None, which has no settings. .*learning_rate"):
        classifier().set_params(updater__lr=0.1)
    with pytest.raises(ValueError, match=r"net__lr: net is .*, which has no settings"):
        classifier().set_params(net__lr=0.1)
    assert classifier().set_params(updater=given, updater__lr=0.4).updater.proto.momentum == 0.5


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        (updaters.SGD(lr=0.1), {"momentum": 0.5}),
        (updaters.SGD(learning_rate=updaters.schedules.Exponential(base_lr=0.1, change_freq=9)), {"momentum": 0.5}),
        (updaters.Adam(lr=0.1), {"beta1": 0.5}),
        (updaters.RMSProp(lr=0.1, rho=0.75), {"weight_decay": 0.5}),
        (updaters.RMSProp(lr=0.1, rho=0.5), {"lr": 0.25}),
    ],
)
def test_other_settings_of_the_updater_stay(given, settings):
    made = classifier(updater=given).set_params(**{f"updater__{name}": value for name, value in settings.items()})
    expected = copy.deepcopy(given.proto)
    for name, value in settings.items():
        holds = {"beta1": expected.adam_conf, "lr": expected.learning_rate}.get(name, expected)
        setattr(holds, {"lr": "base_lr"}.get(name, name), value)
    assert made.updater.proto == expected


@pytest.mark.parametrize("share", [np.float32(0.25), np.float64(0.25)])
def test_a_share_may_be_of_any_type_of_numbers(tmp_path, share):
    assert "validate" in set(classifier(validation=share).fit(X, (X[:, 0] > 0) * 1).history_.phase)
    assert shard(X, X[:, 0], tmp_path / "s", validation=share)["validation"].total == N / 4
    groups = {"validation_groups": {"g": share}, "split_data": {"g": np.arange(N)}}
    assert shard(X, X[:, 0], tmp_path / "g", **groups)["validation"].total == N / 4


PATTERNS = {"": 2, "/*/*.parquet": 2, "/**/*.parquet": 2, "/kind=[ab]/*": 2, "/kind=a/*": 0}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_keep_the_columns_that_folders_name(tmp_path, pattern):
    for kind in "ab":
        (tmp_path / "t" / f"kind={kind}").mkdir(parents=True)
        table = pd.DataFrame({"a": X[:, 0], "y": X[:, 1]})
        table.to_parquet(tmp_path / "t" / f"kind={kind}" / "part.parquet")
    made = shard_files("parquet", tmp_path / "s", source=f"{tmp_path}/t{pattern}", target="y")[""]
    assert made.encoders.names == ("a", "kind=a", "kind=b")[: 1 + PATTERNS[pattern]]
    with pytest.raises(DataError, match=r"no file matches this pattern. Name the files .*t/kind=\*/\*"):
        shard_files("parquet", tmp_path / "s", source=f"{tmp_path}/t/kind=*", target="y")


@pytest.mark.parametrize(("name", "read"), [("b.CSV", True), ("b.csv.gz", False), ("b.dat", False), ("_b.csv", None)])
def test_files_of_a_folder_that_are_not_read_are_told(name, read, tmp_path, caplog):
    for each in ("a.csv", name):
        (tmp_path / each).write_text("a,y\n0.5,1.5\n1.5,2.5\n")
    shard_files("csv", tmp_path / "out", source=str(tmp_path), target="y")
    assert len(load(tmp_path / "out")[0]) == (4 if read else 2)
    assert (f"1 file is left out, such as {name}" in caplog.text) is (read is False)


def test_a_dataset_of_numbers_and_dates_predicts_as_a_table():
    xarray = pytest.importorskip("xarray")
    table = xarray.Dataset({"a": ("n", np.arange(N) / N), "day": ("n", pd.date_range("2001", periods=N))})
    fitted = Regressor([layers.InnerProduct(num_output=1)], epochs=1, random_state=0).fit(table, table.a * 2)
    predicted = fitted.predict(table)
    assert predicted.dims == ("n",)
    np.testing.assert_allclose(predicted.values, fitted.model_.predict(table.to_dataframe())["y"], rtol=1e-5)


def test_a_lazy_table_of_polars_is_told_to_be_collected(tmp_path):
    lazy = type("LazyFrame", (), {"__module__": "polars.lazyframe.frame"})()
    with pytest.raises(DataError, match=r"Received: a LazyFrame\. Give X\.collect\(\)"):
        shard(lazy, np.zeros(N), tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "said"), [("csv", "folders such as k=2 name"), ("parquet", "'k' has the values that")]
)
def test_columns_that_folders_name_are_told(kind, said, tmp_path):
    for k in (1, 2):
        (tmp_path / "in" / f"k={k}").mkdir(parents=True)
        getattr(pd.DataFrame({"k": [5.0, 6.0], "y": [0.5, 1.5]}), f"to_{kind}")(
            tmp_path / "in" / f"k={k}" / f"a.{kind}", index=False
        )
    (made,) = shard_files(kind, tmp_path / "out", source=str(tmp_path / "in"), target="y").values()
    assert any(said in note for note in made.notes), made.notes
