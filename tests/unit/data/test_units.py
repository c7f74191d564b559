"""Values of the same column in other units are refused, in every container that tells the units."""

import h5py
import numpy as np
import pytest
import xarray as xr

from singa_dask import Job, layers, load_model, shard, train, updaters
from singa_dask.data.ingest.write import write
from singa_dask.data.sources import hdf5, netcdf, zarr
from singa_dask.errors import DataError
from singa_dask.inference.sources import blocks_of

FORMATS = {"nc": netcdf, "zarr": zarr, "h5": hdf5}
X = np.random.default_rng(0).normal(size=(6, 2, 2))


def stored(path, units):
    attributes = {"units": units} if units else {}
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["sst"], file["e"] = X, X[:, 0, 0]
            file["sst"].attrs.update(attributes)
        return
    data = xr.Dataset({"sst": (("time", "lat", "lon"), X, attributes), "e": ("time", X[:, 0, 0])})
    data.to_netcdf(path, engine="h5netcdf") if path.suffix == ".nc" else data.to_zarr(path)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("units", [("degC", "K"), ("", "degC", "K"), ("degC", "degC"), ("", "degC"), ("degC", "")])
def test_files_of_a_source_are_in_the_same_units(tmp_path, suffix, units):
    for number, each in enumerate(units):
        stored(tmp_path / f"{number}.{suffix}", each)
    load, source = FORMATS[suffix].FORMAT.load, f"{tmp_path}/*.{suffix}"
    if "K" not in units:
        assert load(source, x="sst", target="e")[""].x == ("sst",)
        return
    at = f"{len(units) - 1}.{suffix}: sst: has the units 'K', but 'degC' in .*{len(units) - 2}.{suffix}. Convert"
    with pytest.raises(DataError, match=at):
        load(source, x="sst", target="e")


def model_of(tmp_path, source):
    write(source, tmp_path / "s")
    net = [layers.RecordInput(path=str(tmp_path / "s"), batchsize=3), layers.InnerProduct(num_output=1)]
    job = Job(name="n", layers=[*net, layers.EuclideanLoss()], updater=updaters.SGD(lr=0.1), train_steps=1)
    return load_model(train(job, processes=False, workspace=tmp_path / "run").checkpoint)


@pytest.mark.parametrize("suffix", FORMATS)
def test_data_to_predict_are_in_the_units_of_training(tmp_path, suffix):
    paths = {units: tmp_path / f"{units}.{suffix}" for units in ("degC", "K", "none")}
    for units, path in paths.items():
        stored(path, units.replace("none", ""))
    sources = {units: FORMATS[suffix].FORMAT.load(path, x="sst", target="e")[""] for units, path in paths.items()}
    model = model_of(tmp_path, sources["degC"])
    array = xr.DataArray(X, dims=("time", "lat", "lon"))
    for units in ("degC", "none"):
        assert blocks_of(model, str(paths[units]))[0].read(model).values
        assert model.predict(array.assign_attrs({} if units == "none" else {"units": units})).shape == (6, 1)
    said = "has the units 'K', but 'degC' in the training data. Convert"
    with pytest.raises(DataError, match=f"K.{suffix}: sst: {said}"):
        blocks_of(model, str(paths["K"]))[0].read(model)
    with pytest.raises(DataError, match=said):
        model.predict(array.assign_attrs(units="K"))
    write(sources["K"], tmp_path / "other")
    with pytest.raises(DataError, match=f"x: {said}"):
        blocks_of(model, str(tmp_path / "other"))
    with pytest.raises(DataError, match="x: has the units 'K', but 'degC' in"):
        shard(array.assign_attrs(units="K"), X[:, 0, 0], tmp_path / "like", like=model_like(tmp_path))


def model_like(tmp_path):
    from singa_dask.data import Manifest

    return Manifest.load(tmp_path / "s")
