"""Columns to predict are found by the names that they had in training, in every container of arrays."""

import h5py
import numpy as np
import pytest
import xarray as xr

from singa_dask import Job, layers, load_model, shard, train, updaters
from singa_dask.data.ingest.write import write
from singa_dask.data.sources import hdf5, netcdf, npz, zarr
from singa_dask.errors import ConfigError
from singa_dask.inference.files import _as_target
from singa_dask.inference.sources import blocks_of

DRAW = np.random.default_rng(0)
A, B, C = (DRAW.normal(size=(20, 2, 2)).astype("f4") for _ in range(3))
Y = (A - 2 * B).mean(axis=(1, 2))
SUFFIXES = {"nc": netcdf, "zarr": zarr, "npz": npz, "h5": hdf5}


def stored(path, **arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file.update(arrays)
    else:
        data = xr.Dataset({n: (("time", "lat", "lon")[: v.ndim], v) for n, v in arrays.items()})
        data.to_netcdf(path, engine="h5netcdf") if path.suffix == ".nc" else data.to_zarr(path)
    return str(path)


def trained(tmp_path, suffix):
    """A model of sst and slp, read from a file, or given as a mapping."""
    if suffix == "mapping":
        shard({"sst": A, "slp": B}, Y, tmp_path / "s", targets=True)
    else:
        source = SUFFIXES[suffix].FORMAT.load(
            stored(tmp_path / f"in.{suffix}", sst=A, slp=B, y=Y), x=["sst", "slp"], target="y"
        )
        write(source[""], tmp_path / "s")
    read = {"path": str(tmp_path / "s"), "batchsize": 10}
    sst = layers.RecordInput("sst", column="sst", label="y", **read)
    slp = layers.RecordInput("slp", column="slp", has_label=False, **read)
    out = layers.Add()(*(layers.InnerProduct(num_output=1)(x) for x in (sst, slp)))
    job = Job(name="n", layers=[layers.EuclideanLoss()(out, sst)], updater=updaters.SGD(lr=0.1), train_steps=1)
    return load_model(train(job, processes=False, workspace=tmp_path / "run").checkpoint)


def read(model, *args, **columns):
    return blocks_of(model, *args, **columns)[0].read(model).values


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("before", ["same", "mapping"])
def test_inputs_are_found_by_their_names(tmp_path, suffix, before):
    model = trained(tmp_path, suffix if before == "same" else before)
    path = stored(tmp_path / f"new.{suffix}", u=C, slp=B, sst=A)
    for columns in ({}, {"x": ["sst", "slp"]}, {"x": ["slp", "sst"]}, {"x": ["slp=slp", "sst"]}):
        found = read(model, path, **columns)
        np.testing.assert_array_equal(found["sst"].ravel(), A.ravel())
        np.testing.assert_array_equal(found["slp"].ravel(), B.ravel())
    other = stored(tmp_path / f"other.{suffix}", SLP=B, SST=A)
    np.testing.assert_array_equal(read(model, other, x=["slp=SLP", "sst=SST"])["slp"].ravel(), B.ravel())
    for file, names in ((path, ["sst", "u"]), (other, ["SLP", "SST"]), (path, ["sst"])):
        with pytest.raises(ConfigError, match=r"--x: must name the columns of the training data, sst, slp.*--x \w+="):
            read(model, file, x=names)


def test_a_mapping_of_data_arrays_is_read_as_a_dataset(tmp_path):
    model = trained(tmp_path, "nc")
    given = xr.Dataset({"sst": (("time", "lat", "lon"), A), "slp": (("time", "lat", "lon"), B)})
    expected = model.predict({"sst": A, "slp": B})
    turned = {"sst": given.sst.transpose("time", "lon", "lat"), "slp": given.slp}
    for x in (given, dict(given.data_vars), turned, {"sst": given.sst, "slp": B}):
        np.testing.assert_allclose(model.predict(x), expected, rtol=1e-6)


def test_a_target_is_called_as_its_dataset_and_fields_have_its_shape(tmp_path):
    for target, shape, names in ((Y, (20, 1), ["enso"]), (A, (20, 2, 2, 1), [f"enso_{i}" for i in range(4)])):
        data = stored(tmp_path / f"{len(names)}.nc", sst=A, enso=target)
        write(netcdf.FORMAT.load(data, x="sst", target="enso")[""], tmp_path / "s", overwrite=True)
        read = layers.RecordInput("data", path=str(tmp_path / "s"), batchsize=10)
        net = [read, layers.InnerProduct(num_output=len(names)), layers.EuclideanLoss()]
        job = Job(name="n", layers=net, updater=updaters.SGD(lr=0.1), train_steps=1)
        model = load_model(train(job, processes=False, workspace=tmp_path / str(len(names))).checkpoint)
        (output,) = model.outputs
        assert model.known.names(output) == names
        assert _as_target(np.zeros(shape), model.known.answers(output)).shape == (shape if target is Y else A.shape)
