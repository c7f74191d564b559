"""The times of samples, which no column of a table holds: a table of containers and faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from singa_dask import Regressor, layers, shard
from singa_dask.cli import main
from singa_dask.data import Manifest, series_starts
from singa_dask.errors import ConfigError

xarray = pytest.importorskip("xarray")
N, T, H = 40, 3, 2
HOURS = pd.date_range("2024-03-30", periods=N, freq="h", name="time")
TABLE = pd.DataFrame({"now": np.arange(N, dtype=float), "temp": np.cos(np.arange(N))}, index=HOURS)
Given = Callable[[pd.DataFrame], Any]


def days_of(numbers: pd.DataFrame) -> Any:
    """The same with another coordinate than dates: days since the first one."""
    return numbers.set_axis((numbers.index - HOURS[0]) / pd.Timedelta("1D"))


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
}
# What becomes of the records, and what is said.
FAULTS: Mapping[str, tuple[Given, str]] = {
    "none": (lambda x: x, ""),
    "shuffled": (lambda x: x.iloc[np.random.default_rng(0).permutation(N)], r"order of time.*falls \d+ times"),
    "backwards": (lambda x: x[::-1], f"order of time.*falls {N - 1} times"),
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
@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
def test_windows_know_the_times_of_files(kind: str, fault: str, tmp_path: Path, caplog: Any) -> None:
    make, expected = FAULTS[fault]
    getattr(xarray.Dataset.from_dataframe(make(TABLE)), f"to_{kind}")(tmp_path / "file")
    told = ["shard", kind, "--source", tmp_path / "file", "--x", "now", "--target", "temp", "--no-shuffle"]
    done = CliRunner().invoke(main, [*map(str, told), "--out", str(tmp_path / "shards")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    caplog.clear()
    text = said(tmp_path / "shards", caplog)
    assert pd.Series([text]).str.contains(expected).all() if expected else text == "", text


def test_rows_by_default_numbers_have_no_times(tmp_path: Path) -> None:
    for name, x in {"DataFrame": TABLE.reset_index(drop=True), "array": TABLE.to_numpy()}.items():
        shard(x, out=tmp_path / name, shuffle=False, progress=False)
        assert "time" not in [column.name for column in Manifest.load(tmp_path / name).columns]


def test_series_too_short_for_a_window_are_counted(tmp_path: Path, caplog: Any) -> None:
    stations = np.repeat([0.0, 1, 2], [20, 2, 18])
    shard({"now": TABLE.now.to_numpy(), "station": stations}, out=tmp_path / "shards", shuffle=False, progress=False)
    series_starts(Manifest.load(tmp_path / "shards"), "station", T + H)
    assert "1 of 3 series have fewer than 5 records, and no window" in caplog.text


@pytest.mark.parametrize("step", ["30min", "2h"])
def test_records_at_another_step_than_those_of_training_are_refused(step: str) -> None:
    net = [layers.RecordInput(sequence=T, horizon=H), layers.InnerProduct(num_output=H)]
    fitted = Regressor(net, epochs=1, random_state=0).fit(TABLE, TABLE.now)
    other = TABLE.set_axis(pd.date_range("2024-05-01", periods=N, freq=step))
    for x in (other, xarray.DataArray(other.to_numpy(), {"time": other.index}, ("time", "value"))):
        with pytest.raises(ValueError, match=r"X: its index steps by 0 days .* in training"):
            fitted.predict(x)
    np.testing.assert_array_equal(fitted.predict(TABLE), fitted.predict(TABLE.to_numpy()))
