"""Predictions as netCDF: dimensions and coordinates of the source, rows and files."""

import numpy as np
import pytest
import xarray as xr

from singa_dask import Job, Model, layers, updaters
from singa_dask.data.columns import Column, Role
from singa_dask.data.sharding import shard_files
from singa_dask.inference import blocks as blocks_module
from singa_dask.inference.blocks import Samples, own_blocks
from singa_dask.inference.evaluate import model_of
from singa_dask.inference.files import LayerOutput, writing
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of
from singa_dask.job import job_to_text
from singa_dask.job.job_pb2 import Phase
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

LAT, LON = np.array([50.0, 51.0, 52.0]), np.array([4.0, 6.0])


def weather(days, first=0):
    draw = np.random.default_rng(first)
    time = ("time", np.arange(first, first + days), {"units": "days since 2000-01-01", "bounds": "time_bounds"})
    data = xr.Dataset(
        {
            "wind": (("time", "level", "lat", "lon"), draw.normal(size=(days, 4, 3, 2)).astype("f4")),
            "rain": (("time", "lat", "lon"), draw.normal(size=(days, 3, 2)).astype("f4"), {"units": "mm"}),
            "total": ("time", draw.normal(size=days).astype("f4")),
            "sky": (("time",), draw.integers(0, 3, days)),
        },
        {"time": time, "lat": ("lat", LAT, {"units": "degrees_north"}), "lon": LON},
    )
    return data.assign_coords(region=("lat", ["south", "mid", "north"]), season=("time", draw.integers(0, 4, days)))


@pytest.fixture
def predicted(tmp_path):
    """Predictions by a net for this target of one or more files, as xarray reads them; and the net."""

    def predict(target, *outputs, files=1, answers=True, data=None, name="p.nc", **options):
        (tmp_path / "in").mkdir(exist_ok=True)
        for number in range(files):
            weather(5, 5 * number).to_netcdf(tmp_path / "in" / f"{number}.nc", engine="h5netcdf")
        source = {"source": tmp_path / "in", "x": "wind", "channels": "first", "y": target, "overwrite": True}
        shard_files("netcdf", tmp_path / "out", **source, **options)
        folder = tmp_path / "out" / ("test" if "test" in options else "")
        net = [layers.RecordInput(path=str(folder), batchsize=5), *outputs]
        job = Job(name="n", layers=net, updater=updaters.SGD(lr=0.1), train_steps=8, seed=5)
        ready = prepare(job, phases=[Phase.kTest])
        state = Model(ready.job.neuralnet, seed=5)
        saved = checkpoints.Checkpoint(
            8, 5, job_to_text(ready.job), state.state_dict(), described=ready.described, code=ready.code
        )
        model = model_of(
            ready.job, ready.code, checkpoints.save(saved, checkpoints.path_of(tmp_path / "run" / "checkpoint", 8))
        )
        own = str(data or tmp_path / "in")
        blocks = own_blocks(model) if data == "own" else blocks_of(model, own, ["wind"], [target] if answers else [])
        predict_blocks(model, blocks, tmp_path / name)
        with xr.open_dataset(tmp_path / name, engine="h5netcdf") as found:
            return found.load(), model

    return predict


def field():
    return layers.InnerProduct(num_output=6), layers.EuclideanLoss()


@pytest.mark.parametrize("answers", [True, False])
def test_fields_have_the_coordinates_of_the_source(predicted, answers):
    found, model = predicted("rain", *field(), answers=answers)
    source = xr.decode_cf(weather(5).drop_attrs(deep=False))
    assert found["prediction"].dims == ("time", "lat", "lon")
    assert ("target" in found) == answers
    if answers:
        np.testing.assert_array_equal(found["target"], source["rain"])
    assert {found[name].attrs["units"] for name in ("prediction", "target") if name in found} == {"mm"}
    wind = np.moveaxis(weather(5)["wind"].to_numpy(), 1, -1)
    np.testing.assert_allclose(found["prediction"].to_numpy().reshape(5, 6), model.predict(wind), rtol=1e-5)
    for name in ("time", "lat", "lon", "region", "season"):
        np.testing.assert_array_equal(found[name], source[name])
        assert name in found.coords
    assert found["lat"].attrs["units"] == "degrees_north" and "level" not in found.dims
    assert found["sample"].values.tolist() == [*range(5)]


def test_values_of_several_files_keep_their_times(predicted):
    found, _ = predicted("total", layers.InnerProduct(num_output=1), layers.EuclideanLoss(), files=3)
    truth = [weather(5, 5 * number)["total"].to_numpy() for number in range(3)]
    assert "units" not in found["total"].attrs
    assert {"total", "true_total"} <= {*found.data_vars} and found["total"].dims == ("time",)
    np.testing.assert_array_equal(found["true_total"], np.concatenate(truth))
    assert found["time"].values[-1] == np.datetime64("2000-01-15")
    assert found["file"].values.tolist() == [f"{number}.nc" for number in range(3) for _ in range(5)]
    assert found["sample"].values.tolist() == [*range(5)] * 3


def test_classes_have_their_probabilities(predicted):
    found, _ = predicted("sky", layers.InnerProduct(num_output=3), layers.SoftmaxLoss())
    assert found["probability"].dims == ("time", "classes")
    np.testing.assert_array_equal(found["class"], found["probability"].argmax("classes"))
    np.testing.assert_array_equal(found["label"], weather(5)["sky"])
    assert found["classes"].values.tolist() == [0, 1, 2]


def test_files_with_dimensions_in_another_order_keep_their_coordinates(predicted, tmp_path):
    data = weather(5).transpose("time", "lon", "level", "lat")
    data.to_netcdf(tmp_path / "turned.nc", engine="h5netcdf")
    found, _ = predicted("rain", *field(), data=tmp_path / "turned.nc")
    straight, _ = predicted("rain", *field(), name="q.nc")
    assert found["prediction"].dims == ("time", "lon", "lat")
    xr.testing.assert_allclose(found.transpose(*straight.dims), straight)


def test_shards_have_rows_and_coordinates(predicted, monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_NBYTES", 200)
    found, _ = predicted("rain", *field(), files=4, test=0.5, data="own")
    assert found["prediction"].dims == ("sample", "lat", "lon")
    np.testing.assert_array_equal(found["lat"], LAT)
    truth = {number: weather(5, 5 * number)["rain"].to_numpy() for number in range(4)}
    for place, (file, row) in enumerate(zip(found["file"].values, found["sample"].values, strict=True)):
        np.testing.assert_array_equal(found["target"][place], truth[int(file[0])][row])


def test_times_of_other_files_are_in_the_units_of_the_first(predicted, tmp_path):
    (tmp_path / "more").mkdir()
    for number, units in enumerate(("days since 2000-01-01", "days since 2000-01-06", "hours since 2000-01-11 06:00")):
        data = weather(5)
        data["time"].attrs["units"] = units
        data.to_netcdf(tmp_path / "more" / f"{number}.nc", engine="h5netcdf")
    found, _ = predicted("total", layers.InnerProduct(num_output=1), layers.EuclideanLoss(), data=tmp_path / "more")
    days = np.arange("2000-01-01", "2000-01-11", dtype="M8[D]")
    hours = np.arange("2000-01-11T06", "2000-01-11T11", dtype="M8[h]")
    np.testing.assert_array_equal(found["time"], np.concatenate([days.astype("M8[h]"), hours]))


@pytest.mark.parametrize("other", [{"units": "days"}, {"calendar": "noleap"}])
def test_times_that_cannot_be_joined_are_left_out(predicted, tmp_path, caplog, other):
    (tmp_path / "more").mkdir()
    for number in range(2):
        data = weather(5, 5 * number)
        data["time"].attrs |= other if number else {}
        data.to_netcdf(tmp_path / "more" / f"{number}.nc", engine="h5netcdf")
    found, _ = predicted("rain", *field(), data=tmp_path / "more")
    assert "time: has other units, or is missing, in some files" in caplog.text
    assert "time" not in found.coords and "season" in found.coords and found.sizes["time"] == 10


def test_coordinates_may_have_the_samples_last(predicted, tmp_path, monkeypatch):
    monkeypatch.setattr(blocks_module, "BLOCK_NBYTES", 200)
    ages = np.arange(30.0).reshape(3, 10)
    (tmp_path / "more").mkdir()
    for number in range(2):
        part = ("lat", "time"), ages[:, 5 * number : 5 * number + 5]
        data = weather(5, 5 * number).assign_coords(age=part)
        data.to_netcdf(tmp_path / "more" / f"{number}.nc", engine="h5netcdf")
    found, _ = predicted("rain", *field(), data=tmp_path / "more")
    np.testing.assert_array_equal(found["age"].transpose("lat", "time"), ages)


def test_no_name_is_used_twice(tmp_path):
    names, rows = ("sample", "file", "step", "true_file"), np.arange(48.0).reshape(4, 3, 4)
    column = Column("y", Role.TARGET, "float64", (4,), names=names)
    with writing(tmp_path / "p.nc", [LayerOutput("net", False, names, column=column)]) as write:
        for first in (0, 2):
            part = {"net": rows[first : first + 2]}
            write(Samples(np.arange(first, first + 2), part, {"net": -part["net"]}, np.array(["a.csv", "b.csv"])))
    with xr.open_dataset(tmp_path / "p.nc", engine="h5netcdf") as found:
        for place, name in enumerate(("sample", "file", "step_", "true_file")):
            np.testing.assert_array_equal(found[name], rows[..., place])
        for place, name in enumerate(("true_sample", "true_file_", "true_step", "true_true_file")):
            np.testing.assert_array_equal(found[name], -rows[..., place])
        assert found["sample_"].values.tolist() == [0, 1, 2, 3] and found["sample"].dims == ("sample_", "step")
        assert found["file_"].values.tolist() == ["a.csv", "b.csv"] * 2
