"""Estimators and models on DataArrays and Datasets: dimensions by name, and predictions with coordinates."""

import dask.array as da
import numpy as np
import pytest

from singa_dask import Classifier, Model, Regressor, layers, load, shard
from singa_dask.data.columns import Role
from singa_dask.errors import DataError

xarray = pytest.importorskip("xarray")
DRAW = np.random.default_rng(0)
N, H, W = 40, 6, 5
TIME = np.datetime64("2001-01-01") + np.arange(N)
COORDS = {"time": TIME, "lat": np.linspace(10, 60, H), "lon": np.linspace(0, 4, W)}
GRID = ("time", "lat", "lon")


def field(name, *, dims=GRID, start=0, lazy=False):
    values = DRAW.standard_normal((N, H, W)).astype("f4")
    if lazy:
        values = da.from_array(values, chunks=(10, H, W))
    array = xarray.DataArray(values, dims=GRID, coords={**COORDS, "time": TIME + start}, name=name)
    return array.transpose(*dims)


DATA = xarray.Dataset({"sst": field("sst"), "slp": field("slp")})
INDEX = xarray.DataArray(DATA.sst.mean(("lat", "lon")).values, dims="time", coords={"time": TIME}, name="index")
NET = [layers.Convolution(num_filters=1, kernel=1), layers.MSELoss()]


def test_variables_are_channels_and_predictions_have_coordinates(caplog):
    fitted = Regressor(epochs=2, random_state=0).fit(DATA, INDEX)
    assert "X: the variables sst, slp are the channels, in this order." in caplog.text
    found = fitted.predict(DATA[["slp", "sst"]].transpose("lat", "time", "lon"))
    assert (found.dims, found.name) == (("time",), "index")
    np.testing.assert_array_equal(found.time, TIME)
    values = np.stack([DATA.sst.values, DATA.slp.values], axis=-1)
    np.testing.assert_allclose(found.values, fitted.predict(values), rtol=1e-6)
    assert fitted.score(DATA, INDEX) == pytest.approx(fitted.score(values, INDEX.values))


@pytest.mark.parametrize("lazy", [False, True])
def test_fields_to_fields(lazy):
    x, y = field("sst", lazy=lazy), field("t2m", dims=("lon", "time", "lat"), lazy=lazy)
    fitted = Regressor(NET, epochs=2, random_state=0).fit(x, y)
    later = field("sst", start=1000)
    found = fitted.predict(later)
    assert (found.dims, found.name) == (GRID, "t2m")
    for dim in GRID:
        np.testing.assert_array_equal(found[dim], later[dim])
    assert np.isfinite(fitted.score(x, y))


def test_maps_of_classes():
    y = (DATA.sst > 0).astype("u1").rename("ice")
    net = [layers.Convolution(num_filters=2, kernel=1)]
    fitted = Classifier(net, epochs=20, learning_rate=0.05, random_state=0).fit(DATA, y)
    best, p = fitted.predict(DATA), fitted.predict_proba(DATA)
    assert (best.dims, p.dims) == (GRID, (*GRID, "class"))
    np.testing.assert_array_equal(p["class"], [0, 1])
    np.testing.assert_array_equal(best, p.argmax("class"))
    assert fitted.score(DATA, y) == pytest.approx(float((best == y).mean())) and fitted.score(DATA, y) > 0.8
    plain = Classifier(net, epochs=1, random_state=0).fit(DATA, y.values)
    assert plain.predict(DATA).dims == GRID


def test_lazy_fields_stay_lazy():
    fitted = Regressor(NET, epochs=1, random_state=0).fit(field("a"), field("b"))
    found = fitted.predict(field("a", lazy=True))
    assert isinstance(found.data, da.Array) and found.dims == GRID
    assert np.isfinite(found.values).all()


def test_models_take_them_too():
    data = layers.RecordInput(shape=[2, H, W])
    model = Model([data, layers.Convolution(num_filters=1, kernel=1)])
    values = np.stack([DATA.sst.values, DATA.slp.values], axis=-1)
    found = model.predict(DATA)
    assert found.dims == (*GRID, "output")
    np.testing.assert_array_equal(found.values, model.predict(values))
    two = [layers.RecordInput(name, shape=[H, W], has_label=False) for name in ("sst", "slp")]
    model = Model([*two, layers.Concate("both", ["sst", "slp"], concate_dim=1), layers.InnerProduct(num_output=3)])
    found = model.predict(DATA)
    assert found.dims == ("time", "output")
    np.testing.assert_array_equal(found.time, TIME)
    np.testing.assert_array_equal(found, model.predict({name: DATA[name].values for name in ("sst", "slp")}))


def test_what_does_not_belong_together_is_refused():
    with pytest.raises(DataError, match="other coordinates along 'time'"):
        Regressor(NET).fit(field("a"), field("b", start=5))
    with pytest.raises(DataError, match="no common dimension of the samples"):
        Regressor(NET).fit(field("a"), INDEX.rename(time="day"))
    with pytest.raises(DataError, match=r"the variables differ in their dimensions.*'index'"):
        Regressor().fit(DATA.assign(index=INDEX), INDEX)
    with pytest.raises(DataError, match=r"'mask' has the dimensions .* without that of the samples"):
        Regressor().fit(DATA.assign(mask=DATA.sst[0].drop_vars("time")), INDEX)
    fitted = Regressor(epochs=1).fit(DATA, INDEX)
    with pytest.raises(DataError, match="lacks the variables slp"):
        fitted.predict(DATA[["sst"]])
    with pytest.raises(
        DataError, match="has samples along latitude, lon, variable, but in the training data along lat"
    ):
        fitted.predict(DATA.rename(lat="latitude"))


def test_shard_puts_the_samples_first(tmp_path):
    mixed = xarray.Dataset({"sst": DATA.sst, "slp": DATA.slp.transpose("lat", "lon", "time")})
    columns = shard(mixed, INDEX, tmp_path / "s")[""].columns
    assert [c.shape for c in columns if c.role is Role.FEATURE] == [(H, W), (H, W)]


def test_variables_of_one_value_are_the_columns_of_a_table():
    coords = {"sample": np.arange(N) * 10, "height": ("sample", np.ones(N))}
    table = xarray.Dataset({name: ("sample", DRAW.normal(size=N)) for name in ("area", "year")}, coords)
    y = xarray.DataArray(DRAW.normal(size=N), dims="sample", coords={"sample": table.sample})
    fitted = Regressor(epochs=1, random_state=0).fit(table, y)
    assert fitted.feature_names_in_.tolist() == ["area", "year"]
    np.testing.assert_array_equal(
        fitted.predict(table), fitted.predict(table.reset_coords(drop=True).to_dataframe()[["area", "year"]])
    )


@pytest.mark.parametrize("dim", ["lat", "lon"])
def test_grids_that_fall_are_turned_or_refused(tmp_path, dim):
    fitted = Regressor(epochs=1).fit(DATA, INDEX)
    falling = DATA.isel({dim: slice(None, None, -1)})
    xarray.testing.assert_allclose(fitted.predict(falling), fitted.predict(DATA))
    like = shard(DATA, INDEX, tmp_path / "s", shuffle=False)[""]
    shard(falling.transpose("time", "lon", "lat"), INDEX, tmp_path / "t", like=like, shuffle=False)
    for own, expected in zip(load(tmp_path / "t", ["sst", "slp"]), load(tmp_path / "s", ["sst", "slp"]), strict=True):
        np.testing.assert_array_equal(own, expected)
    other = falling.assign_coords({dim: falling[dim] + 100})
    told = f"the coordinates along '{dim}' are falling from .*, but were rising from .* in "
    with pytest.raises(DataError, match=told):
        fitted.predict(other)
    with pytest.raises(DataError, match=told):
        shard(other, INDEX, tmp_path / "u", like=like)


def test_channels_are_found_by_their_names():
    bands = DATA.to_dataarray("band").transpose("time", "lat", "lon", "band")
    fitted = Regressor(epochs=1).fit(bands, INDEX)
    assert fitted.predict(bands.transpose("band", ...)).dims == ("time",)
    xarray.testing.assert_allclose(fitted.predict(bands.isel(band=[1, 0])), fitted.predict(bands))
    with pytest.raises(DataError, match=r"along .band. are sst, t2m, but were sst, slp in the training data\."):
        fitted.predict(bands.assign_coords(band=["sst", "t2m"]))


def test_other_places_are_told(caplog):
    fitted = Regressor(epochs=1).fit(DATA, INDEX)
    fitted.predict(DATA)
    assert "run from" not in caplog.text
    west = DATA.assign_coords(lon=DATA.lon - 180)
    for given in (fitted, fitted.model_):
        caplog.clear()
        given.predict(west)
        told = "the coordinates along 'lon' run from -180 to -176, but ran from 0 to 4 in the training data."
        assert caplog.text.count(told) == 1


@pytest.mark.parametrize("size", [3, 1])
def test_samples_of_another_shape_are_refused_without_a_warning_before(tmp_path, caplog, size):
    fitted, fewer = Regressor(epochs=1).fit(DATA, INDEX), DATA.isel(lon=slice(0, size))
    like = shard(DATA, INDEX, tmp_path / "s", shuffle=False)[""]
    for call in (
        fitted.predict,
        fitted.model_.predict,
        lambda x: fitted.score(x, INDEX),
        lambda x: shard(x, INDEX, tmp_path / "t", like=like),
    ):
        with pytest.raises((ValueError, DataError), match="shape"):
            call(fewer)
        assert "run from" not in caplog.text


ROWS = xarray.Dataset({"a": INDEX, "b": INDEX**2}).drop_attrs()
ANSWERS = xarray.Dataset({"u": 2 * INDEX, "v": 1 - INDEX})
FEATURES = {
    "Dataset": ROWS,
    "DataArray": ROWS.to_dataarray("feature").transpose("time", ...),
    "DataFrame": ROWS.to_dataframe(),
    "array": ROWS.to_dataarray().values.T,
}


@pytest.mark.parametrize("names", [["u"], ["u", "v"]])
@pytest.mark.parametrize("kind", FEATURES)
def test_answers_of_a_dataset_are_paired_by_their_coordinates(kind, names):
    x, y, values = FEATURES[kind], ANSWERS[names], ANSWERS[names].to_dataarray().values.T
    turned = y if kind == "array" else y.isel(time=slice(None, None, -1))
    window = [layers.RecordInput(sequence=4, horizon=2), layers.InnerProduct(num_output=2 * len(names))]
    for net in (None, window):
        plain = Regressor(net, epochs=2, random_state=0).fit(FEATURES["array"], values)
        fitted = Regressor(net, epochs=2, random_state=0).fit(x, turned)
        found = plain.predict(FEATURES["array"])
        np.testing.assert_allclose(np.asarray(fitted.predict(x)), found, rtol=1e-4, atol=1e-5)
        score = plain.score(FEATURES["array"], values)
        assert fitted.score(x, turned) == pytest.approx(score, abs=1e-4)
    if kind != "array":
        with pytest.raises((DataError, ValueError), match=r"lacks the (variables|columns)"):
            fitted.score(x, turned.rename({names[0]: "other"}))


def test_weights_of_a_dataset():
    weight = abs(INDEX).rename("w")
    given = [Regressor(epochs=1, random_state=0).fit(ROWS, INDEX, each) for each in (weight, weight.to_dataset())]
    np.testing.assert_array_equal(*(each.predict(ROWS) for each in given))
    with pytest.raises(ValueError, match=r"sample_weight must be \(N,\)"):
        Regressor(epochs=1).fit(ROWS, INDEX, abs(ANSWERS))


def test_windows_of_records_whose_times_have_a_zone():
    table = ROWS.to_dataframe().tz_localize("Europe/Berlin")
    net = [layers.RecordInput(sequence=4, horizon=2), layers.InnerProduct(num_output=2)]
    fitted = Regressor(net, epochs=1, random_state=0).fit(table, table.a.rename("y"))
    assert fitted.predict(table).shape == (N - 3, 2) and np.isfinite(fitted.score(table, table.a.rename("y")))
    with pytest.raises(ValueError, match="X: its index does not rise"):
        fitted.predict(table[::-1])
