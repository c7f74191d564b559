"""Labels that are missing where a mask is 0 make no class, not even if those of a whole block are."""

import dask.array as da
import numpy as np
import pytest
import xarray

from singa_dask import load, shard
from singa_dask.data import shard_files
from singa_dask.data.sources import files
from singa_dask.errors import DataError

DRAW = np.random.default_rng(1)
ROWS, BLOCK = 12, 4
X = DRAW.normal(size=(ROWS, 5, 4, 2)).astype("f4")
PLACES = DRAW.integers(0, 3, (ROWS, 5, 4))
PLACES[:, 0, 0] = np.arange(ROWS) % 3
COUNTS = DRAW.random(PLACES.shape) > 0.3
COUNTS[:, 0, 0] = True


def dataset(labels, counts):
    dims = ("sample", "lat", "lon")
    fields = {"x": ((*dims, "band"), X), "y": (dims[: labels.ndim], labels), "ok": (dims[: labels.ndim], counts)}
    return xarray.Dataset(fields)


def netcdf(labels, counts, out, **options):
    stored = dataset(np.where(counts, labels, 99).astype("i2"), counts.astype("u1"))
    stored["y"].attrs["_FillValue"] = np.int16(99)
    stored.to_netcdf(out.parent / "a.nc", engine="h5netcdf", encoding={})
    return shard_files("netcdf", out, source=out.parent / "a.nc", x="x", label="y", mask="ok", **options)


def zarr(labels, counts, out, **options):
    stored = dataset(np.where(counts, labels, np.nan), counts.astype("u1"))
    stored.chunk({"sample": BLOCK}).to_zarr(out.parent / "a.zarr")
    return shard_files("zarr", out, source=out.parent / "a.zarr", x="x", label="y", mask="ok", **options)


def chunked(labels, counts, out, **options):
    known = dataset(np.where(counts, labels, np.nan), counts).chunk({"sample": BLOCK})
    return shard(known["x"], known["y"], out, labels=True, mask=known["ok"], **options)


def collections(labels, counts, out, **options):
    given = (da.from_array(each, chunks=(BLOCK, *each.shape[1:])) for each in (X, np.where(counts, labels, np.nan)))
    return shard(*given, out, labels=True, mask=da.from_array(counts, chunks=BLOCK), **options)


HOLDERS = {"netCDF": netcdf, "Zarr": zarr, "xarray": chunked, "Dask": collections}
CASES = [
    ("maps", 2, (0, 1, 2)),
    ("maps", 0, (1, 2, 3)),
    ("maps", 2, (-7, -6, -1)),
    ("samples", 0, (0, 2, 5)),
    ("samples", 2, (10, 20, 40)),
]


@pytest.mark.parametrize(("shape", "block", "values"), CASES)
@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_a_block_without_labels_makes_no_class(tmp_path, monkeypatch, holder, shape, block, values):
    labels, counts = np.array(values)[PLACES], COUNTS.copy()
    counts[block * BLOCK : (block + 1) * BLOCK] = False
    if shape == "samples":
        labels, counts = labels[:, 0, 0], counts[:, 0, 0]
    monkeypatch.setattr(files, "BLOCK_NBYTES", BLOCK * (X[0].nbytes + 2 * 2 * labels[0].size))
    made = holder(labels, counts, tmp_path / "s", shuffle=False)[""]
    assert made.targets.classes == (3 if values == (0, 1, 2) else tuple(map(str, values)))
    found, mask = load(tmp_path / "s", ["y", "mask"])
    assert found.min() >= 0 and found.max() < 3  # the places of classes, also where the mask is 0
    np.testing.assert_array_equal(mask != 0, counts)
    np.testing.assert_array_equal(found[counts], np.searchsorted(values, labels[counts]))


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_labels_that_all_are_missing_are_refused(tmp_path, holder):
    with pytest.raises(DataError, match=r"column 'y': the mask is 0 for all labels. Leave the column out."):
        holder(PLACES, np.zeros(PLACES.shape, bool), tmp_path / "s")


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_labels_that_are_missing_where_the_mask_is_1_are_refused(tmp_path, holder):
    labels = np.where(COUNTS, PLACES, 99 if holder is netcdf else np.nan)
    with pytest.raises(DataError, match=r"label\(s\) are missing, the first in sample 0"):
        holder(labels, np.ones(PLACES.shape, bool), tmp_path / "s", shuffle=False)
