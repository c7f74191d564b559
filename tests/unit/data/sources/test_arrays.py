"""What is particular of Zarr, netCDF and npz."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numcodecs.pickles
import numpy as np
import pytest
import xarray as xr
import zarr
from support.sources import read_all, write_file
from support.special_files import put

from singa_dask.data.columns import Channels, Role
from singa_dask.data.sources import files, netcdf, npz
from singa_dask.data.sources import zarr as zarr_source
from singa_dask.data.sources.datasets import channels_by_dimensions
from singa_dask.errors import DataError

X = np.random.default_rng(0).standard_normal((30, 2, 4, 5)).astype("f4")
Y = np.arange(30) % 4


# Zarr


def store(path: Path, version: int, names: tuple[str, ...] = ()) -> Path:
    named = {"dimension_names": names} if version == 3 and names else {}
    texts = {"shape": (30,), "dtype": str, "chunks": (30,)}
    content = {"data/X": {"data": X, "chunks": (8, 2, 4, 5), **named}, "data/y": Y, "kinds": texts}
    group = zarr.open_group(str(write_file("zarr", path, content, version=version)))
    group["kinds"][:] = np.array(["u", "v"] * 15, object)
    if names and version == 2:
        group["data/X"].attrs["_ARRAY_DIMENSIONS"] = list(names)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("names", [("time", "band", "lat", "lon"), ()])
def test_dimensions_of_zarr_arrays_tell_the_channels(tmp_path, version, names):
    source = zarr_source.FORMAT.load(store(tmp_path / "a.zarr", version, names))[""]
    assert (source.x, source.y) == (("X",), ("y",))
    assert source.channels == ({"X": Channels.FIRST} if names else {})


def test_zarr_stores_are_concatenated_and_texts_are_labels(tmp_path):
    for name in ("b", "a"):
        store(tmp_path / name, 3)
    source = zarr_source.FORMAT.load(tmp_path, x="data/X", label="kinds")[""]
    assert source.roles == {"kinds": Role.LABEL}
    assert read_all(source)["kinds"].tolist() == ["u", "v"] * 30


class Touching:
    """Unpickling it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


CODECS = {
    "filter": ("pickle", {"filters": [{"id": "vlen-utf8"}, {"id": "pickle"}], "compressor": None}),
    "compressor": ("pickle", {"compressor": {"id": "pickle", "protocol": 4}}),
    "object codec": ("pickle", {"filters": [{"id": "pickle"}], "compressor": None}),
    "another object codec": ("json2", {"filters": [{"id": "json2"}]}),
    "unknown": ("no.such", {"filters": [{"id": "vlen-utf8"}, {"id": "no.such"}]}),
}


@pytest.mark.parametrize("case", CODECS)
@pytest.mark.parametrize("consolidated", [False, True])
def test_zarr_codecs_that_may_run_code_are_refused_by_name(tmp_path, monkeypatch, case, consolidated):
    """Versions of numcodecs before 0.16.6 unpickle whatever a file holds."""
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True, raising=False)
    path = store(tmp_path / "a.zarr", 2)
    codec, changed = CODECS[case]
    metadata = json.loads((path / "kinds" / ".zarray").read_text()) | changed
    (path / "kinds" / "0").write_bytes(pickle.dumps(Touching(tmp_path / "ran")))
    (path / "kinds" / ".zarray").write_text(json.dumps(metadata))
    if consolidated:
        (path / "kinds" / ".zarray").unlink()
        whole = {"metadata": {".zgroup": {"zarr_format": 2}, "kinds/.zarray": metadata}, "zarr_consolidated_format": 1}
        (path / ".zmetadata").write_text(json.dumps(whole))
    message = rf"a\.zarr: kinds is stored with the codec '{codec}', .*one of .*blosc, .*vlen-utf8"
    rows = files.Rows(path, 0, 30, "")
    for call in (zarr_source.FORMAT.load, zarr_source.FORMAT.listing, lambda path: zarr_source._read(rows, ["kinds"])):
        with pytest.raises(DataError, match=message):
            call(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("consolidated", [False, True])
def test_zarr_codecs_in_shards_are_known_too(tmp_path, consolidated):
    content = {"x": {"data": X, "chunks": (1, 2, 4, 5), "shards": (10, 2, 4, 5)}}
    store = write_file("zarr", tmp_path / "a.zarr", content)
    if consolidated:
        zarr.consolidate_metadata(str(store))
    path = store / ("" if consolidated else "x") / "zarr.json"
    assert '"zstd"' in path.read_text()
    path.write_text(path.read_text().replace('"zstd"', '"numcodecs.pickle"'))
    with pytest.raises(DataError, match=r"a\.zarr: x is stored with the codec 'numcodecs.pickle'"):
        zarr_source.FORMAT.load(store)


@pytest.mark.timeout(20, method="signal", func_only=True)
@pytest.mark.parametrize("name", [".zgroup", ".zattrs", "kinds/.zarray", "kinds/.zattrs"])
def test_a_pipe_among_the_metadata_of_a_zarr_store_is_refused(tmp_path, name):
    put("fifo", store(tmp_path / "a.zarr", 2) / name)
    for call in (zarr_source.FORMAT.load, zarr_source.FORMAT.listing):
        with pytest.raises(DataError, match=r"a\.zarr: .*it is a pipe, not a file"):
            call(tmp_path / "a.zarr")


@pytest.mark.parametrize(
    ("version", "x", "y"),
    [
        (2, {"compressors": None}, {"filters": [numcodecs.Delta("i8")], "compressors": numcodecs.Zlib()}),
        (
            3,
            {"compressors": [zarr.codecs.BloscCodec(), zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]},
            {"shards": (30,), "chunks": (10,)},
        ),
    ],
)
def test_zarr_arrays_of_every_usual_codec_are_read(tmp_path, version, x, y):
    path = write_file("zarr", tmp_path / "a.zarr", {"x": {"data": X, **x}, "y": {"data": Y, **y}}, version=version)
    zarr.open_group(str(path)).attrs["codecs"] = [{"id": "pickle"}]  # of the user's, and no codec
    for values, expected in zip(read_all(zarr_source.FORMAT.load(path)[""]).values(), (X, Y), strict=True):
        np.testing.assert_array_equal(values, expected)


# netCDF


@pytest.fixture
def nc(tmp_path: Path) -> Path:
    dataset = xr.Dataset(
        {
            "x": (("time", "band", "lat", "lon"), X),
            "y": (("time",), Y),
            "z": (("time", "lat", "lon"), X[:, 0].astype("f8")),
            "other": (("station",), np.arange(30)),
            "name": (("time",), np.array(["a", "bc"] * 15)),
        },
        coords={"time": np.arange(30)},
    )
    dataset["z"].values[3] = np.nan
    packed = {"dtype": "i2", "scale_factor": 0.25, "_FillValue": -32768}
    dataset.to_netcdf(tmp_path / "f.nc", engine="h5netcdf", encoding={"z": packed, "x": {"chunksizes": (4, 2, 4, 5)}})
    return tmp_path / "f.nc"


def test_netcdf_variables_are_decoded_and_dimensions_tell_the_channels(nc):
    source = netcdf.FORMAT.load(nc)[""]
    assert (source.x, source.y, source.channels) == (("x",), ("y",), {"x": Channels.FIRST})
    np.testing.assert_array_equal(read_all(source)["x"], X)
    source = netcdf.FORMAT.load(nc, x=["x", "z"], y="name", channels="last")[""]
    assert source.channels == {"x": Channels.LAST, "z": Channels.LAST}
    found = read_all(source)
    assert found["name"].tolist() == ["a", "bc"] * 15
    assert np.isnan(found["z"][3]).all()
    np.testing.assert_allclose(np.delete(found["z"], 3, 0), np.delete(X[:, 0], 3, 0), atol=0.126)


@pytest.mark.parametrize(
    ("dtype", "default"), [("f4", 15 * 2.0**119), ("f8", 15 * 2.0**119), ("i2", -32767), ("i8", -(2**63) + 2)]
)
def test_what_was_never_written_in_netcdf_is_missing(tmp_path, dtype, default):
    values = np.arange(6).astype(dtype)
    values[4] = default
    dataset = xr.Dataset({"x": ("time", values), "y": ("time", np.zeros(6))})
    dataset.to_netcdf(tmp_path / "f.nc", engine="h5netcdf", encoding={"x": {"_FillValue": None}})
    found = read_all(netcdf.FORMAT.load(tmp_path / "f.nc", x="x", y="y")[""])["x"]
    np.testing.assert_array_equal(found, np.where(np.arange(6) == 4, np.nan, np.arange(6)))
    other = dataset.assign(x=("time", np.arange(6).astype(dtype)))
    other.to_netcdf(tmp_path / "g.nc", engine="h5netcdf", encoding={"x": {"_FillValue": None}})
    assert read_all(netcdf.FORMAT.load(tmp_path / "g.nc", x="x", y="y")[""])["x"].dtype == dtype


def test_netcdf_variables_along_other_dimensions_do_not_fit(nc):
    with pytest.raises(DataError, match="samples of x are along 'time', but those of other along 'station'"):
        netcdf.FORMAT.load(nc, x="x", y="other")


@pytest.mark.parametrize("calendar", ["360_day", "noleap"])
def test_a_calendar_without_dates_is_named_where_dates_split(tmp_path, calendar):
    times = ("time", np.arange(30), {"units": "days since 2000-01-01", "calendar": calendar})
    data = xr.Dataset({"x": (("time", "k"), X[:, 0, 0]), "y": (("time",), Y)}, {"time": times})
    data.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    with pytest.raises(DataError, match=f"has no dates; time holds times of the calendar '{calendar}'"):
        netcdf.FORMAT.load(tmp_path / "f.nc", x="x", y="y", split=[""])


def test_netcdf_3_is_refused(tmp_path):
    (tmp_path / "f.nc").write_bytes(b"CDF\x01" + bytes(40))
    with pytest.raises(DataError, match="nccopy -k nc4"):
        netcdf.FORMAT.load(tmp_path / "f.nc", x="x")


@pytest.mark.parametrize(
    ("names", "channels"),
    [
        (["Band", "lat", "lon"], Channels.FIRST),
        (["height", "width", "channel"], Channels.LAST),
        (["lat", "lon"], Channels.NONE),
        (["q", "r", "s"], None),
        (["band"], None),
        ([], None),
    ],
)
def test_names_of_dimensions_tell_the_channels(names, channels):
    assert channels_by_dimensions(names) == channels


# npz


def test_pickled_objects_are_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}, {}]), y=np.ones(2))
    with pytest.raises(DataError, match="x holds pickled objects"):
        npz.FORMAT.load(tmp_path / "a.npz", x="x")


def test_test_samples_of_an_archive_may_have_texts(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:3], y_test=np.array(["a", "b", "a"]))
    assert read_all(npz.FORMAT.load(tmp_path / "a.npz")["test"])["y_test"].tolist() == ["a", "b", "a"]
