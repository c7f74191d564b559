"""Arrays of files that are given as objects: the file says which dimensions and coordinates they have."""

import json

import h5netcdf
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

from singa_dask import Regressor, layers, load, shard
from singa_dask.data.labelled import along_of
from singa_dask.data.sources import stored
from singa_dask.errors import DataError

N = 6
OPEN = []
DRAW = np.random.default_rng(0)
FIELD = xr.DataArray(
    DRAW.normal(size=(N, 4, 4, 2)),
    {"time": np.arange(N), "lat": [60.0, 55, 50, 45], "lon": np.arange(4.0), "band": ["red", "nir"], "level": 5.0},
    ("time", "lat", "lon", "band"),
    attrs={"units": "K"},
)
CURVED = FIELD.drop_vars(["lat", "lon"]).assign_coords(nav_lat=(("lat", "lon"), DRAW.normal(size=(4, 4))))
OTHERWISE = {
    "falling": lambda x: x.isel(lat=slice(None, None, -1)),
    "rolled": lambda x: x.roll(lon=1, roll_coords=True),
    "other order of names": lambda x: x.isel(band=[1, 0]),
    "transposed": lambda x: x.transpose("time", "lon", "lat", "band"),
}


def _h5py(path, x, group=None):
    xr.Dataset({"u": x}).to_netcdf(path / "f.nc", engine="h5netcdf", group=group)
    return h5py.File(path / "f.nc")[f"{group or ''}/u"]


def _scales(path, x):
    """By hand, as programs without netCDF write them."""
    file = h5py.File(path / "f.h5", "w")
    made = file.create_dataset("deep/u", data=x.values)
    made.attrs.update(x.attrs)
    for axis, dim in enumerate(x.dims):
        file[str(dim)] = np.char.encode(x[dim].values) if x[dim].dtype.kind == "U" else x[dim].values
        file[str(dim)].make_scale("a long name")
        made.dims[axis].attach_scale(file[str(dim)])
    return made


def _zarr(path, x, version=3, group=None):
    xr.Dataset({"u": x}).to_zarr(path / "f.zarr", zarr_format=version, group=group, consolidated=False)
    return zarr.open_group(path / "f.zarr", mode="r")[f"{group or ''}/u".strip("/")]


def _h5netcdf(path, x):
    _h5py(path, x).file.close()
    OPEN.append(h5netcdf.File(path / "f.nc"))
    return OPEN[-1]["u"]


OBJECTS = {
    "h5py": _h5py,
    "h5py, in a group": lambda path, x: _h5py(path, x, "a/b"),
    "h5py, scales by hand": _scales,
    "h5netcdf": _h5netcdf,
    "zarr 2": lambda path, x: _zarr(path, x, 2),
    "zarr 3": _zarr,
    "zarr, in a group": lambda path, x: _zarr(path, x, 3, "a/b"),
}


def made(tmp_path, kind, x):
    path = tmp_path / str(len([*tmp_path.iterdir()]))
    path.mkdir()
    return OBJECTS[kind](path, x)


@pytest.mark.parametrize("kind", OBJECTS)
def test_the_file_says_as_much_as_a_data_array(tmp_path, kind):
    known = along_of(FIELD, "x")
    own = stored.stored(made(tmp_path, kind, FIELD))
    wanted = known._replace(scalars={}) if "hand" in kind else known
    assert own.along() == wanted and wanted.coordinates.keys() == {"lat", "lon", "band"}
    lone = stored.stored(made(tmp_path, kind, FIELD[:, :, 0]))
    assert lone.along(lone=True).coordinates.keys() == {"time", "lat", "band"}


@pytest.mark.parametrize("kind", ["h5py", "h5netcdf", "zarr 2", "zarr 3"])
def test_auxiliary_coordinates_are_known_too(tmp_path, kind):
    own = stored.stored(made(tmp_path, kind, CURVED)).along()
    assert own == along_of(CURVED, "x") and own.coordinates.keys() == {"lat", "lon", "band"}
    with pytest.raises(DataError, match="coordinates along lat in another order"):
        stored.stored(made(tmp_path, kind, CURVED[:, ::-1])).like(own, "x")


@pytest.mark.parametrize("how", OTHERWISE)
@pytest.mark.parametrize("kind", ["h5py", "zarr 3"])
def test_another_order_than_in_training_is_refused(tmp_path, kind, how):
    trained = along_of(FIELD, "x")
    assert stored.stored(made(tmp_path, kind, FIELD)).like(trained, "x").along().dims == FIELD.dims[1:]
    said = {
        "falling": "coordinates along lat",
        "rolled": "coordinates along lon",
        "transposed": "along lon, lat, band",
    }
    with pytest.raises(DataError, match=rf"x: has .*{said.get(how, 'coordinates along band')}.* Reorder it, or open"):
        stored.stored(made(tmp_path, kind, OTHERWISE[how](FIELD))).like(trained, "x")


def test_other_coordinates_are_told_or_refused(tmp_path, caplog):
    trained = along_of(FIELD, "x")
    own = made(tmp_path, "zarr 3", FIELD.assign_coords(lat=FIELD.lat - 5, level=7.0))
    checked = stored.stored(own).like(trained, "x")
    assert "'lat' run from 55 to 40, but ran from 60 to 45" in caplog.text and "'level' is 7, but 5" in caplog.text
    caplog.clear()
    assert checked.like(trained, "x") and not caplog.text  # it is told once
    one = stored.stored(made(tmp_path, "zarr 3", FIELD[0].assign_coords(lat=FIELD.lat - 5)))
    assert one.like(trained, "x", lone=True) and not caplog.text  # patches lie anywhere
    with pytest.raises(DataError, match=r"coordinates along 'band' are .* but were red, nir"):
        stored.stored(made(tmp_path, "h5py", FIELD.assign_coords(band=["red", "blue"]))).like(trained, "x")


@pytest.mark.parametrize(
    "plain",
    [
        lambda path: zarr.create_array(zarr.storage.MemoryStore(), data=FIELD.values),
        lambda path: zarr.create_array(path / "a.zarr", data=FIELD.values, dimension_names=FIELD.dims),
        lambda path: zarr.open_group(path, mode="w").create_array("u", data=FIELD.values),
        lambda path: h5py.File(path / "f.h5", "w").create_dataset("u", data=FIELD.values),
    ],
)
def test_arrays_whose_file_says_nothing_suit_all(tmp_path, plain):
    own = stored.stored(plain(tmp_path))
    assert own.along().coordinates == {} and own.like(along_of(FIELD, "x"), "x").shape == FIELD.shape
    np.testing.assert_array_equal(own, FIELD)


def test_estimators_and_models_compare_with_what_they_were_fitted_to(tmp_path):
    field, target = FIELD.isel(band=0), FIELD[:, 0, 0, 0].drop_vars(["lat", "lon", "band", "level"])
    own, flipped = (made(tmp_path, "zarr 2", each) for each in (field, field[:, ::-1]))
    net = [layers.InnerProduct(num_output=1)]
    fitted = Regressor(net, epochs=1, random_state=0).fit(own, made(tmp_path, "h5py", target))
    expected = fitted.predict(own)
    np.testing.assert_array_equal(fitted.predict(field[:, ::-1]), expected)
    assert fitted.model_.known.inputs["data"].schema.reading.along("x") == along_of(field, "x")
    assert fitted.model_.known.inputs["data"].schema.reading.units == {"x": "K", "y": "K"}
    for call in (
        fitted.predict,
        fitted.model_.predict,
        lambda x: fitted.model_.predict({"data": x}),
        lambda x: fitted.score(x, target.values),
        lambda x: fitted.model_.evaluate(x, target.values),
    ):
        with pytest.raises(DataError, match="coordinates along lat in another order than in the training data"):
            call(flipped)


@pytest.mark.parametrize("kinds", [("zarr 3", "h5py"), ("h5py", None), (None, "zarr 2")])
def test_what_is_given_together_is_in_one_order(tmp_path, kinds):
    x, same, flipped = (
        each if kind is None else made(tmp_path, kind, each)
        for kind, each in zip((kinds[0], kinds[1], kinds[1]), (FIELD, 2 * FIELD, 2 * FIELD[:, ::-1]), strict=True)
    )
    shard(x, same, tmp_path / "s", shuffle=False)
    np.testing.assert_array_equal(load(tmp_path / "s", ["y"])[0], 2 * FIELD)
    for call in (
        lambda: shard(x, flipped, tmp_path / "t"),
        lambda: Regressor(epochs=1).fit(x, flipped),
        lambda: shard({"a": np.ones((N, 2)), "u": x, "v": flipped}, np.arange(N), tmp_path / "t"),
    ):
        with pytest.raises(DataError, match=r"coordinates along lat in another order than in X"):
            call()


@pytest.mark.parametrize("kind", ["h5py", "zarr 2", "zarr 3"])
def test_shards_like_others_are_put_in_order(tmp_path, kind):
    shard(FIELD, np.arange(N), tmp_path / "s", shuffle=False)
    for how in OTHERWISE.values():
        shard(made(tmp_path, kind, how(FIELD)), np.arange(N), tmp_path / "t", like=tmp_path / "s", overwrite=True)
        row, x = load(tmp_path / "t", ["row", "x"])
        np.testing.assert_array_equal(x, FIELD.values[row])


def test_a_coordinate_whose_codec_may_run_code_is_not_read(tmp_path):
    own = made(tmp_path, "zarr 2", FIELD)
    codec = {"id": "base64"}
    metadata = tmp_path / "0" / "f.zarr" / "lat" / ".zarray"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"compressor": codec}))
    with pytest.raises(DataError, match="lat is stored with the codec 'base64'"):
        stored.stored(own).along()
    metadata.write_text("{}")  # nor one that cannot be read at all
    assert stored.stored(own).along().coordinates.keys() == {"lon", "band"}
