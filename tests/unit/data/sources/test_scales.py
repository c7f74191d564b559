"""HDF5 files with dimension scales, as netCDF 4 and other programs write them, are read like netCDF files."""

import h5py
import numpy as np
import pytest
import xarray as xr
from support.sources import read_all

from singa_dask import load
from singa_dask.data.in_place import index
from singa_dask.data.ingest.write import write
from singa_dask.data.sources import hdf5, netcdf
from singa_dask.errors import DataError

N = 6
DRAW = np.random.default_rng(0)
U = xr.DataArray(DRAW.normal(size=(N, 4, 5)), dims=("time", "lat", "lon"), attrs={"units": "K"})
DATA = xr.Dataset(
    {"u": U, "y": U[:, 0, 0]},
    {"time": np.datetime64("2001-01-01", "ns") + np.arange(N) * np.timedelta64(1, "D"), "lat": [60.0, 55, 50, 45]},
)
FILL = float.fromhex("0x1.ep+122")
VARIANTS = {
    "fields": DATA,
    "dimensions without coordinates": DATA.assign(y=U[:, ::-1].rename(lat="a", lon="b")[:, :3]),
    "transposed": DATA.assign(y=U.transpose("time", "lon", "lat")),
    "channels first": DATA.assign(u=xr.concat([U, U], "band").transpose("time", "band", ...)),
    "levels": DATA.assign(u=U.expand_dims(level=[1.0, 5], axis=1)),
    "names": DATA.assign_coords({"lon": ["a", "b", "c", "d", "\u00e9"]}),
    "curved": DATA.drop_vars("lat").assign_coords(nav_lat=(("lat", "lon"), DRAW.normal(size=(4, 5)))),
    "a level": DATA.assign_coords(level=5.0),
    "without times": DATA.drop_vars("time"),
    "default fill values": DATA.assign(u=U.where(U < 1, FILL)),
    "by time alone": DATA.assign(u=U[:, 0, 0]),
}
ENCODING = {"u": {"_FillValue": None}}


def written(path, data, **options):
    data.to_netcdf(path, engine="h5netcdf", **options)
    return path


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_netcdf_reads_is_read_of_other_suffixes_too(tmp_path, variant):
    made = {
        name: form.FORMAT.load(written(tmp_path / name, VARIANTS[variant], encoding=ENCODING), x="u", target="y")[""]
        for name, form in (("f.nc", netcdf), ("f.he5", hdf5))
    }
    own, other = made["f.he5"], made["f.nc"]
    assert own.time == (None if variant == "without times" else "time")
    for name in ("channels", "time", "table", "roles", "split"):
        assert getattr(own, name) == getattr(other, name)
    for name in ("dimensions", "coordinates", "units", "scalars", "datasets"):
        assert getattr(own.reading, name) == getattr(other.reading, name)
    for one, two in zip(read_all(own).items(), read_all(other).items(), strict=True):
        np.testing.assert_array_equal(one[1], two[1])
        assert one[0] == two[0]


def test_scales_of_groups_are_those_of_the_groups_around_them(tmp_path):
    written(tmp_path / "g.h5", DATA[["time", "lat"]])
    written(tmp_path / "g.h5", DATA, group="a/b", mode="a")
    source = hdf5.FORMAT.load(tmp_path / "g.h5", x="a/b/u", target="a/b/y")[""]
    assert source.reading.coordinates["lat"].values == (60.0, 55, 50, 45)


@pytest.mark.parametrize(
    "turned",
    [
        DATA.isel(lat=slice(None, None, -1)),
        DATA.isel(lat=[2, 0, 1, 3]),
        DATA.transpose("time", "lon", "lat"),
    ],
)
def test_files_of_one_source_and_new_data_are_put_in_order(tmp_path, turned):
    paths = written(tmp_path / "a.h5", DATA), written(tmp_path / "b.h5", turned)
    got = read_all(hdf5.FORMAT.load(f"{tmp_path}/*.h5", x="u", target="y")[""])["u"]
    np.testing.assert_array_equal(got[:N], got[N:])
    made = [write(hdf5.FORMAT.load(paths[0], x="u", target="y")[""], tmp_path / "s", shuffle=False)[""]]
    source = hdf5.FORMAT.load(paths[1], x="u", target="y")[""]
    write(source, tmp_path / "t", like=made[0], shuffle=False)
    np.testing.assert_array_equal(*(load(tmp_path / name, ["x"])[0] for name in "st"))
    with pytest.raises(DataError, match=r"read in place as they lie\. Leave out --in-place"):
        index(hdf5.FORMAT.load(f"{tmp_path}/*.h5", x="u", target="y")[""], tmp_path / "p")


def test_files_with_times_are_read_in_place(tmp_path):
    source = hdf5.FORMAT.load(
        written(tmp_path / "a.h5", DATA, encoding=ENCODING | {"y": {"_FillValue": None}}), x="u", target="y"
    )
    made = index(source[""], tmp_path / "p")
    assert made.features.shape == (4, 5) and load(tmp_path / "p", ["y"])[0].tolist() == DATA.y.values.tolist()


def test_files_that_lie_along_other_dimensions_are_refused_as_those_of_netcdf(tmp_path):
    path = written(tmp_path / "a.h5", DATA.assign(y=("obs", np.arange(6.0))))
    with pytest.raises(DataError, match=r"the samples of u are along 'time', but those of y along 'obs'"):
        hdf5.FORMAT.load(path, x="u", target="y")


def plain(file):
    file["lat"] = np.arange(4.0)[::-1]


def labels(file):
    for axis, name in enumerate(("time", "lat", "lon")):
        file["u"].dims[axis].label = name


def loose_scales(file):
    file["lat"] = np.arange(4.0)
    file["lat"].make_scale("lat")


@pytest.mark.parametrize("change", [plain, labels, loose_scales])
def test_files_without_scales_stay_as_they_are(tmp_path, change):
    values = np.where(U < 1, U, FILL)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"], file["y"], file["time"] = values, values[:, 0, 0], np.arange(N)
        file["time"].attrs["units"] = "days since 2001-01-01"
        change(file)
    source = hdf5.FORMAT.load(tmp_path / "a.h5", x="u", target="y")[""]
    assert (source.channels, source.time, source.reading.dimensions, source.reading.coordinates) == ({}, None, {}, {})
    np.testing.assert_array_equal(read_all(source)["u"], values)
    assert "  u     float64 (6, 4, 5)\n" in hdf5.FORMAT.listing(tmp_path / "a.h5") + "\n"


@pytest.mark.parametrize("link", ["external", "virtual", "of another length", "on one axis"])
def test_scales_that_give_no_coordinates(tmp_path, link):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["lat"] = [4.0, 3, 2, 1]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"] = U.values
        if link == "virtual":
            layout = h5py.VirtualLayout((4,), float)
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "lat", (4,))
            file.create_virtual_dataset("lat", layout)
        elif link == "of another length":
            file["lat"] = np.arange(3.0)
        else:
            file["lat"] = [4.0, 3, 2, 1]
        if link == "external":
            file["u"].attrs["coordinates"] = "far"
            file["far"] = h5py.ExternalLink(tmp_path / "other.h5", "lat")
        file["lat"].make_scale()
        file["u"].dims[1].attach_scale(file["lat"])
    reading = hdf5.FORMAT.load(tmp_path / "a.h5", x="u")[""].reading
    assert (reading.dimensions, reading.coordinates) == ({}, {})
