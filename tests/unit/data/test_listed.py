"""Lists of samples whose members are tables, DataArrays, Datasets or arrays of files."""

import numpy as np
import pandas
import pytest

from singa_dask import shard
from singa_dask.data.listed import listed, together
from singa_dask.data.schema import Along
from singa_dask.errors import DataError

pyarrow, xarray = pytest.importorskip("pyarrow"), pytest.importorskip("xarray")

DRAW = np.random.default_rng(0)
NAMES = ["a", "b", "c"]
VALUES = [DRAW.normal(size=(steps, 3)) for steps in (3, 5, 3)]
TIMES = pandas.date_range("2024-01-01", periods=5, freq="h")


def frame(values, names=NAMES):
    return pandas.DataFrame(values, columns=NAMES)[[*names]]


def array(values, names=NAMES, **attrs):
    return xarray.DataArray(values, {"f": NAMES}, ("time", "f"), attrs=attrs).sel(f=[*names])


def dataset(values, names=NAMES):
    return xarray.Dataset({name: ("time", values[:, NAMES.index(name)]) for name in names})


KINDS = {
    "DataFrame": frame,
    "pyarrow table": lambda *of: pyarrow.Table.from_pandas(frame(*of), preserve_index=False),
    "record batch": lambda *of: pyarrow.RecordBatch.from_pandas(frame(*of), preserve_index=False),
    "DataArray": array,
    "DataArray, features first": lambda *of: array(*of).transpose("f", "time"),
    "Dataset": dataset,
    "DataArray of other dimensions": lambda *of: array(*of).rename(time="step", f="band"),
}


def along_of(make):
    return listed([make(each) for each in VALUES], "X").labels.along


@pytest.mark.parametrize("names", ["cba", "bac"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trained", [name for name in KINDS if "features" not in name])
def test_samples_are_those_of_training_by_their_names(trained, kind, names):
    given = [KINDS[kind](each, names) for each in VALUES]
    arrays = "DataArray" in trained and "DataArray" in kind
    if arrays and ("other" in trained) != ("other" in kind):
        with pytest.raises(DataError, match="Rename or select the dimensions"):
            listed(given, "X", along_of(KINDS[trained]))
        return
    found = listed(given, "X", along_of(KINDS[trained])).values
    for one, other in zip(found, VALUES, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", [name for name in KINDS if "other" not in name and "features" not in name])
def test_samples_are_like_the_first_one(kind):
    order = [NAMES, "cba", "bca"]
    found = listed([KINDS[kind](each, names) for each, names in zip(VALUES, order, strict=True)], "X").values
    for one, other in zip(found, VALUES, strict=True):
        np.testing.assert_array_equal(one, other)


def timed(make, times, values=VALUES[1]):
    of = make(values[: len(times)])
    return of.set_axis(times) if hasattr(of, "set_axis") else of.assign_coords(time=times)


@pytest.mark.parametrize("make", [frame, array, dataset])
@pytest.mark.parametrize(
    ("times", "message"),
    [
        (TIMES[::-1], r"X\[1\]: its times do not rise"),
        (TIMES[[0, 2, 1]], r"X\[1\]: its times do not rise"),
        (TIMES[:3] + pandas.to_timedelta([0, 1, 2], "h"), r"X\[1\]: steps by 2:00:00, and by 1:00:00 in training"),
    ],
)
def test_times_rise_and_step_as_in_training(make, times, message):
    given = [timed(make, TIMES), timed(make, TIMES[:2])]
    along = listed(given, "X").labels.along
    assert len(listed([timed(make, TIMES + pandas.Timedelta("9h"))], "X", along).values) == 1
    with pytest.raises(DataError, match=message):
        listed([given[0], timed(make, times)], "X", along)


def test_steps_of_no_regular_training_are_not_compared():
    visits = TIMES[[0, 1, 4]]
    along = listed([timed(frame, visits), timed(frame, TIMES[:2])], "X").labels.along
    assert len(listed([timed(frame, TIMES[::2])], "X", along).values) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([array(VALUES[0]), array(VALUES[1]).assign_coords(f=[*"xyz"])], "along 'f' are x, y, z, but were a, b, c"),
        ([array(VALUES[0], units="K"), array(VALUES[1], units="degC")], r"X\[1\]: has the units 'degC', but 'K'"),
        ([frame(VALUES[0]), frame(VALUES[1]).rename(columns={"b": "e"})], r"X\[1\] lacks the columns b"),
        ([frame(VALUES[0]), array(VALUES[1]).assign_coords(f=[*"xyz"])], "are x, y, z, but were a, b, c in X.0."),
        ([array(VALUES[0]), frame(VALUES[1]).set_axis([*"xyz"], axis=1)], r"X\[1\] lacks the columns a, b, c"),
        ([array(VALUES[0]), array(VALUES[0]).rename(f="g")], r"X\[1\]: has samples along time, g, but in X\[0\]"),
        ([np.zeros(3, [("a", "f4"), ("b", "f4")])], r"X\[0\]: is a structured array with the fields a, b"),
        ([dataset(VALUES[0]), dataset(VALUES[1])[["a", "b"]]], r"X\[1\] lacks the columns c"),
    ],
)
def test_other_samples_are_refused(given, message):
    with pytest.raises((DataError, ValueError), match=message):
        listed(given, "X")


@pytest.mark.parametrize("make", [pandas.Series, lambda values, names: xarray.DataArray(values, {"f": names}, "f")])
@pytest.mark.parametrize("other", [pandas.Series, lambda values, names: xarray.DataArray(values, {"f": names}, "f")])
def test_samples_that_are_rows_with_names(make, other):
    rows = [make(values, NAMES) for values in VALUES[0]]
    along = listed(rows, "X").labels.along
    found = listed([other(values[[2, 0, 1]], [*"cab"]) for values in VALUES[0]], "X", along)
    np.testing.assert_array_equal(found.values, VALUES[0])
    with pytest.raises(DataError, match=r"X\[1\]: the coordinates along .* are x, y, z, but were a, b, c"):
        listed([rows[0], other(VALUES[0][1], [*"xyz"])], "X", along)


def test_steps_with_words_stay_in_their_order():
    words = [array(VALUES[0]).assign_coords(time=[*order]) for order in ("uvw", "wuv", "xyz")]
    along = listed(words, "X").labels.along
    for found in (listed(words, "X").values, listed(words, "X", along).values):
        np.testing.assert_array_equal(found, [VALUES[0]] * 3)


def test_steps_with_numbers_are_turned_where_these_are_the_same():
    depths = [array(VALUES[1]).assign_coords(time=[10.0, 20, 30, 40, 50]), array(VALUES[2])]
    along = listed(depths, "X").labels.along
    np.testing.assert_array_equal(listed([depths[0][::-1]], "X", along).values[0], VALUES[1])
    for other, message in (
        (np.arange(5.0)[::-1], "are falling from 4 to 0"),
        (np.arange(5.0), "steps by 1, and by 10"),
    ):
        with pytest.raises(DataError, match=message):
            listed([depths[0].assign_coords(time=other)], "X", along)


def test_without_names_the_places_count():
    texts = np.array([*"abc"], object)
    for plain in ([*VALUES], VALUES[0], texts, xarray.DataArray(texts), pandas.Series(texts), [1, 2], []):
        assert listed(plain, "X") is None
    along, unnamed = along_of(array), pandas.DataFrame(VALUES[0])
    for given in (VALUES[0], unnamed):
        found = listed([array(VALUES[1], "cba"), given], "X", along)
        np.testing.assert_array_equal(found.values[-1], VALUES[0])


def test_samples_of_one_shape_are_one_array():
    whole, along, _ = together([frame(VALUES[0]), frame(VALUES[2], "cab")], "X")
    np.testing.assert_array_equal(whole, np.stack([VALUES[0], VALUES[2]]))
    assert along != Along()
    with pytest.raises(DataError, match=r"X\[0\] \(3, 3\) and X\[1\] \(5, 3\)"):
        together([*map(frame, VALUES)], "X")


def hours(step="h", rows=6, names=("a", "b")):
    index = pandas.date_range("2024-01-01", periods=rows, freq=step)
    return pandas.DataFrame(np.random.default_rng(0).normal(size=(rows, len(names))), index, [*names])


MADE = {
    "DataFrames": lambda of: of,
    "with a zone": lambda of: of.tz_localize("UTC"),
    "Datasets": lambda of: of.rename_axis("time").to_xarray(),
    "DataArrays": lambda of: of.rename_axis("time").to_xarray().to_dataarray("f").transpose("time", "f"),
}


@pytest.mark.parametrize("step", ["2h", "54min", "61min"])
@pytest.mark.parametrize("made", MADE)
def test_lists_of_another_step_are_refused_like_the_training_data(made, step, tmp_path):
    shard([MADE[made](hours())] * 4, np.arange(4.0), tmp_path / "s", progress=False)
    same = [MADE[made](hours().shift(freq="9D"))] * 4
    shard(same, np.arange(4.0), tmp_path / "same", like=tmp_path / "s", progress=False)
    with pytest.raises(DataError, match=r"x: steps by .*, and by 1:00:00 in training\. Resample it"):
        shard([MADE[made](hours(step))] * 4, np.arange(4.0), tmp_path / "t", like=tmp_path / "s", progress=False)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize(
    ("rows", "told"),
    [([0, 1, 2, 3, 4, 9], True), ([0, 1, 1, 2, 3, 4], True), ([0, 0, 1, 1, 2, 2], True), ([0, 1, 2, 3, 4, 5], False)],
)
def test_gaps_and_repeats_in_a_list_are_counted(made, rows, told, caplog):
    given = [MADE[made](each) for each in (hours(), hours(rows=10).iloc[rows], hours())]
    listed(given, "X")
    assert ("X: the times of 1 of 3 sequences have gaps or repeat, the first those of X[1]" in caplog.text) == told


def test_times_of_events_have_no_gaps(caplog):
    at = pandas.Timestamp("2024-01-01") + pandas.to_timedelta(np.cumsum([1, 5, 9, 2, 30, 7]), unit="min")
    listed([hours().set_axis(at)] * 3, "X")
    assert not caplog.records
