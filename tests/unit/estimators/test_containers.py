"""The same samples in other containers, and what an estimator would take for something else."""

import re

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zarr

from singa_dask import Classifier, Regressor, shard, updaters
from singa_dask.errors import ConfigError, DataError
from singa_dask.layers import InnerProduct

N = 40
DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(N, 3))
Y = X @ [1, 2, -1.0] * 10 + 5
KINDS = np.where(X[:, 0] > 0, "red", "blue")
DAYS = pd.Timestamp("2020-02-01") + pd.to_timedelta(DRAW.integers(0, 90, N), unit="D")
TABLE = pd.DataFrame({"a": X[:, 0], "kind": KINDS, "day": DAYS, "level": pd.Categorical(KINDS == "red")})
FEW = [3, 1, 2]
WEIGHTS = DRAW.uniform(0.5, 1.5, N)


def regressor(**settings):
    return Regressor([InnerProduct(num_output=1)], updater=updaters.SGD(lr=0.1), epochs=2, random_state=0, **settings)


def lazy(values):
    if isinstance(values, np.ndarray):
        return da.from_array(values, chunks=(10, *values.shape[1:]))
    return dd.from_pandas(values, npartitions=2, sort=False)


def equal(first, second):
    for name, value in first.model_.state_dict().items():
        np.testing.assert_allclose(second.model_.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def predicted(fitted, x):
    return np.asarray(fitted.predict(x)).reshape(-1)


HELD = {"pandas": lambda x: x, "pyarrow": pa.Table.from_pandas, "Dask": lazy}


@pytest.mark.parametrize("fitted_to", [*HELD])
def test_columns_of_texts_and_dates_are_encoded_whatever_holds_them(fitted_to):
    y = lazy(pd.Series(Y, name="y")) if fitted_to == "Dask" else Y
    first, second = regressor().fit(TABLE, Y), regressor().fit(HELD[fitted_to](TABLE), y)
    equal(first, second)
    assert [each.kind for each in first._known().encoders] == ["number", "onehot", "date", "onehot"]
    assert second.feature_names_in_.tolist() == [*TABLE.columns]
    for held in HELD.values():
        np.testing.assert_allclose(predicted(second, held(TABLE.iloc[FEW])), predicted(first, TABLE)[FEW], rtol=1e-5)
    with pytest.raises(DataError, match="column 'kind', row 0: the category 'violet' was not in the training data"):
        second.predict(TABLE.assign(kind="violet"))


def test_a_validation_set_and_later_calls_are_encoded_as_the_first():
    table, rest = TABLE.iloc[:30], TABLE.iloc[30:]
    fitted = Classifier(epochs=1, random_state=0, validation=(rest, KINDS[30:])).fit(table, KINDS[:30])
    assert fitted.score(rest, KINDS[30:]) <= 1
    going = regressor().partial_fit(table, Y[:30])
    encoders = going._known().encoders
    going.partial_fit(TABLE[TABLE.kind == "red"].assign(day=DAYS[0]), Y[KINDS == "red"])
    assert going._known().encoders == encoders


@pytest.mark.parametrize("names", [[0, 1, 2], [("a", 1), ("a", 2), ("b", 1)]], ids=["numbers", "tuples"])
@pytest.mark.parametrize("text", [False, True])
def test_columns_whose_names_are_no_texts_are_not_confused(names, text):
    table = pd.DataFrame(X, columns=names if isinstance(names[0], int) else pd.MultiIndex.from_tuples(names))
    if text:
        table[names[1]] = KINDS
    fitted = regressor().fit(table, Y)
    turned = table[[names[2], names[0], names[1]]]
    np.testing.assert_allclose(predicted(fitted, lazy(turned)), predicted(fitted, table), rtol=1e-5)
    with pytest.raises(ValueError, match="The feature names should match those that were passed during fit"):
        fitted.predict(turned)


def test_tables_of_numbers_are_arrays_with_names():
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    first = regressor(missing="mask").fit(X, Y)
    for held in (table, table.convert_dtypes()):
        equal(first, regressor(missing="mask").fit(held, Y))
    with pytest.raises(ValueError, match="X: column 'b' holds str, such as 'red', and must be of numbers, as in fit"):
        first.predict(table.assign(b="red"))


def test_an_array_does_not_stand_for_texts_or_dates():
    fitted = regressor().fit(TABLE[["a", "day"]], Y)
    days = (DAYS - pd.Timestamp(0)).days.to_numpy(float)
    for array in (np.stack([X[:, 0], days], 1), lazy(np.stack([X[:, 0], days], 1))):
        with pytest.raises(ValueError, match="X must be a DataFrame with the columns a, day, as in fit, where"):
            fitted.predict(array)
    numbers = regressor().fit(pd.DataFrame(X, columns=["a", "b", "c"]), Y)
    expected = predicted(numbers, pd.DataFrame(X, columns=["a", "b", "c"]))
    np.testing.assert_allclose(predicted(numbers, lazy(X)), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.stack([X[:, 0].astype(str), KINDS], 1), r"X\[0, 0\] is the text '.*', and must be a number. Give a Data"),
        ([[1.0, "red"], [2.0, "blue"]], r"X\[0, 0\] is the text '1.0'"),
        (np.array([[1.5, 2], ["01067", 3]], object), r"X\[1, 0\] is the text '01067'"),
        (DAYS.values[:, None], "X holds datetime64.*, and must hold numbers. Give a DataFrame"),
        ((DAYS - DAYS[0]).values[:, None], "X holds timedelta64"),
    ],
)
def test_arrays_of_texts_and_dates_are_refused(x, words):
    with pytest.raises(ValueError, match=words):
        regressor().fit(x, Y[: len(x)])
    with pytest.raises(ValueError, match=words):
        regressor().fit(X[:, : np.shape(x)[1]], Y).predict(x)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (Y.astype(str), r"y\[0\] is the text '.*', and must be a number"),
        (pd.Series(Y.astype(str)), r"y\[0\] is the text"),
        (np.full((N, 2, 2), "1.5"), r"y\[0, 0, 0\] is the text '1.5'"),
        (DAYS.values, "y holds datetime64"),
        (pd.Series(DAYS), "y holds datetime64"),
        ((DAYS - DAYS[0]).values, "y holds timedelta64"),
        (np.full((N, 2, 2), 1j), "Complex data not supported"),
        (None, "requires y to be passed"),
    ],
)
def test_targets_are_numbers(y, words):
    with pytest.raises(ValueError, match=words):
        regressor().fit(X, y)


@pytest.mark.parametrize(
    "y",
    [
        np.where(KINDS == "red", None, KINDS),
        pa.array([None, *KINDS[1:]]),
        pd.Series(["a", pd.NA] * (N // 2), dtype="string"),
        pd.Series(pd.Categorical(["a", None] * (N // 2))),
        np.where(np.arange(4) < 2, None, np.full((N, 4, 4), "a")),
        np.where(np.arange(4) < 2, np.nan, np.ones((N, 4, 4))),
    ],
    ids=["None", "pyarrow", "NA", "category", "maps of texts", "maps of numbers"],
)
def test_missing_labels_are_named(y):
    with pytest.raises(ValueError, match=r"Input y has missing labels|Input y contains NaN"):
        Classifier(epochs=1).fit(X, y)


def test_masked_weights_are_missing():
    with pytest.raises(ValueError, match="sample_weight contains NaN"):
        regressor().fit(X, Y, np.ma.masked_array(WEIGHTS, X[:, 1] > 1))


@pytest.mark.parametrize("factor", [1, 20])
def test_weights_say_how_much_samples_count_in_proportion(factor):
    def fitted(x, y, weight):
        return regressor(batch_size=N).fit(x, y, weight)

    first = fitted(X, Y, WEIGHTS)
    for held in (np.asarray, lazy):
        equal(first, fitted(held(X), held(Y), held(WEIGHTS * factor)))


def test_weights_of_several_calls_count_as_they_are():
    def fitted(weight):
        going = regressor().partial_fit(X, Y)
        return going.partial_fit(X, -Y, None if weight is None else np.full(N, weight))

    before, little, whole = (fitted(weight).predict(X[:1])[0] for weight in (1e-6, 0.5, 1.0))
    assert abs(whole - before) > 1.5 * abs(little - before) > 0
    np.testing.assert_allclose(fitted(None).predict(X[:1])[0], whole, rtol=1e-6)
    with pytest.raises(ValueError, match=re.escape('class_weight="balanced" is not for partial_fit')):
        Classifier(class_weight="balanced").partial_fit(X, KINDS, classes=["blue", "red"])


def test_images_of_dask_are_those_of_numpy():
    images, labels = DRAW.normal(size=(N, 4, 4, 4)), X[:, 0] > 0
    first, second = (
        Classifier(epochs=1, channels="last", random_state=0).fit(held(images), held(labels))
        for held in (np.asarray, lazy)
    )
    equal(first, second)
    with pytest.raises(ValueError, match=r"X has samples of shape \(64,\), but it was fitted to \(4, 4, 4\)"):
        first.predict(lazy(images.reshape(N, -1)))
    with pytest.raises(ValueError, match=r"X must have samples of features, \(N, D\). Received: the shape \(40,\)"):
        first.fit(lazy(images[:, 0, 0, 0]), lazy(labels))


def test_classes_are_those_of_the_net_and_of_the_first_call():
    fitted = Classifier([InnerProduct(num_output=3)], epochs=1, random_state=0).fit(X, KINDS)
    for call in (fitted.predict, fitted.predict_proba):
        with pytest.raises(ValueError, match=r"the net has 3 outputs, and y had 2 classes: \['blue', 'red'\]"):
            call(X)
    going = Classifier(random_state=0).partial_fit(X, KINDS, classes=["red", "blue"])
    going.partial_fit(X, KINDS, classes=["blue", "red"])
    with pytest.raises(ValueError, match=r"classes must be those of the first call to partial_fit, \['blue', 'red'\]"):
        going.partial_fit(X, KINDS, classes=["blue", "green"])


@pytest.mark.parametrize("how", ["fit", "shard", "weight"])
def test_rows_with_other_labels_are_refused(tmp_path, how):
    x = pd.DataFrame({"a": np.arange(20.0)}, index=np.arange(20)[::-1])
    y = pd.Series(np.linspace(0, 1, 20), x.index)
    other = y.sort_index().set_axis(range(1, 21))
    use = {
        "fit": lambda other: Regressor(epochs=1).fit(x, other),
        "shard": lambda other: shard(x, other, tmp_path / "out", overwrite=True),
        "weight": lambda other: shard(x, y, tmp_path / "out", sample_weight=other, overwrite=True),
    }[how]
    with pytest.raises(
        DataError, match=r"has the label 1 where X has 19, .*\.loc\[X\.index\]; or leave out the index"
    ):
        use(other)
    for right in (y, y.sort_index(), other.to_numpy(), other.reset_index(drop=True).set_axis(range(20))):
        use(right)


def in_groups():
    group = zarr.open_group(zarr.storage.MemoryStore(), mode="w")
    for name, shape in (("lat", (3,)), ("u", (9, 3)), ("v", (9, 3))):
        group.create_array(name, data=np.ones(shape))
    return group


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (
            lambda: X,
            r"X must be a DataFrame with the columns a, kind, day, level, as in fit.*ndarray of shape \(40, 3\)",
        ),
        (lambda: TABLE.to_dict("list"), r"must be an array or a DataFrame\. Give pandas.DataFrame\(X\)"),
        (
            lambda: {"a": np.ones((9, 3))},
            r"must be an array or a DataFrame\. Give one of its arrays, such as X\['a'\]\.",
        ),
        (in_groups, r"several as channels: numpy.stack\(\[X\['u'\], X\['v'\]\], axis=-1\)\. Of a file"),
        (lambda: pd.concat([TABLE, TABLE[["a"]]], axis=1), "several columns are named 'a'"),
    ],
)
@pytest.mark.parametrize("call", ["predict", "partial_fit"])
def test_what_is_no_such_table_is_named(x, told, call):
    fitted = regressor().partial_fit(TABLE, Y)
    with pytest.raises(ValueError, match=told):
        fitted.predict(x()) if call == "predict" else fitted.partial_fit(x(), Y)


def test_columns_of_sparse_values_are_columns_of_numbers():
    fitted = regressor().fit(TABLE, Y)
    sparse = TABLE.assign(a=pd.arrays.SparseArray(TABLE.a.to_numpy()))
    np.testing.assert_array_equal(predicted(fitted, sparse), predicted(fitted, TABLE))


def test_missing_values_weights_of_positions_and_one_hot_maps_are_named():
    with pytest.raises(
        ValueError, match=r'contains NaN: it has missing values\. Say what replaces them: missing="mean"'
    ):
        regressor().fit(np.where(X > 1, np.nan, X), Y)
    maps = (DRAW.normal(size=(8, 4, 4)) > 0).astype(int)
    with pytest.raises(ValueError, match=r"is one-hot, \(8, 4, 4, 2\)\. Give y\.argmax"):
        Classifier(epochs=1).fit(maps[..., np.newaxis] * 1.0, np.eye(2, dtype=int)[maps])
    with pytest.raises(ValueError, match=r"sample_weight must be \(N,\)"):
        Classifier(epochs=1).fit(maps[..., np.newaxis] * 1.0, maps, sample_weight=np.ones(maps.shape))


def test_like_may_be_a_path(tmp_path):
    shard(TABLE, Y, tmp_path / "a")
    assert shard(TABLE, Y, tmp_path / "b", like=str(tmp_path / "a"))[""].encoders.names


def test_epochs_of_partial_fit_add_up_and_one_class_must_count():
    net, y = Classifier(random_state=0), X[:, 0] > 0
    assert [net.partial_fit(X, y, classes=[False, True]).n_iter_ for _ in range(2)] == [1, 2]
    with pytest.raises(ConfigError, match="class_weight: is 0 for all classes of y"):
        Classifier(class_weight={False: 0, True: 0}).fit(X, y)
