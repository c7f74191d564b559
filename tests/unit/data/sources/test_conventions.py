"""Packed values, fill values and parts that are not there: the same from netCDF, Zarr and HDF5."""

from __future__ import annotations

import shutil
from contextlib import nullcontext

import h5py
import numpy as np
import pytest
import scipy.io
import xarray
import zarr

from singa_dask import load
from singa_dask.data import shard_files
from singa_dask.data.columns import Role
from singa_dask.data.labelled import with_gaps
from singa_dask.data.native import native
from singa_dask.data.sources.conventions import decoded, packing
from singa_dask.errors import DataError

X = (20 + 5 * np.random.default_rng(0).normal(size=(24, 6))).astype("f4")
PACKED = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 20.0, "_FillValue": -32768}


def write(kind, path, x, encoding):
    data = xarray.Dataset({"temp": (("time", "station"), x), "load": ("time", 2 * X[:, 0])})
    encoding = {"temp": encoding, "load": {"dtype": "int16", "scale_factor": 0.1, "_FillValue": -32768}}
    if kind.startswith("zarr"):
        data.to_zarr(path, encoding=encoding, zarr_format=int(kind[-1]))
    else:
        data.to_netcdf(path, engine="h5netcdf", encoding=encoding)


@pytest.mark.parametrize("kind", ["netcdf", "hdf5", "zarr 2", "zarr 3"])
@pytest.mark.parametrize("encoding", [PACKED, {"_FillValue": -9999.0}], ids=["packed", "filled"])
def test_packed_values_are_unpacked_and_fill_values_are_missing(tmp_path, kind, encoding):
    source = tmp_path / ("d.nc" if kind == "netcdf" else "d.h5" if kind == "hdf5" else "d.zarr")
    options = {"source": source, "x": "temp", "target": "load", "shuffle": False}
    write(kind, source, X, encoding)
    shard_files(kind.partition(" ")[0], tmp_path / "out", **options)
    x, y = load(tmp_path / "out")
    np.testing.assert_allclose(x, X, atol=0.0051)
    np.testing.assert_allclose(y, 2 * X[:, 0], atol=0.051)
    holed = X.copy()
    holed[[3, 5], 2] = np.nan
    shutil.rmtree(source) if source.is_dir() else source.unlink()
    write(kind, source, holed, encoding)
    with pytest.raises(DataError, match=r"column 'temp': 2 value\(s\) are NaN, the first in sample 3\."):
        shard_files(kind.partition(" ")[0], tmp_path / "other", **options)


@pytest.mark.parametrize(
    ("dtype", "fill", "missing"),
    [("f4", 2**122 * 1.875, 1), ("i2", -32767, 1), ("u1", 255, 0)],
)
def test_values_that_were_never_written_are_missing_beside_a_missing_value(tmp_path, dtype, fill, missing):
    x = np.arange(48).reshape(24, 2).astype(dtype)
    x[5, 1] = fill
    for own in ({}, {"missing_value": x.dtype.type(3)}, {"scale_factor": 0.5, "add_offset": 1.0}):
        data = xarray.Dataset({"x": (("n", "f"), x, own), "y": ("n", np.arange(24.0))})
        data.to_netcdf(tmp_path / "d.nc", engine="h5netcdf", encoding={"x": {"_FillValue": None}})
        count = missing + ("missing_value" in own)
        with pytest.raises(DataError, match=rf"column 'x': {count} value\(s\) are NaN") if count else nullcontext():
            options = {"target": "y", "overwrite": True}
            shard_files("netcdf", tmp_path / "out", source=tmp_path / "d.nc", x="x", **options)


def test_packed_values_are_not_read_in_place(tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"], file["y"] = np.zeros((8, 2), "i2"), np.zeros(8, "f4")
        file["x"].attrs["scale_factor"] = 0.5
    with pytest.raises(DataError, match=r"'x' is packed, .*scale_factor 0\.5.* Leave out --in-place"):
        shard_files("hdf5", tmp_path / "out", source=tmp_path / "d.h5", x="x", y="y", in_place=True)


@pytest.mark.parametrize("kind", ["hdf5", "zarr"])
def test_chunks_that_were_never_written_are_counted(tmp_path, caplog, kind):
    path = tmp_path / ("d.h5" if kind == "hdf5" else "d.zarr")
    if kind == "hdf5":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", (24, 6), "f4", chunks=(6, 6))[:6] = 5
            file["y"] = np.arange(24.0)
    else:
        group = zarr.open_group(path, mode="w")
        group.create_array("x", shape=(24, 6), chunks=(6, 6), dtype="f4")[:6] = 5
        group.create_array("y", shape=(24,), chunks=(24,), dtype="f4")[:] = np.arange(24) + 1
    made = shard_files(kind, tmp_path / "out", source=path, x="x", target="y")
    note = f"{path.name}: x has 3 of 4 chunks that are not stored: there its values are 0.0"
    assert note in caplog.text and note in next(iter(made.values())).notes


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ([(0, "a.h5", "x"), (32, "gone.h5", "x")], r"its file gone\.h5 is missing"),
        ([(0, "a.h5", "x"), (32, "a.h5", "z")], r"a\.h5 lacks z\. Write it there"),
        ([(0, "a.h5", "x")], "96 of its 192 values have no source"),
        ([(0, "a.h5", "x"), (32, "a.h5", "x")], ""),
    ],
)
def test_virtual_datasets_have_sources_for_all_values(tmp_path, parts, fault):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.full((32, 3), 2.0)
    layout = h5py.VirtualLayout((64, 3), "f8")
    for start, name, dataset in parts:
        layout[start : start + 32] = h5py.VirtualSource(name, dataset, shape=(32, 3))
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=0)
        file["y"] = np.arange(64.0)
    options = {"source": tmp_path / "v.h5", "x": "x", "target": "y", "allow_virtual": True}
    if fault:
        with pytest.raises(DataError, match=fault):
            shard_files("hdf5", tmp_path / "out", **options)
        return
    shard_files("hdf5", tmp_path / "out", **options)
    assert (load(tmp_path / "out")[0] == 2).all()


def test_attributes_that_change_no_value_are_left_alone(tmp_path):
    """Labels with a fill value that none of them has are labels."""
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"], file["y"] = X, np.arange(24) % 3
        file["x"].attrs["_FillValue"], file["x"].attrs["scale_factor"] = np.float32(np.nan), 1.0
    shard_files("hdf5", tmp_path / "2", source=tmp_path / "d.h5", x="x", y="y", in_place=True)
    with h5py.File(tmp_path / "d.h5", "a") as file:
        file["y"].attrs["_FillValue"] = -1
    made = shard_files("hdf5", tmp_path / "1", source=tmp_path / "d.h5", x="x", y="y")[""]
    assert made.targets.role is Role.LABEL and made.targets.dtype == "int64"
    group = zarr.open_group(tmp_path / "d.zarr", mode="w", zarr_format=2)  # whose fill value is 0
    for name, values in (("x", X), ("y", np.arange(24) % 3)):
        array = group.create_array(name, shape=values.shape, chunks=values.shape, dtype=values.dtype)
        array[:], array.attrs["_ARRAY_DIMENSIONS"] = values, ["n", "k"][: values.ndim]
    made = shard_files("zarr", tmp_path / "3", source=tmp_path / "d.zarr", x="x", y="y", shuffle=False)[""]
    assert made.targets.role is Role.LABEL and load(tmp_path / "3")[1].tolist() == (np.arange(24) % 3).tolist()


@pytest.mark.parametrize("value", [[1.0, 2.0], "1.0", h5py.Empty("f4")], ids=["several", "text", "empty"])
def test_an_attribute_that_is_not_one_number_is_named_where_its_array_is_read(tmp_path, value):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"], file["y"], file["z"] = X, X[:, 0], X
        file["z"].attrs["scale_factor"] = value
    shard_files("hdf5", tmp_path / "1", source=tmp_path / "d.h5", x="x", y="y")
    with pytest.raises(DataError, match=r"z has the attribute scale_factor = .*, which is not one number\."):
        shard_files("hdf5", tmp_path / "2", source=tmp_path / "d.h5", x="z", y="y")


def test_virtual_datasets_may_grow(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (8, 3), "f8", maxshape=(None, 3), chunks=(8, 3))[:] = np.arange(24.0).reshape(8, 3)
    layout = h5py.VirtualLayout((8, 3), "f8", maxshape=(None, 3))
    source = h5py.VirtualSource("a.h5", "x", (8, 3), maxshape=(None, 3))
    layout[0 : h5py.h5s.UNLIMITED : 1] = source[0 : h5py.h5s.UNLIMITED : 1]
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
        file["y"] = np.arange(8.0)
    options = {"source": tmp_path / "v.h5", "x": "x", "target": "y", "allow_virtual": True}
    shard_files("hdf5", tmp_path / "out", **options)
    assert load(tmp_path / "out")[0].max() == 23


def stations(days, origin="2020-01-01", calendar="standard"):
    """One value per sample: dates as days since an origin, and time spans as xarray writes them."""
    return xarray.Dataset(
        {
            "day": ("time", days.astype("f8"), {"units": f"days since {origin}", "calendar": calendar}),
            "wait": ("time", np.arange(8), {"units": "hours", "dtype": "timedelta64[ns]"}),
            "load": ("time", np.arange(8) + 0.5),
        }
    )


@pytest.mark.parametrize("kind", ["netcdf", "hdf5", "zarr"])
def test_times_are_dates_whatever_their_units_count_from(tmp_path, kind):
    source, options = tmp_path / ("d.zarr" if kind == "zarr" else "d.nc"), {"x": ("day", "wait"), "target": "load"}

    def features(data):
        data.to_zarr(source, mode="w") if kind == "zarr" else data.to_netcdf(source, engine="h5netcdf")
        shard_files("netcdf" if kind == "netcdf" else kind, tmp_path / "out", source=at, **options, overwrite=True)
        return load(tmp_path / "out")[0]

    at = source if kind != "hdf5" else f"{tmp_path}/d.n[c]"
    options["shuffle"] = False
    one = features(stations(np.arange(8) + 31))
    np.testing.assert_allclose(one, np.stack([np.arange(8), np.arange(8) / 24], 1), atol=1e-6)
    np.testing.assert_array_equal(features(stations(np.arange(8), "2020-02-01")), one)
    capitals = stations(np.arange(8), "2020-02-01")
    capitals.day.attrs["units"] = "Days Since 2020-02-01"
    np.testing.assert_array_equal(features(capitals), one)
    with pytest.raises(
        DataError, match=r"day holds times in 'days since 0001-01-01', .* such as days since 1970-01-01"
    ):
        features(stations(np.arange(8) + 730_000, "0001-01-01"))
    with pytest.raises(DataError, match="day holds times of the calendar 'noleap', in which NumPy has no dates"):
        features(stations(np.arange(8), calendar="noleap"))


@pytest.mark.parametrize("kind", ["netcdf", "hdf5", "zarr 2", "zarr 3"])
@pytest.mark.parametrize("valid", [{"valid_range": [0, 100]}, {"valid_max": 100}, {"valid_min": -5, "valid_max": 100}])
def test_values_outside_of_the_valid_range_are_missing(tmp_path, kind, valid):
    source = tmp_path / ("d.nc" if kind == "netcdf" else "d.h5" if kind == "hdf5" else "d.zarr")
    stored = np.array([0, 1, 50, 100, 101, 100], "i2")
    attributes = {name: np.array(value, "i2") for name, value in valid.items()} | {"scale_factor": 0.1}
    if kind.startswith("zarr"):
        group = zarr.open_group(source, mode="w", zarr_format=int(kind[-1]))
        for name, values, of in (("temp", stored[:, np.newaxis], attributes), ("y", np.arange(6.0), {})):
            array = group.create_array(name, data=values)
            array.attrs.update({key: np.asarray(value).tolist() for key, value in of.items()})
    else:
        data = xarray.Dataset({"temp": (("s", "v"), stored[:, np.newaxis], attributes), "y": ("s", np.arange(6.0))})
        data.to_netcdf(source, engine="h5netcdf")
    options = {"source": source, "x": "temp", "target": "y", "shuffle": False}
    with pytest.raises(DataError, match=r"column 'temp': 1 value\(s\) are .*, the first in sample 4\."):
        shard_files(kind.partition(" ")[0], tmp_path / "out", **options)
    shard_files(kind.partition(" ")[0], tmp_path / "out", missing=-1, **options)
    np.testing.assert_allclose(load(tmp_path / "out")[0][:, 0], [0, 0.1, 5, 10, -1, 10], atol=1e-6)


f4, f8, i1, u1, i2, u2 = np.float32, np.float64, np.int8, np.uint8, np.int16, np.uint16
UNSIGNED, SIGNED, NAN = {"_Unsigned": "true"}, {"_Unsigned": b"false"}, np.nan


@pytest.mark.parametrize(
    ("stored", "attributes", "expected"),
    [
        (f4([1, -999.9]), {"missing_value": f8(-999.9)}, [1, NAN]),
        (f4([1, 1e20]), {"_FillValue": 1e20}, [1, NAN]),
        (f4([1, 1e20, -999.9]), {"_FillValue": f8(1e20), "missing_value": [-999.9]}, [1, NAN, NAN]),
        (f4([1, 0.1]).astype(">f4"), {"missing_value": 0.1, "scale_factor": 2.0}, [2, NAN]),
        (f4([1, np.inf]), {"missing_value": 1e300}, [1, np.inf]),
        (f8([1, f4(-999.9)]), {"missing_value": f4(-999.9)}, [1, NAN]),
        (i2([1, -999]), {"missing_value": f8(-999.0)}, [1, NAN]),
        (i2([1, -999]), {"missing_value": f8(-999.9)}, [1, -999]),
        (u1([1, 255]), {"missing_value": i2(-1)}, [1, 255]),
        (np.int64([1, 2**63 - 1]), {"missing_value": 2.0**63}, [1, NAN]),
        (f4([0.1, 0.2, 0.3]), {"valid_range": f8([0.1, 0.2])}, [f4(0.1), f4(0.2), NAN]),
        (i2([0, -6, -5, -1]), UNSIGNED | {"_FillValue": i2(-1), "valid_range": i2([0, -6])}, [0, 65530, NAN, NAN]),
        (i2([0, -6, -5]), UNSIGNED | {"valid_range": [0, -6]}, [0, 65530, NAN]),  # of JSON, in Zarr
        (i2([0, -6, -5]), UNSIGNED | {"valid_range": np.int32([0, 65530])}, [0, 65530, NAN]),
        (i2([0, -6, -5]), UNSIGNED | {"valid_max": u2(65530)}, [0, 65530, NAN]),
        (i2([9, -6, 4]), UNSIGNED | {"valid_min": i2(5), "scale_factor": 0.5}, [4.5, 32765, NAN]),
        (i2([9, -6]), UNSIGNED | {"_FillValue": u2(65530)}, [9, NAN]),
        (i2([9, -6]).astype(">i2"), UNSIGNED | {"missing_value": 65530.0}, [9, NAN]),
        (i1([1, -1]), {"_Unsigned": np.array(["True"], object)}, [1, 255]),
        (u1([1, 255]), SIGNED, [1, -1]),
        (u1([1, 255, 128]), SIGNED | {"scale_factor": 0.5, "_FillValue": u1(128)}, [0.5, -0.5, NAN]),
        (u1([1, 255, 128]), SIGNED | {"valid_range": u1([156, 100])}, [1, -1, NAN]),
        (u1([1, 255, 128]), SIGNED | {"valid_range": i1([-100, 100])}, [1, -1, NAN]),
        (u1([1, 255]), UNSIGNED | {"valid_range": i2([0, 300])}, [1, 255]),
        (i1([1, -1]), {"valid_range": i2([0, 300])}, [1, NAN]),
    ],
)
def test_attributes_count_in_the_type_of_the_values(stored, attributes, expected):
    np.testing.assert_array_equal(decoded(stored, packing(attributes, stored.dtype)), expected)


ROUNDED = [
    ({"missing_value": -999.9}, -999.9, [1, 2, NAN]),
    ({"_FillValue": 1e20}, 1e20, [1, 2, NAN]),
    ({"_FillValue": -999.0}, -999.0, [1, 2, NAN]),
    ({"missing_value": 0.1, "scale_factor": 0.5, "add_offset": 3.0}, 0.1, [3.5, 4, NAN]),
]


@pytest.mark.parametrize(("attributes", "fill", "expected"), ROUNDED)
@pytest.mark.parametrize("chunks", [None, {}])
def test_fill_values_that_xarray_overlooks_are_missing(tmp_path, attributes, fill, expected, chunks):
    with h5py.File(tmp_path / "d.nc", "w") as file:
        file["x"], file["n"] = f4([1, 2, fill]), np.arange(3)
        file["n"].make_scale("n")
        file["x"].dims[0].attach_scale(file["n"])
        file["x"].attrs.update(attributes)
    with xarray.open_dataset(tmp_path / "d.nc", engine="h5netcdf", chunks=chunks) as data:
        for each in (data.x, with_gaps(data)["x"], with_gaps({"a": data.x[:]})["a"]):
            np.testing.assert_array_equal(with_gaps(each).values, expected)
        assert with_gaps(index := data.n) is index


@pytest.mark.parametrize(("attributes", "fill", "expected"), ROUNDED)
def test_fill_values_that_a_library_overlooks_as_it_decodes_are_missing(tmp_path, attributes, fill, expected):
    with scipy.io.netcdf_file(tmp_path / "d.nc", "w") as file:
        file.createDimension("n", 3)
        variable = file.createVariable("x", "f4", ("n",))
        variable[:] = f4([1, 2, fill])
        for name, value in attributes.items():
            setattr(variable, name, np.float64(value))
    with scipy.io.netcdf_file(tmp_path / "d.nc", mmap=False, maskandscale=True) as file:
        np.testing.assert_array_equal(np.asarray(native(file.variables["x"])), expected)
