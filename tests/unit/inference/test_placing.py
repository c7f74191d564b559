"""Predictions lie as their source does: in its order, along its dimensions and coordinates."""

from itertools import permutations

import h5py
import numpy as np
import pandas
import pytest
import xarray as xr

from singa_dask import Job, Model, layers, shard, updaters
from singa_dask.data.columns import Channels, Column, Role
from singa_dask.data.schema import AS_THEY_ARE, Along, Coordinates, Reading
from singa_dask.data.sharding import shard_files
from singa_dask.inference.blocks import own_blocks
from singa_dask.inference.evaluate import model_of
from singa_dask.inference.placing import Placing, _in_source
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of
from singa_dask.job import job_to_text
from singa_dask.job.job_pb2 import Phase
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare

N, SIZES = 4, {"band": 2, "lat": 3, "lon": 3}
COORDS = {"lat": [60.0, 55.0, 50.0], "lon": [0.0, 10.0, 20.0], "band": [7.0, 9.0]}
CHANNELS = {
    Channels.NONE: ("lat", "lon"),
    Channels.FIRST: ("band", "lat", "lon"),
    Channels.LAST: ("lat", "lon", "band"),
}


def coordinates(of):
    return {dim: Coordinates.of(np.asarray(of[dim])) for dim in of.dims if dim in of.coords and dim != "time"}


def in_net(values, column, lead, each):
    """As a net gives them, (n, ...): channels last."""
    rows = values.reshape(-1, *column.shape, each)
    rows = np.moveaxis(rows, 1, -2) if column.channels is Channels.FIRST else rows
    return rows.reshape(N, *((lead,) if lead > 1 else ()), *column.net_shape, *((each,) if each > 1 else ()))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(("lead", "each"), [(1, 1), (3, 1), (1, 4)])
@pytest.mark.parametrize("channels", CHANNELS)
def test_values_of_any_form_are_put_in_the_order_of_the_source(channels, lead, each, flat):
    dims, draw = CHANNELS[channels], np.random.default_rng(0)
    column = Column("y", Role.TARGET, "float32", tuple(SIZES[dim] for dim in dims), channels)
    names = ("time", "ahead", *dims, "each")
    values = draw.normal(size=(N, lead, *column.shape, each))
    data = xr.DataArray(values, {dim: COORDS[dim] for dim in dims}, names)
    trained = Along(dims, coordinates(data))
    for order in permutations(dims):
        for turned in (data, data.isel(lat=[2, 0, 1]), data.isel(lon=slice(None, None, -1), lat=[1, 2, 0])):
            source = turned.transpose("time", "ahead", *order, "each")
            reading = Reading(dimensions={"x": "/".join(order)}, coordinates=coordinates(source))
            along, turn = _in_source(column, trained, reading)
            shape = tuple(column.shape[axis] for axis in turn.axes) or column.shape
            own = Column("y", Role.TARGET, "float32", shape, channels)
            placing = Placing(column, own, along, turn, each)
            given = in_net(values, column, lead, each)
            found = placing.predictions(given.reshape(N, -1) if flat else given)
            expected = source.transpose("time", "ahead", *along.dims, "each")
            np.testing.assert_array_equal(np.ravel(found), np.ravel(in_net(expected.values, own, lead, each)))
            assert [dim for dim in along.dims if dim != "band"] == [dim for dim in order if dim != "band"]
            for dim in along.dims:
                np.testing.assert_array_equal(along.coordinates[dim].array, source[dim])
            for axis, dim, _ in placing.axes(found.shape):
                assert found.shape[axis] == source.sizes[dim]


@pytest.mark.parametrize(
    ("names", "trained", "reading"),
    [
        (("a", "b", "c"), Along(("lat",)), {"lat": [1.0, 0.0, 2.0]}),  # the names tell
        ((), Along(), {"lat": [1.0, 0.0, 2.0]}),  # without dimensions
        ((), Along(("lat",), {"lat": Coordinates.of(np.arange(3.0))}), {"lat": [5.0, 6.0, 7.0]}),  # other places
        ((), Along(("band",), {"band": Coordinates.of(np.arange(3.0))}), {"lat": [1.0, 0.0, 2.0]}),  # others than x
    ],
)
def test_what_has_no_other_order_stays(names, trained, reading):
    column = Column("y", Role.TARGET, "float32", (3,), names=names)
    own = Reading(
        dimensions={"x": "lat"}, coordinates={dim: Coordinates.of(np.array(of)) for dim, of in reading.items()}
    )
    assert _in_source(column, trained, own)[1] == AS_THEY_ARE


def weather(days=5, first=0):
    """Fields on a square grid; the target is what the net below makes of them."""
    t = np.random.default_rng(first).normal(size=(days, 3, 3)).astype("f4")
    coords = {"time": np.arange(first, first + days), "lat": COORDS["lat"], "lon": COORDS["lon"]}
    return xr.Dataset({"t": (("time", "lat", "lon"), t), "s": (("time", "lat", "lon"), np.maximum(t, 0))}, coords)


@pytest.fixture
def model(tmp_path):
    """A net that gives max(t, 0) at every place."""
    weather().to_netcdf(tmp_path / "train.nc", engine="h5netcdf")
    shard_files("netcdf", tmp_path / "shards", source=tmp_path / "train.nc", x="t", target="s")
    return identity(tmp_path, tmp_path / "shards")


def identity(folder, shards, *more):
    read = layers.RecordInput("t", path=str(shards), batchsize=5)
    out = layers.Activation(type="RELU")(read)
    for layer in more:
        out = layer(out)
    return made(folder, layers.EuclideanLoss("loss")(out, read))


def made(folder, net):
    job = Job(name="n", layers=net, updater=updaters.SGD(lr=0.1), train_steps=8, seed=5)
    ready = prepare(job, phases=[Phase.kTest])
    state = Model(ready.job.neuralnet, seed=5).state_dict()
    kept = checkpoints.Checkpoint(8, 5, job_to_text(ready.job), state, described=ready.described, code=ready.code)
    path = checkpoints.save(kept, checkpoints.path_of(folder / "run" / "checkpoint", 8))
    return model_of(ready.job, ready.code, path)


FORMS = {
    "as trained": lambda x: x,
    "falling": lambda x: x.isel(lat=slice(None, None, -1)),
    "rolled": lambda x: x.roll(lon=1, roll_coords=True),
    "transposed": lambda x: x.transpose("time", "lon", "lat"),
    "transposed and permuted": lambda x: x.transpose("time", "lon", "lat").isel(lat=[1, 0, 2], lon=[2, 0, 1]),
}


def written(model, path, out):
    """The predictions and the true values in a file, by the dimensions or in their places."""
    blocks = own_blocks(model) if path is None else blocks_of(model, str(path), ["t"], [] if path is None else ["s"])
    predict_blocks(model, blocks, out)
    if out.suffix == ".nc":
        with xr.open_dataset(out, engine="h5netcdf") as found:
            return found["prediction"].load(), found["target"].load()
    if out.suffix == ".h5":
        with h5py.File(out) as file:
            return [scaled(file["loss"][name]) for name in ("prediction", "target")]
    table = pandas.read_csv(out) if out.suffix == ".csv" else pandas.read_parquet(out)
    assert table.columns.tolist() == ["sample", *[f"{kind}s_{i}" for kind in ("true_", "") for i in range(9)]]
    return table.filter(regex="^s_"), table.filter(like="true_")


def scaled(dataset):
    """A dataset of HDF5 with its scales."""
    dims = ["time", *[axis.label for axis in [*dataset.dims][1:]]]
    return xr.DataArray(dataset[...], {axis.label: axis[0][...] for axis in [*dataset.dims][1:]}, dims)


@pytest.mark.parametrize("kind", ["nc", "zarr"])
@pytest.mark.parametrize("form", FORMS)
def test_predictions_of_files_lie_as_the_files_do(tmp_path, model, form, kind):
    data = FORMS[form](weather(5, 1))
    path = tmp_path / f"new.{kind}"
    data.to_zarr(path, zarr_format=2) if kind == "zarr" else data.to_netcdf(path, engine="h5netcdf")
    for suffix in ("csv", "parquet", "h5", "nc"):
        for found in written(model, path, tmp_path / f"p.{suffix}"):
            np.testing.assert_allclose(np.reshape(found, (5, 3, 3)), data.s, rtol=1e-6)
            if suffix in ("h5", "nc"):
                assert found.dims == data.s.dims
                assert all((found[dim] == data[dim]).all() for dim in (data.s.dims if suffix == "nc" else ("lat",)))


def test_predictions_of_shards_have_coordinates(tmp_path, model, caplog):
    """A file in another order than the first one is put in that order."""
    for number, form in enumerate(("as trained", "falling")):
        FORMS[form](weather(5, number)).to_netcdf(tmp_path / f"part{number}.nc", engine="h5netcdf")
    shard_files("netcdf", tmp_path / "both", source=str(tmp_path / "part?.nc"), x="t", target="s")
    assert "in another order than in" in caplog.text and "part1.nc" in caplog.text
    net = identity(tmp_path, tmp_path / "both")
    for suffix in ("h5", "nc"):
        for found in written(net, None, tmp_path / f"p.{suffix}"):
            assert found.dims[1:] == ("lat", "lon")
            if suffix == "nc":
                files = xr.open_dataset(tmp_path / "p.nc", engine="h5netcdf")["file"].values
                for own, file, row in zip(found, files, found["sample"].values, strict=True):
                    truth = FORMS["falling" if "1" in file else "as trained"](weather(5, int(file[4])))
                    xr.testing.assert_allclose(
                        own.drop_vars("sample"), truth.s[row].sortby("lat", ascending=False).drop_vars("time")
                    )
            assert found["lat"].values.tolist() == COORDS["lat"]


@pytest.mark.parametrize("form", ["field", "flat", "as many values"])
def test_a_target_without_names_lies_as_the_features_or_is_told(tmp_path, caplog, form):
    """Fields of the shape of the features lie along their dimensions; a message tells of values that may."""
    data = weather()
    target = data.s.values.reshape(5, 9) if form == "as many values" else data.s.values
    shard(data.t, target, tmp_path / "shards")
    net = identity(tmp_path, tmp_path / "shards", *([] if form == "field" else [layers.InnerProduct(num_output=9)]))
    FORMS["falling"](data).drop_vars("s").to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
    predict_blocks(net, blocks_of(net, str(tmp_path / "new.nc"), ["t"]), tmp_path / "p.nc")
    told = "in the order of the training data along lat, and the predictions of layer 'loss' stay in it"
    assert (told in caplog.text) == (form == "as many values")
    with xr.open_dataset(tmp_path / "p.nc", engine="h5netcdf") as found:
        assert ("lat" in found.dims) == (form != "as many values")
        if form != "as many values":
            straight = data.s.copy(data=net.predict(data.t.values).reshape(5, 3, 3))
            np.testing.assert_allclose(found["prediction"].sel(lat=data.lat), straight, rtol=1e-6)


def test_labels_of_positions_lie_as_the_file_does(tmp_path):
    """The net finds the class of every place: whether the value there is positive."""
    data = weather().assign(s=lambda x: (x.t > 0).astype("u1"))
    data.to_netcdf(tmp_path / "train.nc", engine="h5netcdf")
    shard_files("netcdf", tmp_path / "shards", source=tmp_path / "train.nc", x="t", label="s")
    read = layers.RecordInput("t", path=str(tmp_path / "shards"), batchsize=5)
    out = layers.Convolution(num_filters=2, kernel=1)(read)
    net = made(tmp_path, layers.SoftmaxLoss("loss")(out, read))
    for form, change in FORMS.items():
        change(data).to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
        predict_blocks(net, blocks_of(net, str(tmp_path / "new.nc"), ["t"], ["s"]), tmp_path / "p.nc")
        predict_blocks(net, blocks_of(net, str(tmp_path / "new.nc"), ["t"], ["s"]), tmp_path / "p.csv")
        table = pandas.read_csv(tmp_path / "p.csv")
        with xr.open_dataset(tmp_path / "p.nc", engine="h5netcdf") as found:
            assert found["label"].dims == found["class"].dims == change(data).t.dims, form
            np.testing.assert_array_equal(found["label"], change(data).s)
            np.testing.assert_array_equal(table["label"], change(data).s.values.ravel())
            np.testing.assert_array_equal(table["class"], found["class"].values.ravel())
            straight = net.predict(data.t).sel(change(data).coords).transpose(*change(data).t.dims, ...)
            np.testing.assert_allclose(found["probability"], straight, rtol=1e-6)


@pytest.mark.parametrize("files", [1, 2])
def test_forecasts_of_windows_have_the_times_of_their_last_records(tmp_path, files):
    """A file in another order is put in that of training, in which windows are read, and the forecasts back."""
    weather(20).to_netcdf(tmp_path / "train.nc", engine="h5netcdf")
    options = {"x": "t", "target": "s", "shuffle": False}
    shard_files("netcdf", tmp_path / "shards", source=tmp_path / "train.nc", **options)
    how = {"path": str(tmp_path / "shards"), "batchsize": 2, "sequence": 3, "horizon": 1, "has_label": True}
    read = layers.RecordInput("t", **how)
    net = made(tmp_path, layers.EuclideanLoss("loss")(layers.InnerProduct(num_output=9)(read), read))
    for number in range(files):
        change = FORMS["transposed and permuted"]
        change(weather(10, 10 * number)).to_netcdf(tmp_path / f"new{number}.nc", engine="h5netcdf")
    (tmp_path / "scratch").mkdir()
    blocks = blocks_of(net, str(tmp_path / "new?.nc"), ["t"], ["s"], tmp_path / "scratch")
    predict_blocks(net, blocks, tmp_path / "p.nc")
    with xr.open_dataset(tmp_path / "p.nc", engine="h5netcdf") as found:
        source = xr.concat([change(weather(10, 10 * number)) for number in range(files)], "time")
        assert found["target"].dims == ("time", "lon", "lat") and found.sizes["time"] == 7 * files
        for one in found["target"]:
            truth = source.s.sel(time=one["time"].item() + 1)
            np.testing.assert_array_equal(one.sel(lat=truth.lat, lon=truth.lon).transpose("lon", "lat"), truth)
