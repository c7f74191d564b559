"""npz, Zarr and netCDF as sources."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path

import numcodecs.pickles
import numpy as np
import pytest
import xarray as xr
import zarr
from support.sources import read_all
from support.special_files import put

from singa_dask.data.columns import Channels, Role
from singa_dask.data.sources import files, netcdf, npz
from singa_dask.data.sources import zarr as zarr_source
from singa_dask.data.sources.arrays import channels_by_dimensions
from singa_dask.errors import DataError

X = np.random.default_rng(0).standard_normal((30, 2, 4, 5)).astype("f4")
Y = np.arange(30) % 4


# npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("block_nbytes", [1 << 20, 1000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_arrays_are_read_in_blocks(tmp_path, monkeypatch, save, block_nbytes, order):
    monkeypatch.setattr(files, "BLOCK_NBYTES", block_nbytes)
    monkeypatch.setattr(files, "MAX_BLOCK_NBYTES", 2 * block_nbytes)
    monkeypatch.setattr(npz, "MAX_BLOCK_NBYTES", 2 * block_nbytes)
    save(tmp_path / "a.npz", x=np.asarray(X, order=order), y=Y)
    source = npz.load(tmp_path / "a.npz")[""]
    assert (len(source.blocks) > 1) == (block_nbytes == 1000)
    found = read_all(source)
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_array_equal(found["y"], Y)


def test_npz_archives_may_hold_splits(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:3], y_test=np.array(["a", "b", "a"]))
    made = npz.load(tmp_path / "a.npz")
    assert {split: (s.x, s.y) for split, s in made.items()} == {
        "train": (("x_train",), ("y_train",)),
        "test": (("x_test",), ("y_test",)),
    }
    assert read_all(made["test"])["y_test"].tolist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("arrays", "options", "fault"),
    [
        ({"a": np.ones(3)}, {}, r"\(--x\)"),
        ({"x": np.ones((3, 2)), "x_train": np.ones((3, 2))}, {}, "The file holds:"),
        ({"x": np.array([{}, {}]), "y": np.ones(2)}, {"x": "x"}, "x holds pickled objects"),
        ({"x": np.ones(4, "c8")}, {"x": "x"}, "complex numbers to two channels"),
        ({"x": np.ones((4, 2)), "y": np.ones(3)}, {}, "x has 4 samples, but y has 3"),
        ({"x": np.ones((0, 2))}, {}, "x has no samples"),
    ],
)
def test_faults_of_npz_files_are_errors(tmp_path, arrays, options, fault):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=fault):
        npz.load(tmp_path / "a.npz", **options)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04" + bytes(100), b"\x93NUMPY"])
def test_other_files_are_no_npz(tmp_path, data):
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.npz: cannot be read .*numpy\.savez"):
        npz.load(tmp_path / "a.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_npz_values_are_an_error(tmp_path, save):
    save(tmp_path / "a.npz", x=X)
    source = npz.load(tmp_path / "a.npz")[""]
    data = bytearray((tmp_path / "a.npz").read_bytes())
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        size = archive.getinfo("x.npy").compress_size
    data[size // 2 : size // 2 + 8] = b"\xff" * 8
    (tmp_path / "a.npz").write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"a\.npz: cannot be read"):
        read_all(source)


# Zarr


def store(path: Path, version: int, names: bool = False) -> Path:
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    dimensions = ("time", "band", "lat", "lon") if names else None
    named = {"dimension_names": dimensions} if version == 3 else {}
    group.create_array("data/X", shape=X.shape, dtype=X.dtype, chunks=(8, 2, 4, 5), **named)[:] = X
    if names and version == 2:
        group["data/X"].attrs["_ARRAY_DIMENSIONS"] = list(dimensions or ())
    group.create_array("data/y", shape=Y.shape, dtype=Y.dtype, chunks=(7,))[:] = Y
    group.create_array("kinds", shape=(30,), dtype=str, chunks=(30,))[:] = np.array(["u", "v"] * 15, object)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("names", [False, True])
def test_zarr_groups_are_read_by_chunks(tmp_path, monkeypatch, version, names):
    monkeypatch.setattr(files, "BLOCK_NBYTES", 20 * X[0].nbytes)
    source = zarr_source.load(store(tmp_path / "a.zarr", version, names))[""]
    assert (source.x, source.y) == (("X",), ("y",))
    assert [len(block.read()["y"]) for block in source.blocks] == [16, 14]
    assert source.channels == ({"X": Channels.FIRST} if names else {})
    np.testing.assert_array_equal(read_all(source)["X"], X)


def test_zarr_stores_are_concatenated_and_texts_are_labels(tmp_path):
    for name in ("b", "a"):
        store(tmp_path / name, 3)
    source = zarr_source.load(tmp_path, x="data/X", label="kinds")[""]
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
    calls = zarr_source.load, zarr_source.contents, lambda path: zarr_source._read(rows, ["kinds"])
    for call in calls:
        with pytest.raises(DataError, match=message):
            call(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("consolidated", [False, True])
def test_zarr_codecs_in_shards_are_known_too(tmp_path, consolidated):
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=3)
    root.create_array("x", shape=X.shape, dtype=X.dtype, chunks=(1, 2, 4, 5), shards=(10, 2, 4, 5))[:] = X
    if consolidated:
        zarr.consolidate_metadata(str(tmp_path / "a.zarr"))
    path = tmp_path / "a.zarr" / ("" if consolidated else "x") / "zarr.json"
    assert '"zstd"' in path.read_text()
    path.write_text(path.read_text().replace('"zstd"', '"numcodecs.pickle"'))
    with pytest.raises(DataError, match=r"a\.zarr: x is stored with the codec 'numcodecs.pickle'"):
        zarr_source.load(tmp_path / "a.zarr")


@pytest.mark.timeout(20, method="signal", func_only=True)
@pytest.mark.parametrize("name", [".zgroup", ".zattrs", "kinds/.zarray", "kinds/.zattrs"])
def test_a_pipe_among_the_metadata_of_a_zarr_store_is_refused(tmp_path, name):
    put("fifo", store(tmp_path / "a.zarr", 2) / name)
    for call in (zarr_source.load, zarr_source.contents):
        with pytest.raises(DataError, match=r"a\.zarr: .*it is a pipe, not a file"):
            call(tmp_path / "a.zarr")


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_arrays_of_every_usual_codec_are_read(tmp_path, version):
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=version)
    root.attrs["codecs"] = [{"id": "pickle"}]  # of the user's, and no codec
    packed = zarr.codecs.BloscCodec(), zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()
    root.create_array("x", shape=X.shape, dtype=X.dtype, compressors=None if version == 2 else packed)[:] = X
    more = (
        {"filters": [numcodecs.Delta("i8")], "compressors": numcodecs.Zlib()}
        if version == 2
        else {"shards": (30,), "chunks": (10,)}
    )
    root.create_array("y", shape=Y.shape, dtype=Y.dtype, **more)[:] = Y
    found = read_all(zarr_source.load(tmp_path / "a.zarr")[""])
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_array_equal(found["y"], Y)


def test_faults_of_zarr_stores_are_errors(tmp_path):
    path = store(tmp_path / "a.zarr", 3)
    with pytest.raises(DataError, match=r"has no dataset 'data/z'\.(?s:.*)data/X  float32 \(30, 2, 4, 5\)"):
        zarr_source.load(path, x="data/z")
    with pytest.raises(DataError, match="not a Zarr store"):
        zarr_source.load(tmp_path / "b.zarr")
    source = zarr_source.load(path)[""]
    (path / "data" / "X" / "c" / "1" / "0" / "0" / "0").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"a\.zarr: cannot be read"):
        read_all(source)
    (path / "data" / "X" / "zarr.json").write_text("{")
    with pytest.raises(DataError, match=r"a\.zarr: cannot be read .*whole Zarr store"):
        zarr_source.load(path)


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
    source = netcdf.load(nc)[""]
    assert (source.x, source.y, source.channels) == (("x",), ("y",), {"x": Channels.FIRST})
    np.testing.assert_array_equal(read_all(source)["x"], X)
    source = netcdf.load(nc, x=["x", "z"], y="name", channels="last")[""]
    assert source.channels == {"x": Channels.LAST, "z": Channels.LAST}
    found = read_all(source)
    assert found["name"].tolist() == ["a", "bc"] * 15
    assert np.isnan(found["z"][3]).all()
    np.testing.assert_allclose(np.delete(found["z"], 3, 0), np.delete(X[:, 0], 3, 0), atol=0.126)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"x": "x", "y": "other"}, "samples of x are along 'time', but those of other along 'station'"),
        ({"x": "xx"}, "has no dataset 'xx'"),
    ],
)
def test_faults_of_netcdf_files_name_the_variable(nc, options, fault):
    with pytest.raises(DataError, match=fault):
        netcdf.load(nc, **options)


@pytest.mark.parametrize(
    ("data", "fault"), [(b"CDF\x01" + bytes(40), "nccopy -k nc4"), (b"hello", "cannot be read .*whole netCDF 4 file")]
)
def test_other_files_are_no_netcdf_4(tmp_path, data, fault):
    (tmp_path / "f.nc").write_bytes(data)
    with pytest.raises(DataError, match=fault):
        netcdf.load(tmp_path / "f.nc", x="x")


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
