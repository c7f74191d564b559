"""shard(patch=): samples that are cut from large fields, whatever holds them."""

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
import xarray
import zarr
from support.blocks import stored

from singa_dask import Job, layers, shard, updaters
from singa_dask.data import shard_files
from singa_dask.data.columns import Role
from singa_dask.data.sources import patches
from singa_dask.errors import ConfigError, DataError
from singa_dask.training.prepare import prepare

DRAW = np.random.default_rng(0)
H, W, PATCH, STRIDE = 22, 31, 8, 5
FIELD = DRAW.normal(size=(H, W)).astype("f4")
TARGET = 2 * FIELD + 1
ROWS, COLUMNS = [0, 5, 10, 14], [0, 5, 10, 15, 20, 23]


def cut(field):
    """The patches of one field, (height, width, ...)."""
    return np.stack([field[r : r + PATCH, c : c + PATCH] for r in ROWS for c in COLUMNS])


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(patches, "BLOCK_NBYTES", 6 * PATCH * PATCH * 8)


def made(out, X, y=None, **options):
    options = {"patch": PATCH, "stride": STRIDE, "durable": False, **options}
    (manifest,) = shard(X, y, out, **options).values()
    return in_order(manifest), manifest


def in_order(manifest):
    """The columns in the order of the numbers of the patches, whatever tile they were cut in."""
    found = stored(manifest)
    order = np.argsort(found[Role.ROW])
    return {name: values[order] for name, values in found.items()}


@pytest.mark.parametrize("kind", ["numpy", "dask", "mixed", "zarr"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_x_and_y_are_cut_together(tmp_path, kind, shuffle):
    X, y = FIELD, TARGET
    if kind == "zarr":
        X = zarr.create_array(tmp_path / "x.zarr", data=FIELD, chunks=(7, 9))
    if kind in ("dask", "mixed"):
        X = da.from_array(FIELD, chunks=(9, 10))
    if kind == "dask":
        y = da.from_array(TARGET, chunks=(31, 6))
    found, manifest = made(tmp_path / "out", X, y, shuffle=shuffle)
    np.testing.assert_array_equal(found["x"], cut(FIELD))
    np.testing.assert_array_equal(found["y"], cut(TARGET))
    np.testing.assert_array_equal(found[Role.ROW], np.arange(24))
    assert manifest.notes == ("the samples are patches of 8 x 8, one every 5 positions", "the patches overlap")


def test_the_number_tells_record_row_and_column(tmp_path):
    fields = DRAW.normal(size=(3, H, W)).astype("f4")
    found, _ = made(tmp_path / "out", fields)
    records, rows, columns = np.unravel_index(found[Role.ROW], (3, len(ROWS), len(COLUMNS)))
    for patch, record, row, column in zip(found["x"], records, rows, columns, strict=True):
        top, left = min(row * STRIDE, H - PATCH), min(column * STRIDE, W - PATCH)
        np.testing.assert_array_equal(patch, fields[record, top : top + PATCH, left : left + PATCH])


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("channels", ["first", "last"])
def test_records_with_channels_and_label_maps(tmp_path, lazy, channels):
    fields = DRAW.normal(size=(2, H, W, 5)).astype("f4")
    maps = (fields[..., 0] > 0).astype("u1")
    X = fields if channels == "last" else np.moveaxis(fields, -1, 1)
    X, y = (da.from_array(X, chunks=(1, 9, 9, 9)), da.from_array(maps)) if lazy else (X, maps)
    found, manifest = made(tmp_path / "out", X, y, channels=channels)
    expected = np.concatenate([cut(field) for field in fields])
    np.testing.assert_array_equal(found["x"], expected if channels == "last" else np.moveaxis(expected, -1, 1))
    np.testing.assert_array_equal(found["y"], np.concatenate([cut(each) for each in maps]))
    column = next(each for each in manifest.columns if each.role is Role.LABEL)
    assert column.of_positions and column.num_classes == 2


@pytest.mark.parametrize("lazy", [False, True])
def test_patches_with_a_missing_value_are_left_out(tmp_path, lazy, caplog):
    X, y = FIELD.copy(), TARGET.copy()
    X[3, 7] = np.nan
    y[:, 25:] = np.nan
    complete = ~(np.isnan(cut(X)) | np.isnan(cut(y))).any(axis=(1, 2))
    given = [da.from_array(each, chunks=10) for each in (X, y)] if lazy else [X, y]
    found, manifest = made(tmp_path / "out", *given, nan="drop")
    np.testing.assert_array_equal(found["x"], cut(X)[complete])
    np.testing.assert_array_equal(found["y"], cut(y)[complete])
    np.testing.assert_array_equal(found[Role.ROW], np.flatnonzero(complete))
    left_out = 24 - int(complete.sum())
    assert f"{left_out} of 24 hold a missing value and are left out" in manifest.notes[0]
    assert manifest.notes[0] in caplog.text
    with pytest.raises(DataError, match=r"infinite.* leaves out missing values alone\. Turn these into NaN"):
        made(tmp_path / "none", np.where(np.isnan(X), np.inf, X), y, nan="drop")
    with pytest.raises(DataError, match=r'NaN.*nan="drop" \(--nan drop\)'):
        made(tmp_path / "error", *given)
    with pytest.raises(DataError, match="each of 24 patches holds a missing value"):
        made(tmp_path / "none", np.full_like(X, np.nan), nan="drop")


def test_targets_that_do_not_count_may_be_missing(tmp_path):
    y = TARGET.copy()
    y[2:9, 3:20] = np.nan
    found, manifest = made(tmp_path / "out", FIELD, y, mask=(~np.isnan(y)).astype("f4"), nan="drop")
    assert manifest.total == 24
    np.testing.assert_array_equal(found["mask"], cut(~np.isnan(y)))
    masked, _ = made(tmp_path / "masked", np.ma.masked_greater(FIELD, 2.0), nan="drop")
    assert 0 < len(masked["x"]) < 24


def write_hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, chunks=tuple(min(10, size) for size in values.shape))


def write_zarr(path, **arrays):
    group = zarr.open_group(path, mode="w")
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=tuple(min(10, size) for size in values.shape))


def write_netcdf(path, **arrays):
    dims = {2: ("lat", "lon"), 3: ("time", "lat", "lon"), 1: ("time",)}
    dataset = xarray.Dataset({name: (dims[values.ndim], values) for name, values in arrays.items()})
    dataset.to_netcdf(path, engine="h5netcdf")


@pytest.mark.parametrize(
    ("what", "write"),
    [
        ("hdf5", write_hdf5),
        ("zarr", write_zarr),
        ("netcdf", write_netcdf),
        ("npz", np.savez),
        ("npz", np.savez_compressed),
    ],
)
@pytest.mark.parametrize("records", [0, 2])
def test_files_are_read_by_slices(tmp_path, what, write, records):
    path = tmp_path / f"fields.{'nc' if what == 'netcdf' else what}"
    X, y = FIELD, TARGET
    if records:
        X, y = (np.stack([each, each + 7]) for each in (X, y))
    write(path, sst=X, heat=y)
    options = {"source": path, "x": ("sst",), "target": ("heat",), "patch": PATCH, "stride": STRIDE}
    (manifest,) = shard_files(what, tmp_path / "out", **options).values()
    found = in_order(manifest)
    np.testing.assert_array_equal(found["x"], np.concatenate([cut(each) for each in X]) if records else cut(X))
    np.testing.assert_array_equal(found["y"], np.concatenate([cut(each) for each in y]) if records else cut(y))
    np.testing.assert_array_equal(found[Role.ROW], np.arange(24 * (records or 1)))


def test_several_files_each_have_their_numbers(tmp_path):
    for number in range(2):
        write_hdf5(tmp_path / f"{number}.h5", x=FIELD + number, y=TARGET)
    (manifest,) = shard_files("hdf5", tmp_path / "out", source=tmp_path / "*.h5", patch=8, stride=5).values()
    found = stored(manifest)
    for number in range(2):
        own = found[Role.FILE] == number
        order = np.argsort(found[Role.ROW][own])
        np.testing.assert_array_equal(found["x"][own][order], cut(FIELD + number))
        np.testing.assert_array_equal(found[Role.ROW][own][order], np.arange(24))


def test_packed_values_that_are_missing(tmp_path):
    packed = np.arange(H * W, dtype="i2").reshape(H, W)
    dataset = xarray.Dataset({"sst": (("lat", "lon"), packed, {"_FillValue": np.int16(40), "scale_factor": 0.5})})
    dataset.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    options = {"source": tmp_path / "f.nc", "x": ("sst",), "patch": PATCH, "stride": STRIDE, "nan": "drop"}
    (manifest,) = shard_files("netcdf", tmp_path / "out", **options).values()
    complete = ~(cut(packed) == 40).any(axis=(1, 2))
    np.testing.assert_array_equal(in_order(manifest)["x"], cut(packed)[complete] * 0.5)


@pytest.mark.parametrize("what", ["numpy", "dask", "hdf5"])
def test_splits_by_records(tmp_path, what):
    fields, year = np.stack([FIELD, FIELD + 7, FIELD + 9]), np.array([2001, 2002, 2003])
    options = {"patch": PATCH, "test_from": 2003, "split_by": "year"}
    if what == "hdf5":
        write_hdf5(tmp_path / "f.h5", x=fields, year=year)
        found = shard_files("hdf5", tmp_path / "out", source=tmp_path / "f.h5", x=("x",), **options)
        groups = {**options, "test_from": None, "split_by": None, "test_groups": "year"}
        by_groups = shard_files("hdf5", tmp_path / "g", source=tmp_path / "f.h5", x=("x",), **groups)
        assert by_groups["train"].total == 2 * by_groups["test"].total
    else:
        X = da.from_array(fields, chunks=(2, 10, 10)) if what == "dask" else fields
        found = shard(X, out=tmp_path / "out", split_data=pd.DataFrame({"year": year}), **options)
    assert found["train"].total == 2 * found["test"].total
    assert (stored(found["test"])["x"] > stored(found["train"])["x"].min() + 2).any()
    assert sorted(stored(found["test"])[Role.ROW]) == [*range(24, 36)]


@pytest.mark.parametrize("test", [0, 0.3])
@pytest.mark.parametrize(
    ("size", "patch", "stride", "said"),
    [
        ((24, 32), 8, 4, "the patches overlap"),
        ((24, 32), 8, None, ""),
        ((24, 30), 8, None, "the patches overlap (the last of a row or column is moved inwards)"),
        ((27, 32), 8, 8, "the patches overlap (the last"),
        ((30, 30), 8, 11, ""),
        ((30, 35), 8, 11, "the patches overlap (the last"),
        ((2, 24, 29), 8, None, "the patches overlap (the last"),
        ((8, 24), 8, 8, ""),
    ],
)
def test_patches_of_which_others_share_values_are_told(tmp_path, caplog, size, patch, stride, said, test):
    x = np.arange(np.prod(size), dtype="f4").reshape(size)
    made = shard(x, out=tmp_path / "out", patch=patch, stride=stride, test=test)
    manifest = made["train" if test else ""]
    counted = np.concatenate([stored(each)["x"].ravel() for each in made.values()])
    assert manifest.overlaps == bool(said) == (len(np.unique(counted)) < len(counted))
    assert any(note.startswith(said) for note in manifest.notes)
    assert ("they share values with those that train" in caplog.text) == bool(said and test)
    assert all(len(each.notes) == 1 + bool(said) for each in made.values())


@pytest.mark.parametrize(("stride", "share", "warns"), [(4, 0.2, True), (4, 0, False), (8, 0.2, False)])
def test_a_validation_share_of_patches_that_overlap_is_warned_of(tmp_path, caplog, stride, share, warns):
    x = np.zeros((32, 32), "f4") + DRAW.normal(size=(32, 32)).astype("f4")
    shard(x, 2 * x, tmp_path / "out", patch=8, stride=stride, targets=True, window=1)
    net = [layers.RecordInput(path=str(tmp_path / "out"), batchsize=2, validation_share=share)]
    net += [layers.Convolution(num_filters=1, kernel=1), layers.MSELoss()]
    caplog.clear()
    prepare(Job(name="t", layers=net, updater=updaters.SGD(lr=0.1), train_steps=1))
    assert ("validation_share: 0.2 holds out share values" in caplog.text) == warns


def test_datasets_of_xarray_are_cut_along_the_same_dimensions(tmp_path):
    coords = {"lat": np.arange(H), "lon": np.arange(W)}
    sst = xarray.DataArray(FIELD, coords, ("lat", "lon"))
    fields = xarray.Dataset({"sst": sst, "slp": (sst + 1).transpose("lon", "lat")})
    found, _ = made(tmp_path / "out", fields.chunk(lat=10), (2 * sst).transpose("lon", "lat"))
    np.testing.assert_array_equal(found["slp"], cut(FIELD + 1))
    np.testing.assert_array_equal(found["y"], cut(2 * FIELD))
    with pytest.raises(DataError, match="X and y have other coordinates along 'lat'"):
        made(tmp_path / "other", fields, sst.assign_coords(lat=np.arange(H) + 1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stride": 3, "patch": None}, "stride: is for patches"),
        ({"patch": 0}, "patch: must be an integer of at least 1"),
        ({"patch": 2.5}, "patch: must be an integer"),
        ({"nan": "fill"}, "nan: must be error or drop"),
    ],
)
def test_options_that_cannot_be(tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        made(tmp_path / "out", FIELD, **options)


@pytest.mark.parametrize(
    ("X", "y", "said"),
    [
        (FIELD[:5], None, "5 x 31 positions, fewer than a patch of 8"),
        (FIELD, TARGET[:-1], r"'x' has \(1, 22, 31\) records, rows and columns, but 'y' has \(1, 21, 31\)"),
        (FIELD, np.arange(H), "'y' has the shape .* of which no patches can be cut"),
        (FIELD.astype(str), None, "holds <U32, not numbers"),
        (np.zeros((1, 20, 30, 9)), None, "channels: are unknown: which axis of 'x' has them"),
        (pd.DataFrame(FIELD), None, "patch: is for fields, and X is a table"),
        (da.from_array(FIELD)[da.from_array(FIELD[:, 0]) > 0], None, "sizes must be known"),
    ],
)
def test_what_is_no_field_is_refused(tmp_path, X, y, said):
    with pytest.raises((DataError, ConfigError), match=said):
        made(tmp_path / "out", X, y)


def test_formats_without_arrays_have_no_patches(tmp_path):
    with pytest.raises(ConfigError, match=r"patch: is for arrays that are copied. Received: csv"):
        shard_files("csv", tmp_path / "out", source=tmp_path / "a.csv", patch=8)


def test_on_a_cluster(tmp_path):
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    lazy = da.from_array(FIELD, chunks=(9, 10))
    with LocalCluster(protocol="inproc://", **options) as cluster, Client(cluster, set_as_default=False) as client:
        found, _ = made(tmp_path / "out", lazy, TARGET, client=client)
        write_hdf5(tmp_path / "f.h5", x=FIELD)
        options = {"source": tmp_path / "f.h5", "patch": PATCH, "stride": STRIDE, "client": client}
        (manifest,) = shard_files("hdf5", tmp_path / "files", **options).values()
    np.testing.assert_array_equal(found["x"], cut(FIELD))
    np.testing.assert_array_equal(in_order(manifest)["x"], cut(FIELD))
