"""Names of index levels, and coordinates that are no index, say which rows, columns and places belong together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from singa_dask import Job, Regressor, layers, shard, train, updaters
from singa_dask.data.manifest import Manifest
from singa_dask.data.sharding import shard_files
from singa_dask.errors import DataError
from singa_dask.inference.sources import blocks_of
from singa_dask.monitor.progress import Display

xr = pytest.importorskip("xarray")
N, H, W = 60, 4, 3
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 3))
Y = X @ [1.0, 2.0, 3.0]
ORDER = DRAW.permutation(N)
PAIRS = pd.MultiIndex.from_product([range(6), range(10)], names=["origin", "destination"])
TIMES = pd.date_range("2001-01-01", periods=N)
LATITUDE = np.add.outer(np.linspace(-50, 50, H), np.linspace(0, 3, W))
LONGITUDE = np.add.outer(np.zeros(H), np.linspace(0, 70, W))
FIELDS = DRAW.normal(size=(N, H, W))
FLIP = {"y": slice(None, None, -1)}


def net(outputs: int = 1) -> Regressor:
    model = [layers.InnerProduct(num_output=outputs)]
    return Regressor(model, epochs=2, batch_size=N, updater=updaters.SGD(lr=0.1), random_state=0)


def levels() -> tuple[Any, Any, Any]:
    y = pd.Series(Y, PAIRS, name="flow")
    return pd.DataFrame(X, PAIRS, list("abc")), y, y.unstack("origin").stack()


def stacked() -> tuple[Any, Any, Any]:
    coords = {"time": range(6), "member": range(10)}
    x = xr.DataArray(X.reshape(6, 10, 3), coords, ("time", "member", "f"))
    y = xr.DataArray(Y.reshape(6, 10), coords, ("time", "member"))
    samples = x.stack(s=("time", "member")).transpose("s", "f")
    return samples, y.stack(s=("time", "member")), y.stack(s=("member", "time"))


def times_of_observations() -> tuple[Any, Any, Any]:
    x = xr.DataArray(X, {"time": ("obs", TIMES)}, ("obs", "f"))
    y = xr.DataArray(Y, {"time": ("obs", TIMES)}, ("obs",))
    return x, y, y.isel(obs=ORDER)


def stations_and_times() -> tuple[Any, Any, Any]:
    """Only the times of both are known."""
    x, y, other = times_of_observations()
    return x.assign_coords(station=("obs", np.arange(N) % 7)), y, other


@pytest.mark.parametrize("made", [levels, stacked, times_of_observations, stations_and_times])
def test_rows_are_paired_by_the_names_of_their_labels(made):
    x, y, other = made()
    right = np.asarray(net().fit(x, y).predict(x))
    np.testing.assert_array_equal(np.asarray(net().fit(x, other).predict(x)), right)
    assert net().fit(x, y).score(x, other) == pytest.approx(net().fit(x, y).score(x, y))


def test_observations_of_other_times_are_refused():
    x, y, _ = times_of_observations()
    with pytest.raises(DataError, match=r"along 'obs'. Select the same, or leave them out: drop_vars\(\['time'\]\)"):
        net().fit(x, y.assign_coords(time=("obs", TIMES + pd.Timedelta("1D"))))


def test_coordinates_without_a_common_name_pair_nothing():
    x, y, _ = times_of_observations()
    right = np.asarray(net().fit(x, Y).predict(x))
    other = y.drop_vars("time").assign_coords(station=("obs", np.arange(N)))
    np.testing.assert_array_equal(np.asarray(net().fit(x, other).predict(x)), right)


def test_columns_with_other_levels_first_are_told_apart():
    frame = pd.DataFrame(X, columns=pd.MultiIndex.from_tuples([(0, "a"), (0, "b"), (1, "a")], names=["level", "at"]))
    model = net().fit(frame, Y)
    np.testing.assert_array_equal(model.predict(frame.swaplevel(axis=1)), model.predict(frame))
    with pytest.raises(ValueError, match="same order"):
        model.predict(frame.swaplevel(axis=1).sort_index(axis=1))


def test_bands_with_names_are_put_in_order():
    bands = xr.DataArray(X, {"name": ("band", ["red", "green", "blue"])}, ("t", "band"))
    model = net().fit(bands, Y)
    np.testing.assert_array_equal(model.predict(bands.isel(band=[2, 0, 1])), model.predict(bands))
    with pytest.raises(DataError, match="coordinates along 'band'"):
        model.predict(bands.assign_coords(name=("band", ["red", "green", "near infrared"])))


def fields(values: np.ndarray) -> Any:
    grid = {"time": TIMES, "nav_lat": (("y", "x"), LATITUDE), "nav_lon": (("y", "x"), LONGITUDE)}
    return xr.DataArray(values, grid, ("time", "y", "x"))


def test_curvilinear_grids_are_turned_or_refused():
    x, y = fields(FIELDS), fields(2 * FIELDS)
    model = net(H * W).fit(x, y)
    right = model.predict(x)
    turned = model.predict(x.isel(FLIP))
    np.testing.assert_array_equal(turned.values, right.values)
    np.testing.assert_array_equal(turned.nav_lat, right.nav_lat)
    np.testing.assert_array_equal(net(H * W).fit(x, y.isel(FLIP)).predict(x).values, right.values)
    with pytest.raises(DataError, match="coordinates along 'y' are nav_lat"):
        model.predict(x.assign_coords(nav_lat=x.nav_lat + 1))


LEVELS = {"same": (500, 500.0, ""), "other": (500, 850, "850"), "spans": (*np.array([24, 48], "m8[h]"), "2")}
LEVELS |= {"texts": ("a", "b", "b"), "dates": (*TIMES[:2].to_numpy(), ""), "absent": (500, None, "")}
IN_MEMORY: dict[str, Callable[[Regressor, Any], Any]] = {
    "predict": lambda model, x: model.predict(x),
    "Dask": lambda model, x: model.predict(x.chunk(time=20)),
    "model": lambda model, x: model.model_.predict(x),
    "score": lambda model, x: model.score(x, Y),
    "partial_fit": lambda model, x: model.partial_fit(x, Y),
    "mapping": lambda model, x: model.model_.predict({"data": x}),
}


def at_level(level: Any) -> Any:
    return fields(FIELDS) if level is None else fields(FIELDS).assign_coords(level=level)


def told(caplog: Any, other: str) -> bool:
    """Whether exactly this is told of a level, and nothing if nothing is other."""
    found = [text for text in caplog.messages if "coordinate 'level'" in text]
    caplog.clear()
    return len(found) == bool(other) and all(f"'level' is {other}, but" in text for text in found)


@pytest.mark.parametrize("case", LEVELS)
def test_scalar_coordinates_are_compared(case, caplog):
    first, second, other = LEVELS[case]
    model = net().fit(at_level(first), Y)
    assert all(told(caplog, other) for way in IN_MEMORY.values() if [caplog.clear(), way(model, at_level(second))])


@pytest.mark.parametrize("format", ["netcdf", "zarr"])
def test_scalar_coordinates_of_files_are_compared(format, tmp_path, caplog):
    model, files = net().fit(at_level(500), Y), {}
    for level in (500, 850):
        data = xr.Dataset({"z": at_level(level), "heat": ("time", Y)})
        write(data, tmp_path / f"at{level}", format)
        files[level] = str(name(tmp_path / f"at{level}", format))
    for level, other in ((500, ""), (850, "850")):
        blocks_of(model.model_, files[level], ["z"])
        assert told(caplog, other)
    shard_files(format, tmp_path / "both", source=str(tmp_path / "at*0.*"), x="z", target="heat")
    assert told(caplog, "850")
    shard_files(format, tmp_path / "shards", source=files[850], x="z", target="heat")
    known = Manifest.load(tmp_path / "shards").schema.reading.scalars
    assert known == {key: {"level": "850"} for key in "xy"}
    shard(at_level(500), Y, tmp_path / "more", like=Manifest.load(tmp_path / "shards"))
    assert told(caplog, "500")
    blocks_of(model.model_, str(tmp_path / "shards"))
    assert told(caplog, "850")


@pytest.mark.parametrize("format", ["netcdf", "zarr"])
@pytest.mark.parametrize("way", ["shard", "predict"])
def test_files_of_several_places_are_told(format, way, tmp_path, caplog):
    lat, lon = np.linspace(-50, 50, H), np.arange(W) * 120.0
    for place, east in enumerate((lon, lon - 180)):
        coords = {"time": np.arange(N) + place * N, "lat": lat, "lon": east}
        field = xr.DataArray(FIELDS, coords, ("time", "lat", "lon"))
        write(xr.Dataset({"z": field, "heat": ("time", Y)}), tmp_path / f"at{place}", format)
        if place == 0:
            model = net().fit(field, Y)
    every = str(name(tmp_path / "at*", format))
    if way == "shard":
        shard_files(format, tmp_path / "shards", source=every, x="z", target="heat")
    else:
        blocks_of(model.model_, every, ["z"])
    assert "the coordinates along 'lon' run from -180 to 60, but ran from 0 to 240 in the first file" in caplog.text


@pytest.mark.parametrize("height", [5, 4])  # of 4 x 6, the shape does not tell where the channels are
@pytest.mark.parametrize("targets", [("p", "q"), ("p",), ("v", "u"), ("u", "w")])
def test_variables_are_predicted_from_others(targets, height):
    coords = {"time": TIMES, "lat": np.arange(height), "lon": np.arange(6)}
    draw = np.random.default_rng(0)
    x = xr.Dataset({name: (tuple(coords), draw.normal(size=(N, height, 6))) for name in "uv"}, coords)
    y = xr.Dataset({name: (place + 2) * x["uv"[place % 2]] for place, name in enumerate(targets)})
    parts = [layers.Convolution(num_filters=len(targets), kernel=1)]
    model = Regressor(parts, epochs=150, learning_rate=0.1, random_state=0).fit(x, y)
    predicted = model.predict(x)
    last = predicted.dims[3]
    assert predicted.dims == (*coords, last) and {*predicted[last].values.tolist()} == {*targets}
    for name in targets:
        np.testing.assert_allclose(predicted.sel({last: name}), y[name], atol=0.5)
    assert model.score(x, y) == model.score(x, y[[*targets[::-1]]]) > 0.98
    assert model.model_.evaluate(x, y) == model.model_.evaluate(x, y[[*targets[::-1]]])


@pytest.mark.parametrize("turn", ["as trained", "falling", "transposed", "samples last", "lazy"])
def test_predictions_have_the_order_of_what_is_predicted(turn):
    field = xr.DataArray(FIELDS, {"time": TIMES, "lat": np.arange(H), "lon": np.arange(W)}, ("time", "lat", "lon"))
    model = Regressor([layers.Convolution(num_filters=1, kernel=1)], epochs=150, learning_rate=0.1, random_state=0)
    model.fit(field, 3 * field)
    given = {
        "as trained": field,
        "falling": field[:, ::-1],
        "transposed": field[:, ::-1].transpose("time", "lon", "lat"),
        "samples last": field.transpose("lon", "lat", "time"),
        "lazy": field[:, ::-1].chunk({"time": 16}),
    }[turn]
    for predicted in (model.predict(given), model.model_.predict(given)):
        assert predicted.dims[:3] == given.dims
        assert all(predicted[dim].equals(given[dim]) for dim in given.dims)
        np.testing.assert_allclose(np.reshape(predicted.values, given.shape), 3 * given.values, atol=0.5)


@pytest.mark.parametrize("format", ["netcdf", "zarr"])
def test_files_with_curvilinear_grids_are_turned(format, tmp_path, singa_dask):
    data = xr.Dataset({"sst": fields(FIELDS), "heat": fields(2 * FIELDS)})
    write(data, tmp_path / "data", format)
    write(data.isel(FLIP), tmp_path / "flipped", format)
    shard_files(format, tmp_path / "shards", source=name(tmp_path / "data", format), x="sst", target="heat")
    input = layers.RecordInput(path=str(tmp_path / "shards"), batchsize=N)
    net = [input, layers.InnerProduct(num_output=H * W), layers.MSELoss()]
    job = Job(name="grid", layers=net, updater=updaters.SGD(lr=0.1), train_steps=2)
    train(job, workspace=tmp_path / "run", processes=False, display=Display())
    predicted = []
    for each in ("data", "flipped"):
        singa_dask("predict", tmp_path / "run", "--data", name(tmp_path / each, format), "--out", tmp_path / "p.nc")
        predicted.append(xr.load_dataset(tmp_path / "p.nc", engine="h5netcdf"))
    straight, flipped = predicted
    np.testing.assert_allclose(flipped["prediction"], straight["prediction"].isel(FLIP), rtol=1e-5)
    for place in data.coords:
        np.testing.assert_array_equal(flipped[place], data[place].isel(FLIP, missing_dims="ignore"))


def name(path: Path, format: str) -> Path:
    return path.with_suffix({"netcdf": ".nc", "zarr": ".zarr"}[format])


def write(data: Any, path: Path, format: str) -> None:
    if format == "netcdf":
        data.to_netcdf(name(path, format), engine="h5netcdf")
    else:
        data.to_zarr(name(path, format))


@pytest.fixture
def singa_dask(tmp_path: Path) -> Any:
    from support.commands import run_here

    return lambda *args: run_here(*args, cwd=tmp_path, env={}, code=0)
