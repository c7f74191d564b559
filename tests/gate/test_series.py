"""Windows lie in one series each, at training and at prediction: a table of entry points, containers and series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow
import pytest
from click.testing import CliRunner
from sklearn.metrics import r2_score

from singa_dask import Classifier, Job, Regressor, layers, shard, train, updaters
from singa_dask.cli import main
from singa_dask.data import Manifest, series_starts
from singa_dask.errors import ConfigError
from singa_dask.monitor.progress import Display

xarray = pytest.importorskip("xarray")
T, H = 3, 2
LENGTHS = (9, 2, 7, 8)  # the second one is too short for a window
STARTS = np.cumsum((0, *LENGTHS))
V = np.random.default_rng(0).normal(size=STARTS[-1]).cumsum()
SERIES: Mapping[str, np.ndarray] = {
    "numbers": np.repeat(range(4), LENGTHS),
    "texts": np.repeat(["a", "b", "c", "d"], LENGTHS),
    "a number comes again": np.repeat([5, 6, 5, 7], LENGTHS),
}
DAYS = np.concatenate([np.datetime64("2024-01-01") + np.arange(length) for length in LENGTHS])
CONTAINERS: Mapping[str, Callable[[pd.DataFrame], Any]] = {
    "DataFrame": lambda x: x,
    "DataFrame with the days as its index": lambda x: x.set_axis(DAYS[: len(x)] if len(x) == len(DAYS) else x.index),
    "pyarrow": pyarrow.Table.from_pandas,
    "Dataset": lambda x: xarray.Dataset({name: ("record", x[name].to_numpy()) for name in x.columns}),
}


def frame(ids: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"v": V, "station": ids})


def net(outputs: int, horizon: int, **how: Any) -> list[Any]:
    window = layers.RecordInput(sequence=T, horizon=horizon, **{"series": "station", **how})
    return [window, layers.GRU(dim_hidden=3), layers.InnerProduct(num_output=outputs)]


def regressor(**more: Any) -> Any:
    return Regressor(net(H, H), epochs=1, random_state=0, **more)


def alone(predict: Callable[[Any], np.ndarray], x: pd.DataFrame) -> list[np.ndarray]:
    """The predictions for each series by itself."""
    return [predict(x[a:b]) for a, b in pairwise(STARTS) if b - a >= T]


def after(y: np.ndarray, horizon: int) -> np.ndarray:
    """What follows the windows, of those with a horizon."""
    found = []
    for a, b in pairwise(STARTS):
        if b - a >= T + horizon:
            found.append(np.lib.stride_tricks.sliding_window_view(y[a + T : b], horizon))
    return np.concatenate(found)


@pytest.mark.parametrize("series", SERIES)
def test_predictions_and_scores_are_those_of_each_series_alone(series: str, caplog: Any) -> None:
    x = frame(SERIES[series])
    fitted = regressor().fit(x, 2 * V)
    parts = alone(fitted.predict, x)
    answered = np.concatenate([part[: len(part) - H] for part in parts])
    up = np.where(V.mean() < V, "up", "down")
    classifier = Classifier(net(2, 1), epochs=1, random_state=0).fit(x, up)
    kinds = alone(classifier.predict, x)
    hit = np.concatenate([part[: len(part) - 1] for part in kinds]) == after(up, 1)[:, 0]
    caplog.clear()
    for name, make in CONTAINERS.items():
        np.testing.assert_allclose(fitted.predict(make(x)), np.concatenate(parts), rtol=1e-5, err_msg=name)
        assert fitted.score(make(x), 2 * V) == pytest.approx(r2_score(after(2 * V, H), answered)), name
        assert (classifier.predict(make(x)) == np.concatenate(kinds)).all(), name
        assert classifier.predict_proba(make(x)).shape == (len(np.concatenate(kinds)), 2), name
        assert classifier.score(make(x), up) == pytest.approx(hit.mean()), name
    assert "X: 1 of 4 series have fewer than 3 records, and no window." in caplog.text


@pytest.mark.parametrize("make", [*CONTAINERS.values(), lambda x: dd.from_pandas(x, npartitions=2)])
def test_training_keeps_series_apart(make: Callable[[pd.DataFrame], Any]) -> None:
    x = frame(SERIES["numbers"])
    given = make(x)
    y = dd.from_pandas(pd.Series(2 * V), npartitions=2) if isinstance(given, dd.DataFrame) else 2 * V
    expected = regressor().fit(x, 2 * V).predict(x)
    np.testing.assert_allclose(regressor().fit(given, y).predict(x), expected, rtol=1e-4)
    validated = regressor(validation=(given, y)).fit(given, y)
    assert validated.history_.loss[validated.history_.phase == "validate"].notna().all()
    np.testing.assert_array_equal(validated.partial_fit(given, y).predict(x).shape, expected.shape)


def falling(x: pd.DataFrame) -> pd.DataFrame:
    """Of which the days fall within the last series."""
    return x.set_axis(np.r_[DAYS[: STARTS[3]], DAYS[STARTS[3] :][::-1]])


PANEL = pd.MultiIndex.from_arrays([SERIES["numbers"], DAYS], names=["station", "day"])
REFUSED = {
    "no such column": (lambda x: x, {"series": "id"}, r"series: X has no such column.*It has: v, station"),
    "an array": (lambda x: x.to_numpy(), {}, r"series: X has no such column.*no names; give a DataFrame"),
    "days that fall": (falling, {}, "its index does not rise"),
    "days that fall between series without a column": (
        lambda x: x.set_axis(DAYS),
        *({"series": ""}, r"its index does not rise.*RecordInput\(series=COLUMN\)"),
    ),
    "levels of an index": (lambda x: x.set_axis(PANEL), {"series": ""}, "cross from one 'station' of its index"),
    "numbers that float32 rounds": (lambda x: x.assign(station=x.station + 10**8), {}, "integers that float32 rounds"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_series_that_cannot_be_told_apart_are_refused(fault: str) -> None:
    change, how, told = REFUSED[fault]
    x = frame(SERIES["numbers"])
    with pytest.raises((ValueError, ConfigError), match=told):
        Regressor(net(H, H, **how), epochs=1).fit(change(x), 2 * V)
    if fault in ("days that fall", "levels of an index"):
        plain = Regressor(net(H, H, **how), epochs=1, random_state=0).fit(x, 2 * V)
        for call in (plain.predict, lambda now: plain.score(now, 2 * V)):
            with pytest.raises(ValueError, match=told):
                call(change(x))


def test_a_prediction_without_the_column_of_series_is_refused() -> None:
    x = frame(SERIES["numbers"])
    fitted = regressor().fit(x, 2 * V)
    for call in (fitted.predict, lambda now: fitted.score(now, 2 * V)):
        with pytest.raises(ValueError, match="station"):
            call(x[["v"]])
    np.testing.assert_allclose(fitted.predict(x.to_numpy()), fitted.predict(x), rtol=1e-6)


def job() -> Job:
    net = [layers.RecordInput(batchsize=8, sequence=T, horizon=H, series="station", column="x")]
    net += [layers.GRU(dim_hidden=3), layers.InnerProduct(num_output=H), layers.EuclideanLoss()]
    return Job(name="series", layers=net, updater=updaters.SGD(lr=0.01), train_steps=1, seed=1)


def test_the_command_keeps_series_apart_and_needs_their_column(tmp_path: Path) -> None:
    ids = SERIES["numbers"]
    data = {"x": V.reshape(-1, 1), "station": ids}
    train(job(), data=(data, 2 * V), processes=False, workspace=tmp_path / "run", display=Display(), curves=False)
    inputs = {"right": (data, 0), "none": ({"x": data["x"]}, 1)}
    for name, (x, code) in inputs.items():
        shard(x, 2 * V, tmp_path / name, shuffle=False)
        arguments = [
            "predict",
            str(tmp_path / "run"),
            "--data",
            str(tmp_path / name),
            "--out",
            str(tmp_path / "o.csv"),
        ]
        found = CliRunner().invoke(main, arguments)
        assert bool(found.exit_code) == bool(code), (name, found.output)
        assert not code or "store_conf.series" in found.output, found.output
    rows = pd.read_csv(tmp_path / "o.csv")["sample"].tolist()
    assert rows == [row for a, b in pairwise(STARTS) for row in range(a + T - 1, b - H)]


def test_categories_that_training_did_not_have_are_not_told_apart(tmp_path: Path) -> None:
    x = frame(SERIES["texts"]).assign(w=1.0)
    known = shard(x, 2 * V, tmp_path / "known", shuffle=False, unknown="zeros")[""]
    others = x.assign(station=x.station + "z")
    shard(others, 2 * V, tmp_path / "others", shuffle=False, like=known)
    assert series_starts(known, "station") == STARTS[1:-1].tolist()
    with pytest.raises(ConfigError, match=r"unknown categories, which are not told apart\. Received: station"):
        series_starts(Manifest.load(tmp_path / "others"), "station")


def test_series_named_by_fractions_that_float32_rounds_are_refused():
    table = pd.DataFrame({"station": np.repeat([52.5200066, 52.5200071], 8), "row": np.arange(16.0)})
    net = [layers.RecordInput(sequence=6, horizon=3, series="station"), layers.InnerProduct(num_output=3)]
    with pytest.raises(ConfigError, match=r"has fractions that float32 rounds.*pandas\.factorize"):
        Regressor(net, epochs=1, random_state=0).fit(table, table["row"])
