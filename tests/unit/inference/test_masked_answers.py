"""Labels and targets that a mask leaves out are missing in predictions: a table of masks and data."""

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray
from support.shards import write_shards

from singa_dask import Job, Model, layers, updaters
from singa_dask.data import Manifest, shard_files
from singa_dask.inference.blocks import own_blocks
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of
from singa_dask.job.job_pb2 import Phase
from singa_dask.training.prepare import prepare

DRAW = np.random.default_rng(2)
ROWS = 12
FIELDS = DRAW.normal(size=(ROWS, 2, 5, 4)).astype(np.float32)
MAPS = DRAW.integers(0, 3, (ROWS, 5, 4))


def predicted(folder, out, outputs, data=None, classifies=False, **conf):
    """The file with the predictions of shards by a net that is not trained."""
    conf = {"path": str(folder), "batchsize": 4, **conf}
    sources = [layers.RecordInput("data", **conf)]
    if "sequence" not in conf:
        sources.append(layers.RecordInput("mask", **conf, column="mask", has_label=False))
    loss = layers.SoftmaxLoss("loss") if classifies else layers.EuclideanLoss("loss")
    job = Job(name="n", layers=[loss(outputs(sources[0]), *sources)], updater=updaters.SGD(lr=0.1), train_steps=1)
    ready = prepare(job, phases=[Phase.kTest])
    model = Model(ready.job.neuralnet, seed=0)
    model.described = ready.described
    predict_blocks(model, own_blocks(model) if data is None else blocks_of(model, str(data)), out)
    return out


def dense(values):
    return layers.InnerProduct(num_output=values)


@pytest.mark.parametrize(
    ("y", "mask"),
    [
        (FIELDS[:, 0, 0, 0], DRAW.random(ROWS) > 0.4),
        (FIELDS[:, 0, 0], DRAW.random((ROWS, 4)) > 0.4),
        (FIELDS[:, 0, 0], DRAW.random(ROWS) > 0.4),
        (FIELDS[:, 0], DRAW.random((ROWS, 5, 4)) > 0.4),
        (FIELDS, DRAW.random((ROWS, 2, 5, 4)) > 0.4),
        (FIELDS, DRAW.random((ROWS, 1)) > 0.4),
    ],
    ids=["numbers", "vectors", "whole vectors", "fields", "channels first", "whole fields"],
)
def test_targets_are_missing_where_the_mask_is_0(tmp_path, y, mask):
    broad = mask.reshape(mask.shape if mask.shape == y.shape else (-1, *[1] * (y.ndim - 1)))
    write_shards(tmp_path / "s", FIELDS, np.where(broad, y, np.nan), channels="first", mask=mask, window=4)
    out = predicted(tmp_path / "s", tmp_path / "p.h5", dense(int(np.prod(y.shape[1:], dtype=int))))
    with h5py.File(out) as file:
        found = file["loss/target"][...]
    found = np.moveaxis(found, -1, 1) if y.ndim == 4 else found
    np.testing.assert_array_equal(found, np.where(broad, y, np.nan))


def test_tables_have_empty_cells(tmp_path):
    mask = DRAW.random((ROWS, 3)) > 0.4
    y = np.where(mask, FIELDS[:, 0, :3, 0], np.nan)
    write_shards(tmp_path / "s", FIELDS, y, channels="first", mask=mask, window=4)
    table = pd.read_csv(predicted(tmp_path / "s", tmp_path / "p.csv", dense(3)))
    np.testing.assert_allclose(table.filter(like="true_"), y, rtol=1e-6)


def test_windows_of_records(tmp_path):
    mask = DRAW.random((ROWS, 2)) > 0.4
    x, y = FIELDS[:, 0, 0], np.where(mask, FIELDS[:, 0, 1, :2], np.nan)
    write_shards(tmp_path / "trained", x, np.nan_to_num(y), window=4)
    write_shards(tmp_path / "new", x, y, mask=mask, window=4)
    out = predicted(tmp_path / "trained", tmp_path / "p.h5", dense(4), tmp_path / "new", sequence=3, horizon=2)
    with h5py.File(out) as file:
        expected = np.stack([y[first : first + 2] for first in range(3, ROWS - 1)])
        np.testing.assert_array_equal(file["loss/target"][...].reshape(expected.shape), expected)


@pytest.mark.parametrize(("low", "suffix"), [(0, "csv"), (1, "nc"), (10, "parquet"), (-3, "h5")])
def test_missing_labels_of_a_netcdf_file(tmp_path, low, suffix):
    valid = DRAW.random(MAPS.shape) > 0.4
    fields = {"img": np.moveaxis(FIELDS, 1, -1), "cover": np.where(valid, MAPS + low, 255).astype(np.int16)}
    data = xarray.Dataset({name: (("n", "y", "x", "c")[: value.ndim], value) for name, value in fields.items()})
    data["cover"].attrs["_FillValue"], data["ok"] = np.int16(255), (("n", "y", "x"), valid.astype(np.uint8))
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    options = {"x": "img", "label": "cover", "mask": "ok", "shuffle": False}
    shard_files("netcdf", tmp_path / "s", source=tmp_path / "a.nc", **options)
    assert Manifest.load(tmp_path / "s").targets.num_classes == 3
    scores = layers.Convolution(num_filters=3, kernel=1)
    out = predicted(tmp_path / "s", tmp_path / f"p.{suffix}", scores, classifies=True)
    if suffix == "h5":
        with h5py.File(out) as file:
            found, missing = file["loss/label"][...], file["loss/label"].attrs["_FillValue"]
        assert missing == low - 1
        found = np.where(found == missing, np.nan, found)
    elif suffix == "nc":
        found = xarray.open_dataset(out, engine="h5netcdf")["label"].to_numpy()
    else:
        found = (pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out))["label"].to_numpy(float)
    np.testing.assert_array_equal(found.ravel(), np.where(valid, MAPS + low, np.nan).ravel())
