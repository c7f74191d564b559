"""The times of samples, which no column of a table holds: a table of containers and faults."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from singa_dask import Job, Regressor, layers, load, load_model, shard, train, updaters
from singa_dask.cli import main
from singa_dask.data import Manifest, check_step, record_step, series_starts
from singa_dask.data.sharding import shard_files
from singa_dask.errors import ConfigError, DataError
from singa_dask.estimators.windows import check_order
from singa_dask.inference.sources import blocks_of
from singa_dask.monitor.progress import Display

xarray = pytest.importorskip("xarray")
N, T, H = 40, 3, 2
HOURS = pd.date_range("2024-03-30", periods=N, freq="h", name="time")
TABLE = pd.DataFrame({"now": np.arange(N, dtype=float), "temp": np.cos(np.arange(N))}, index=HOURS)
Given = Callable[[pd.DataFrame], Any]


def days_of(numbers: pd.DataFrame) -> Any:
    """The same with another coordinate than dates: days since the first one."""
    return numbers.set_axis((numbers.index - HOURS[0]) / pd.Timedelta("1D"))


@functools.total_ordering
class OtherCalendar:
    """A time as cftime has it, of which NumPy has no date."""

    calendar = "noleap"

    def __init__(self, time: Any) -> None:
        self.time = time

    def __sub__(self, other: Any) -> Any:
        return (self.time - other.time).to_pytimedelta()

    def __lt__(self, other: Any) -> bool:
        return bool(self.time < other.time)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OtherCalendar) and self.time == other.time

    def __hash__(self) -> int:
        return hash(self.time)


def indexed(make: Callable[[Any], Any]) -> Given:
    return lambda x: x.set_axis(make(x.index))


INDEXES: Mapping[str, Given] = {
    "dates": lambda x: x,
    "periods": indexed(lambda index: index.to_period("30min")),
    "time spans": indexed(lambda index: index - HOURS[0]),
    "objects of dates": indexed(lambda index: pd.Index(list(index.to_pydatetime()), dtype=object)),
    "texts": indexed(lambda index: index.strftime("%Y-%m-%d %H:%M")),
    "texts with a zone": indexed(lambda index: index.strftime("%Y-%m-%dT%H:%M+02:00")),
    "another calendar": indexed(lambda index: pd.Index([*map(OtherCalendar, index)], dtype=object)),
    "a level without a name": indexed(lambda index: pd.MultiIndex.from_arrays([[0] * len(index), index])),
}
CONTAINERS: Mapping[str, Given] = {
    "DataFrame": lambda x: x,
    "DataFrame in Berlin": lambda x: x.tz_localize("UTC").tz_convert("Europe/Berlin"),
    "DataFrame of numbered rows": days_of,
    "DataFrame of stations and times": lambda x: x.set_index(
        pd.Index([0] * len(x), name="station"), append=True
    ).swaplevel(),
    "Dataset": xarray.Dataset.from_dataframe,
    "DataArray": lambda x: xarray.DataArray(x.to_numpy(), {"time": x.index}, ("time", "value")),
    "DataArray of Dask": lambda x: CONTAINERS["DataArray"](x).chunk({"time": 16}),
    "Dask DataFrame": lambda x: dd.from_pandas(x, npartitions=3, sort=False),
    "mapping": lambda x: {"a": x["now"], "b": x["temp"]},
    **{f"DataFrame by {name}": make for name, make in INDEXES.items()},
}
# What becomes of the records, and what is said.
FAULTS: Mapping[str, tuple[Given, str]] = {
    "none": (lambda x: x, ""),
    "shuffled": (lambda x: x.iloc[np.random.default_rng(0).permutation(N)], r"order of time.*falls \d+ times"),
    "backwards": (lambda x: x[::-1], f"order of time.*falls {N - 1} times"),
    "a record missing": (lambda x: x.drop(HOURS[10]), "has 1 gap, which windows cross"),
    "several missing": (lambda x: x[np.arange(N) % 10 != 4], "has 4 gaps, which windows cross"),
    "a gap": (lambda x: x.drop(HOURS[10:20]), "has 1 gap, which windows cross"),
    "repeats": (lambda x: pd.concat([x[:9], x[8:]]), "repeats 1 times"),
}


def said(folder: Path, caplog: Any) -> str:
    """What reading windows of these shards says."""
    try:
        series_starts(Manifest.load(folder))
    except ConfigError as error:
        return str(error)
    return caplog.text


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_windows_know_the_times_of_every_container(container: str, fault: str, tmp_path: Path, caplog: Any) -> None:
    make, expected = FAULTS[fault]
    shard(CONTAINERS[container](make(TABLE)), out=tmp_path / "shards", shuffle=False, progress=False)
    caplog.clear()
    text = said(tmp_path / "shards", caplog)
    assert pd.Series([text]).str.contains(expected).all() if expected else text == "", text


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["netcdf", "zarr", "parquet"])
def test_windows_know_the_times_of_files(kind: str, fault: str, tmp_path: Path, caplog: Any) -> None:
    make, expected = FAULTS[fault]
    given = make(TABLE) if kind == "parquet" else xarray.Dataset.from_dataframe(make(TABLE))
    getattr(given, f"to_{kind}")(tmp_path / "file")
    told = ["shard", kind, "--source", tmp_path / "file", "--x", "now", "--target", "temp", "--no-shuffle"]
    done = CliRunner().invoke(main, [*map(str, told), "--out", str(tmp_path / "shards")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    caplog.clear()
    text = said(tmp_path / "shards", caplog)
    assert pd.Series([text]).str.contains(expected).all() if expected else text == "", text


TINY = pd.date_range("2024-03-30", periods=N, freq="100ns")
# Times that float64 rounds, as days or as they are.
FINE = {
    "dates": TINY,
    "dates with a zone": TINY.tz_localize("Europe/Madrid"),
    "time spans": TINY - TINY[0] + pd.Timedelta("20000D"),
    "numbers": pd.Index(TINY.astype("int64")),
    "objects of numbers": pd.Index([*TINY.astype("int64").tolist()], dtype=object),
    "before the calendar": pd.Index(np.datetime64("0850-01-01", "us") + np.arange(N) * np.timedelta64(1, "us")),
    "centuries": pd.Index(np.datetime64("0850-01-01", "s") + np.arange(N) * np.timedelta64(40_000, "D")),
}


WAYS = [(way, times) for way in ("index", "split_by") for times in FINE]


@pytest.mark.parametrize(("way", "times"), [*WAYS, ("Dask", "dates"), ("Dask", "centuries")])
def test_times_are_exact(times: str, way: str, tmp_path: Path, caplog: Any) -> None:
    for name, order, expected in (("rise", slice(None), ""), ("fall", [0, 2, 1, *range(3, N)], "falls 1 time")):
        made = TABLE.set_axis(FINE[times])[["now"]].iloc[order]
        made = made.set_axis(made.index.rename("when"))
        more: dict[str, Any] = {}
        if way == "split_by":
            made = made.reset_index()
            more = {"split_by": "when", "test_from": FINE[times][-2]}
        made = dd.from_pandas(made, npartitions=3, sort=False) if way == "Dask" else made
        shards = shard(made, out=tmp_path / name, shuffle=False, progress=False, **more)
        caplog.clear()
        text = said(next(iter(shards.values())).folder, caplog)
        assert expected in text and (expected or not text), text


@pytest.mark.parametrize("times", FINE)
def test_groups_of_times_are_exact(times: str, tmp_path: Path) -> None:
    made = pd.DataFrame({"now": np.arange(N) // 2, "when": FINE[times].repeat(2)[:N]})
    shards = shard(made, out=tmp_path / "s", progress=False, shuffle=False, test_groups={"when": 0.5})
    assert shards["test"].total == N // 2
    train, test = (set(np.ravel(load(shards[each].folder, ["x"]))) for each in ("train", "test"))
    assert not train & test and len(train | test) == N // 2


def test_rows_by_default_numbers_have_no_times(tmp_path: Path) -> None:
    for name, x in {"DataFrame": TABLE.reset_index(drop=True), "array": TABLE.to_numpy()}.items():
        shard(x, out=tmp_path / name, shuffle=False, progress=False)
        assert "time" not in [column.name for column in Manifest.load(tmp_path / name).columns]


def test_series_too_short_for_a_window_are_counted(tmp_path: Path, caplog: Any) -> None:
    stations = np.repeat([0.0, 1, 2], [20, 2, 18])
    shard({"now": TABLE.now.to_numpy(), "station": stations}, out=tmp_path / "shards", shuffle=False, progress=False)
    series_starts(Manifest.load(tmp_path / "shards"), "station", T + H)
    assert "1 of 3 series have fewer than 5 records, and no window" in caplog.text


@pytest.fixture(scope="module")
def fitted() -> Regressor:
    net = [layers.RecordInput(sequence=T, horizon=H), layers.InnerProduct(num_output=H)]
    return Regressor(net, epochs=1, random_state=0).fit(TABLE, TABLE.now)


@pytest.mark.parametrize("index", INDEXES)
def test_an_estimator_knows_the_times_of_every_index(index: str, fitted: Regressor, caplog: Any) -> None:
    for make, expected in FAULTS.values():
        caplog.clear()
        try:
            fitted.predict(INDEXES[index](make(TABLE)))
            said = caplog.text
        except ValueError as error:
            said = f"order of time falls {N - 1} times" if "does not rise" in str(error) else str(error)
        assert pd.Series([said]).str.contains(expected).all() if expected else said == "", said
    half = TABLE.set_axis(HOURS[0] + (HOURS - HOURS[0]) / 2)
    with pytest.raises(ValueError, match="steps by 0:30:00, and by 1:00:00 in training"):
        fitted.predict(INDEXES[index](half))


def test_jitter_and_months_are_no_gaps(fitted: Regressor, caplog: Any) -> None:
    late = HOURS + pd.to_timedelta(np.random.default_rng(0).integers(0, 20, N), unit="min")
    months = pd.date_range("2020-01-31", periods=N, freq="ME")
    zoned = HOURS.tz_localize("UTC").tz_convert("Europe/Berlin")  # an hour is left out in the night of the 31st
    for index in (late, months, zoned):
        check_order(index, {}, [])
    assert not caplog.text


def test_levels_without_names_are_told_by_their_place(fitted: Regressor) -> None:
    two = TABLE.set_axis(pd.MultiIndex.from_arrays([np.arange(N) // 20, HOURS]))
    with pytest.raises(ValueError, match=r"from one level 0 of its index.*rename_axis"):
        fitted.predict(two)


@pytest.mark.parametrize("step", ["30min", "2h"])
def test_records_at_another_step_than_those_of_training_are_refused(step: str) -> None:
    net = [layers.RecordInput(sequence=T, horizon=H), layers.InnerProduct(num_output=H)]
    fitted = Regressor(net, epochs=1, random_state=0).fit(TABLE, TABLE.now)
    other = TABLE.set_axis(pd.date_range("2024-05-01", periods=N, freq=step))
    for x in (other, xarray.DataArray(other.to_numpy(), {"time": other.index}, ("time", "value"))):
        with pytest.raises(ValueError, match=r"X: its index steps by \d:.* in training"):
            fitted.predict(x)
    np.testing.assert_array_equal(fitted.predict(TABLE), fitted.predict(TABLE.to_numpy()))


def with_times(step, series=1, rows=48):
    """Records whose times are a column of features, and another one of dates that do not rise."""
    times = pd.date_range("2024-05-01", periods=rows, freq=step)
    born = pd.Timestamp("1980-01-01") + pd.to_timedelta(np.random.default_rng(0).integers(0, 9000, rows), unit="D")
    one = pd.DataFrame({"born": born, "when": times, "v": np.sin(np.arange(rows) / 4)})
    return pd.concat([one.assign(station=i) for i in range(series)], ignore_index=True)


STATIONS = {"one series": {}, "stations": {"series": "station"}}


@pytest.mark.parametrize("case", STATIONS)
@pytest.mark.parametrize("way", ["predict", "score", "partial_fit", "validation"])
def test_a_column_of_times_tells_the_step_to_an_estimator(way, case):
    series = 2 if STATIONS[case] else 1
    own, same, other = (with_times(step, series) for step in ("h", "60min", "3h"))
    net = [layers.RecordInput(sequence=T, horizon=H, **STATIONS[case]), layers.InnerProduct(num_output=H)]
    fitted = Regressor(net, epochs=1, random_state=0).fit(own, own.v)
    assert fitted.predict(same).shape == fitted.predict(own).shape
    ways = {
        "predict": lambda: fitted.predict(other),
        "score": lambda: fitted.score(other, other.v),
        "partial_fit": lambda: fitted.partial_fit(other, other.v),
        "validation": lambda: Regressor(net, epochs=1, validation=(other, other.v)).fit(own, own.v),
    }
    with pytest.raises(ValueError, match=r"X: 'when' steps by 3:00:00, and by 1:00:00 in training"):
        ways[way]()


def lazy(table):
    return dd.from_pandas(table, npartitions=3, sort=False)


@pytest.mark.parametrize(("times", "step"), [("column", "3h"), ("column with a zone", "66min"), ("index", "54min")])
@pytest.mark.parametrize(("one", "other"), [(lazy, lazy), (lazy, pd.DataFrame), (pd.DataFrame, lazy)])
def test_calls_of_partial_fit_have_the_same_step_whatever_holds_the_records(one, other, times, step):
    def given(step, make):
        table = with_times(step).drop(columns="born")
        table = table.assign(when=table.when.dt.tz_localize("UTC")) if "zone" in times else table
        table = make(table.set_index("when") if times == "index" else table)
        return table, table.v.rename("y")

    net = [layers.RecordInput(sequence=T, horizon=H), layers.InnerProduct(num_output=H)]
    fitted = Regressor(net, random_state=0).partial_fit(*given("h", one)).partial_fit(*given("60min", other))
    with pytest.raises(ValueError, match=r"steps by .*, and by 1:00:00 in training"):
        fitted.partial_fit(*given(step, other))


@pytest.mark.parametrize("times", ["column", "column with a zone", "index"])
@pytest.mark.parametrize("way", ["predict", "score"])
def test_windows_of_collections_of_dask_are_told_to_be_computed(way, times):
    own = with_times("h")
    own = own.assign(when=own.when.dt.tz_localize("UTC")) if times == "column with a zone" else own
    own = own.set_index("when") if times == "index" else own
    net = [layers.RecordInput(sequence=T, horizon=H), layers.InnerProduct(num_output=H)]
    fitted = Regressor(net, epochs=1, random_state=0).fit(own, own.v)
    ways = {"predict": lambda: fitted.predict(lazy(own)), "score": lambda: fitted.score(lazy(own), lazy(own).v)}
    with pytest.raises(ValueError, match=r"Windows are predicted from arrays in memory: give X\.compute\(\)"):
        ways[way]()


@pytest.mark.parametrize("case", STATIONS)
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_a_column_of_times_tells_the_step_to_shards(kind, case, tmp_path):
    def written(step):
        table, out = with_times(step, 2 if STATIONS[case] else 1), tmp_path / step
        if kind == "frame":
            return shard(table, table.v.to_numpy(), out, shuffle=False)[""]
        source = tmp_path / f"{step}.{kind}"
        getattr(table.assign(y=table.v), f"to_{kind}")(source, index=False)
        return shard_files(kind, out, source=source, target="y", shuffle=False)[""]

    manifests = {step: written(step) for step in ("h", "60min", "3h")}
    starts = [48] if STATIONS[case] else []
    hour = record_step(manifests["h"], starts)
    assert hour.size == pytest.approx(3600, rel=0.01) and hour.unit == "s" and not hour.varies
    check_step(manifests["60min"], starts, hour)
    with pytest.raises(ConfigError, match=r"records that are 3:00:00 apart, and those of training 1:00:00"):
        check_step(manifests["3h"], starts, hour)


@pytest.mark.parametrize("way", ["predict", "validation", "partial_fit"])
def test_records_with_another_step_than_in_training_are_refused_in_every_way(way, tmp_path):
    hours = pd.date_range("2023-01-01", periods=96, freq="h")
    x = pd.DataFrame({"v": np.sin(np.arange(96) / 4)}, hours)
    y = pd.Series(x["v"].to_numpy(), hours, name="load")
    others = x.iloc[::2], y.iloc[::2]
    net = [layers.RecordInput(sequence=6, horizon=3, batchsize=16), layers.InnerProduct(num_output=3)]
    if way == "partial_fit":
        model = Regressor(net, random_state=0).partial_fit(x, y)
        with pytest.raises(ValueError, match="steps by 2:00:00, and by 1:00:00 in training"):
            model.partial_fit(*others)
        return
    steps = {"train_steps": 2, "validate_freq": 2} if way == "validation" else {"train_steps": 2}
    job = Job(name="steps", layers=[*net, layers.MSELoss()], updater=updaters.SGD(lr=0.01), **steps)
    given = {"workspace": tmp_path / "run", "processes": False, "display": Display()}
    if way == "validation":
        with pytest.raises(ConfigError, match=r"records that are 2:00:00 apart, and those of training 1:00:00"):
            train(job, data=(x, y), validation=others, **given)
        return
    run = train(job, data=(x, y), **given)
    shard(*others, tmp_path / "others", shuffle=False)
    out = ["--out", str(tmp_path / "p.csv")]
    told = CliRunner().invoke(main, ["predict", str(run.workspace), "--data", str(tmp_path / "others"), *out])
    assert told.exit_code == 2 and "records that are 2:00:00 apart" in told.output
    told = CliRunner().invoke(main, ["test", str(run.workspace), *reads(tmp_path / "others")])
    assert told.exit_code == 2 and "records that are 2:00:00 apart" in told.output


def test_the_dates_in_the_index_of_parquet_tell_the_step(tmp_path):
    for freq in ("h", "2h"):
        TABLE.set_axis(pd.date_range("2024", periods=N, freq=freq)).to_parquet(tmp_path / f"{freq}.parquet")
    shard_files("parquet", tmp_path / "shards", source=tmp_path / "h.parquet", target="temp", shuffle=False)
    net = [layers.RecordInput(path=str(tmp_path / "shards"), sequence=T, horizon=H, batchsize=4)]
    net += [layers.InnerProduct(num_output=H), layers.MSELoss()]
    job = Job(name="index", layers=net, updater=updaters.SGD(lr=0.01), train_steps=1)
    run = train(job, workspace=tmp_path / "run", processes=False, display=Display())
    for freq, code in (("h", 0), ("2h", 2)):
        given = ["--data", str(tmp_path / f"{freq}.parquet"), "--out", str(tmp_path / "p.csv")]
        told = CliRunner().invoke(main, ["predict", str(run.workspace), *given])
        assert told.exit_code == code and ("that are 2:00:00 apart" in told.output) is bool(code), told.output


@pytest.mark.parametrize("trained", ["windows", "sequences"])
@pytest.mark.parametrize("way", ["predict", "evaluate", "saved", "pickled"])
def test_a_model_refuses_lists_at_another_step(trained, way, tmp_path):
    def framed(values: np.ndarray, freq: str) -> pd.DataFrame:
        return pd.DataFrame(values, pd.date_range("2024", periods=len(values), freq=freq), ["a", "b"])

    values, y = np.random.default_rng(0).normal(size=(N, T, 2)), np.zeros(N)
    if trained == "windows":
        net = [layers.RecordInput(sequence=T, horizon=1), layers.InnerProduct(num_output=1)]
        fitted = Regressor(net, epochs=1, random_state=0).fit(framed(values[:, 0], "h"), y)
    else:
        net = [layers.GRU(dim_hidden=2), layers.InnerProduct(num_output=1)]
        fitted = Regressor(net, epochs=1, random_state=0).fit([framed(each, "h") for each in values], y)
    model = pickle.loads(pickle.dumps(fitted)).model_ if way == "pickled" else fitted.model_
    if way == "saved":
        model.save(tmp_path / "model.h5")
        model = load_model(tmp_path / "model.h5")
    calls = {"evaluate": lambda given: model.evaluate(given, np.zeros((len(given), 1)))}
    call = calls.get(way, model.predict)
    call([framed(each, "h") for each in values[:3]])
    with pytest.raises(DataError, match=r"x\[0\]: steps by 2:00:00, and by 1:00:00 in training"):
        call([framed(each, "2h") for each in values[:3]])


def test_sequences_at_several_steps_are_told(caplog):
    frames = [pd.DataFrame(np.ones((T, 2)), pd.date_range("2024", periods=T, freq=freq)) for freq in ("h", "h", "2h")]
    net = [layers.GRU(dim_hidden=2), layers.InnerProduct(num_output=1)]
    Regressor(net, epochs=1, random_state=0).fit(frames[:2], np.zeros(2))
    assert "sequences step by" not in caplog.text
    Regressor(net, epochs=1, random_state=0).fit(frames, np.zeros(3))
    assert "X: some sequences step by 1:00:00, and others by 2:00:00" in caplog.text


@pytest.mark.parametrize("last", [False, True])
def test_windows_are_checked_along_the_dimension_of_the_samples(last, caplog):
    place = {"time": HOURS, "lat": [10.0, 0.0]}
    field = xarray.DataArray(np.random.default_rng(0).normal(size=(N, 2)), place, ("time", "lat"))
    y = field.mean("lat")
    gap = np.r_[0:10, 20:N]

    def turned(each: Any) -> Any:
        return each.transpose("lat", "time") if last else each

    def net() -> Regressor:
        parts = [layers.RecordInput(sequence=T, horizon=1), layers.InnerProduct(num_output=1)]
        return Regressor(parts, epochs=1, random_state=0)

    fitted = net().fit(turned(field), y)
    assert caplog.text == ""
    for call in (lambda: net().fit(turned(field[::-1]), y[::-1]), lambda: fitted.predict(turned(field[::-1]))):
        with pytest.raises(ValueError, match="its index does not rise, and the net reads windows"):
            call()
    np.testing.assert_allclose(fitted.predict(turned(field)), fitted.predict(field))
    net().fit(turned(field[gap]), y[gap])
    assert "its index has 1 gap" in caplog.text


def reads(path):
    """The data of a run's only input layer."""
    return "--set", f"neuralnet.layer[0].store_conf.path={path}"


@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_windows_of_a_new_table_are_those_of_shards_like_the_training_data(kind, answered, tmp_path):
    def table(start, names, rows=48):
        times = pd.date_range(start, periods=rows, freq="h")
        draw = np.random.default_rng(len(names))
        parts = [pd.DataFrame({"when": times, "v": draw.normal(size=rows), "station": name}) for name in names]
        return pd.concat(parts, ignore_index=True).assign(load=lambda of: of.v * 2)

    def file(name, of):
        getattr(of, f"to_{kind}")(tmp_path / f"{name}.{kind}", index=False)
        return str(tmp_path / f"{name}.{kind}")

    old, new = table("2023-01-01", "abc"), table("2024-05-01", "ca")
    shard_files(kind, tmp_path / "s", source=file("old", old), target="load", shuffle=False)
    data = layers.RecordInput("data", path=str(tmp_path / "s"), batchsize=8, sequence=T, horizon=H, series="station")
    net = [data, layers.InnerProduct(num_output=H), layers.MSELoss("loss")]
    job = Job(name="new", layers=net, updater=updaters.SGD(lr=1e-9), train_steps=2)
    run = train(job, workspace=tmp_path / "run", processes=False, display=Display(), curves=False)
    given = file("new", new if answered else new.drop(columns="load"))
    told = CliRunner().invoke(main, ["predict", str(run.workspace), "--data", given, "--out", str(tmp_path / "p.csv")])
    assert told.exit_code == 0, told.output
    found = pd.read_csv(tmp_path / "p.csv")
    like = Manifest.load(tmp_path / "s")
    shard(new.drop(columns="load"), new.load, tmp_path / "like", shuffle=False, like=like)
    CliRunner().invoke(
        main, ["predict", str(run.workspace), "--data", str(tmp_path / "like"), "--out", str(tmp_path / "q.csv")]
    )
    expected = pd.read_csv(tmp_path / "q.csv")
    own = [name for name in expected if not name.startswith("true")]
    last = np.arange(96).reshape(2, 48)[:, T - 1 :].ravel()
    if answered:
        pd.testing.assert_frame_equal(found, expected)
    else:
        assert not [name for name in found if name.startswith("true")] and found["sample"].tolist() == last.tolist()
        both = found.merge(expected, on="sample")
        np.testing.assert_allclose(both[[f"{name}_x" for name in own[1:]]], both[[f"{name}_y" for name in own[1:]]])


def test_records_and_whole_windows_in_a_file_of_arrays_give_the_same_predictions(tmp_path):
    x = np.random.default_rng(0).normal(size=(48, 2)).astype("f4")
    shard(x, x[:, 0], tmp_path / "s", shuffle=False)
    data = layers.RecordInput("data", path=str(tmp_path / "s"), batchsize=8, sequence=T, horizon=H)
    net = [data, layers.InnerProduct(num_output=H), layers.MSELoss("loss")]
    job = Job(name="files", layers=net, updater=updaters.SGD(lr=1e-9), train_steps=2)
    run = train(job, workspace=tmp_path / "run", processes=False, display=Display(), curves=False)
    windows = np.moveaxis(np.lib.stride_tricks.sliding_window_view(x, T, axis=0), -1, 1)
    found = {}
    for name, array in (("records", x), ("windows", windows)):
        np.savez(tmp_path / f"{name}.npz", x=array)
        out = str(tmp_path / f"{name}.csv")
        told = CliRunner().invoke(
            main, ["predict", str(run.workspace), "--data", str(tmp_path / f"{name}.npz"), "--out", out]
        )
        assert told.exit_code == 0, told.output
        found[name] = pd.read_csv(out)
    assert found["records"]["sample"].tolist() == list(range(T - 1, 48))
    np.testing.assert_allclose(found["records"].iloc[:, 1:], found["windows"].iloc[:, 1:], rtol=1e-6)


def test_a_net_of_a_named_target_predicts_records_without_it(tmp_path):
    x = pd.DataFrame({"v": np.sin(np.arange(96) / 4)})
    targets = {"next": x["v"].to_numpy(), "other": np.zeros(96)}
    shard(x, targets, tmp_path / "all", shuffle=False)
    shard(x.iloc[-8:], None, tmp_path / "last", shuffle=False)
    read = {"path": str(tmp_path / "all"), "label": "next", "sequence": 6, "horizon": 3, "batchsize": 16}
    net = [layers.RecordInput(**read), layers.InnerProduct(num_output=3), layers.MSELoss()]
    job = Job(name="next", layers=net, updater=updaters.SGD(lr=0.01), train_steps=2)
    train(job, workspace=tmp_path / "run", processes=False, display=Display())
    out = tmp_path / "p.csv"
    args = ["predict", str(tmp_path / "run"), "--data", str(tmp_path / "last"), "--out", str(out)]
    assert not CliRunner().invoke(main, args, catch_exceptions=False).exit_code
    assert list(pd.read_csv(out)) == ["sample", "next_1", "next_2", "next_3"] and len(pd.read_csv(out)) == 3


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory):
    """A model of windows of records of two stations, and their table."""
    folder = tmp_path_factory.mktemp("forecaster")
    table = with_times("h", 2).drop(columns="born").assign(load=np.arange(96.0))
    shard(table.drop(columns="load"), table.load, folder / "s", shuffle=False, progress=False)
    read = {"path": str(folder / "s"), "sequence": 12, "horizon": 6, "batchsize": 8, "series": "station"}
    net = [layers.RecordInput("data", **read), layers.InnerProduct(num_output=6), layers.MSELoss()]
    job = Job(name="f", layers=net, updater=updaters.SGD(lr=1e-9), train_steps=1)
    run = train(job, workspace=folder / "run", processes=False, display=Display(), curves=False)
    return load_model(run.workspace), table


UNFIT = {
    "targets": (lambda of: of[:15], "and a horizon of 6 with targets fits: at most 15 .*, or leave out the column"),
    "targets of stations": (
        lambda of: of.groupby("station").head(14),
        "horizon of 6 .* at most 14 .* leave out the column of targets. The records of a series must follow",
    ),
    "interleaved": (
        lambda of: of.sort_values("when", kind="stable").drop(columns="load"),
        "of 12 records fits: at most 1 follow each other. Give more records. The records of a series must follow",
    ),
    "few": (
        lambda of: of[:7].drop(columns="load"),
        "of 12 records fits: at most 7 follow each other. Give more records",
    ),
    "another step": (
        lambda of: of[:48:2].drop(columns="load"),
        r"apart, and those of training 1:00:00.* Received: .*new",
    ),
    "falling": (lambda of: of[:48][::-1].drop(columns="load"), "those of .*new.* are not: when falls 47 times"),
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("case", UNFIT)
def test_a_file_without_a_window_is_named_with_the_way_out(forecaster, case, kind, tmp_path):
    (model, table), (change, expected) = forecaster, UNFIT[case]
    getattr(change(table), f"to_{kind}")(tmp_path / f"new.{kind}", index=False)
    (tmp_path / ".singa_dask-x").mkdir()
    with pytest.raises((ConfigError, DataError), match=expected) as told:
        blocks_of(model, str(tmp_path / f"new.{kind}"), scratch=tmp_path / ".singa_dask-x")
    assert ".singa_dask" not in str(told.value) and f"new.{kind}" in str(told.value)
