"""Arrays of h5py and zarr that are given as objects are decoded as those of files, and bound to the units of training:
a table of packages, attributes and ways in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest

from singa_dask import Job, Regressor, layers, load, load_model, shard, train, updaters
from singa_dask.data.sharding import shard_files
from singa_dask.errors import DataError
from singa_dask.monitor.progress import Display

h5netcdf, zarr = pytest.importorskip("h5netcdf"), pytest.importorskip("zarr")
netcdf_file = pytest.importorskip("scipy.io").netcdf_file
pytest.importorskip("xarray")
N, SIZE = 24, 3
DRAW = np.random.default_rng(0)
INTEGERS = DRAW.integers(-90, 90, (N, SIZE)).astype("i2")
INTEGERS[[2, 7], 1] = -99
NAN = np.where(INTEGERS == -99, np.nan, INTEGERS)
Y = INTEGERS.sum(1) / 100.0
FILL = 0.25
UNITS = {"units": "m"}
# Attributes of stored values, and what these mean.
MEANINGS: dict[str, tuple[dict[str, Any], np.ndarray, np.ndarray]] = {
    "units alone": ({}, INTEGERS / 8.0, INTEGERS / 8.0),
    "scale_factor": ({"scale_factor": 0.01}, INTEGERS, INTEGERS * 0.01),
    "add_offset": ({"add_offset": 5.0}, INTEGERS, INTEGERS + 5.0),
    "_FillValue": ({"_FillValue": -99}, INTEGERS, NAN),
    "missing_value": ({"missing_value": -99, "scale_factor": 0.5}, INTEGERS, NAN * 0.5),
    "valid_range": ({"valid_range": [-90, 90]}, INTEGERS, NAN),
    "valid_min and valid_max of one entry": ({"valid_min": [-90], "valid_max": [90]}, INTEGERS, NAN),
    "_Unsigned": ({"_Unsigned": "true", "scale_factor": 0.1}, INTEGERS, INTEGERS.view("u2") * 0.1),
}
OPEN: list[Any] = []  # files of h5netcdf, whose variables do not keep them


def in_hdf5(values: np.ndarray, folder: Path, **attributes: Any) -> Any:
    file = h5py.File(folder / f"{len([*folder.iterdir()])}.h5", "w")
    dataset = file.create_dataset("x", data=values, chunks=(5, *values.shape[1:]))
    for key, value in attributes.items():
        dataset.attrs[key] = values.dtype.type(value) if key in ("_FillValue", "missing_value") else value
    return dataset


def in_zarr(values: np.ndarray, folder: Path, **attributes: Any) -> Any:
    group = zarr.open_group(folder / f"{len([*folder.iterdir()])}.zarr", mode="w")
    array = group.create_array("x", data=values, chunks=(5, *values.shape[1:]))
    array.attrs.update(attributes)
    return array


def in_h5netcdf(values: np.ndarray, folder: Path, **attributes: Any) -> Any:
    path = folder / f"{len([*folder.iterdir()])}.nc"
    fill = attributes.pop("_FillValue", None)
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {f"d{axis}": size for axis, size in enumerate(values.shape)}
        kind = None if fill is None else values.dtype.type(fill)
        made = file.create_variable("x", tuple(file.dimensions), values.dtype, fillvalue=kind)
        made[:] = values
        made.attrs.update(attributes)
    OPEN.append(h5netcdf.File(path, "r"))
    return OPEN[-1]["x"]


def in_netcdf3(values: np.ndarray, folder: Path, **attributes: Any) -> Any:
    path = folder / f"{len([*folder.iterdir()])}.nc"
    with netcdf_file(path, "w") as file:
        for axis, size in enumerate(values.shape):
            file.createDimension(f"d{axis}", size)
        made = file.createVariable("x", values.dtype, tuple(file.dimensions))
        made[:] = values
        for key, value in attributes.items():
            setattr(made, key, value if isinstance(value, str | float) else np.asarray(value, values.dtype.str[1:]))
    return netcdf_file(path, "r", mmap=False).variables["x"]


PACKAGES = {"h5py": in_hdf5, "zarr": in_zarr}
OTHERS = {
    "h5netcdf": in_h5netcdf,
    "a view of h5py": lambda values, folder, **told: in_hdf5(values, folder, **told).astype("f8"),
    "SciPy": in_netcdf3,
}


def model_of(folder: Path, layer: Any) -> Any:
    read = layers.RecordInput(path=str(folder / "known"), batchsize=4)
    net, sgd = [read, layer, layers.EuclideanLoss()], updaters.SGD(lr=0.01)
    job = Job(name="n", layers=net, updater=sgd, train_steps=1, seed=1)
    run = train(job, processes=False, workspace=folder / "run", curves=False, display=Display())
    return load_model(run.checkpoint)


class Net:
    """A model of shards of these values in metres, and a Regressor."""

    def __init__(self, values: np.ndarray, folder: Path) -> None:
        self.folder, held = folder, in_hdf5(values, folder, **UNITS)
        shard(held, Y, folder / "known", missing=FILL)
        self.model = model_of(folder, layers.InnerProduct(num_output=1))
        self.fitted = regressor().fit(held, Y)


def regressor(**more: Any) -> Regressor:
    return Regressor(epochs=1, random_state=0, missing=FILL, **more)


def stored(x: Any, y: Any, folder: Path, column: str = "x", **options: Any) -> np.ndarray:
    options = options or {"missing": FILL}
    shard(x, y, folder / "new", shuffle=False, overwrite=True, **options)
    return np.asarray(load(folder / "new", [column])[0]).reshape(N, -1)


def trained(x: Any, *_: Any) -> np.ndarray:
    net = [layers.RecordInput(batchsize=N), layers.InnerProduct(num_output=1), layers.EuclideanLoss()]
    job = Job(name="t", layers=net, updater=updaters.SGD(lr=0.1), train_steps=2, seed=1)
    return train(job, data=(x, Y), processes=False, display=Display(), curves=False).history.loss.to_numpy()


def beside(x: Any) -> Any:
    return {"x": x, "other": da.from_array(Y[:, None], chunks=(7, 1))}


# Each gives numbers of an array, a net and a folder.
Way = Callable[[Any, Net, Path], Any]
FIRST: dict[str, Way] = {
    "shard": lambda x, net, folder: stored(x, Y, folder),
    "shard, mapping": lambda x, net, folder: stored({"x": x, "z": Y[:, None]}, Y, folder),
    "shard, beside a Dask array": lambda x, net, folder: stored(beside(x), da.from_array(Y, chunks=7), folder),
    "fit": lambda x, net, folder: regressor().fit(x, Y).predict(np.nan_to_num(INTEGERS)),
}
WHOLE: dict[str, Way] = {  # of values none of which is missing
    "shard, y": lambda x, net, folder: stored(Y, x, folder, "y"),
    "shard, patches": lambda x, net, folder: (
        shard(x, np.asarray(x), folder / "p", patch=2, stride=1, shuffle=False, overwrite=True, targets=True),
        load(folder / "p", ["x"])[0],
    )[1],
    "train": trained,
    "fit, y": lambda x, net, folder: regressor().fit(INTEGERS, x).predict(INTEGERS),
}
LATER: dict[str, Way] = {
    "shard(like=)": lambda x, net, folder: stored(x, Y, folder, like=net.folder / "known"),
    "predict": lambda x, net, folder: net.fitted.predict(x),
    "score": lambda x, net, folder: net.fitted.score(x, Y),
    "validation": lambda x, net, folder: (
        regressor(validation=(x, Y)).fit(in_hdf5(NAN, folder, **UNITS), Y).predict(NAN)
    ),
    "Model.predict": lambda x, net, folder: net.model.predict(x),
    "Model.predict, mapping": lambda x, net, folder: net.model.predict({net.model.net.input_layers[0]: x}),
    "Model.evaluate": lambda x, net, folder: net.model.evaluate(x, Y)["loss"],
}


COSTLY, FEW = {"fit", "fit, y", "validation", "train", "score"}, {"scale_factor", "_FillValue"}


@pytest.fixture(scope="module")
def net(tmp_path_factory: Any) -> Net:
    return Net(NAN, tmp_path_factory.mktemp("net"))


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("way", [*FIRST, *WHOLE, *LATER])
def test_attributes_mean_what_they_mean_in_files(way: str, package: str, net: Net, tmp_path: Path) -> None:
    call, wrong = (FIRST | WHOLE | LATER)[way], []
    for name, (attributes, raw, means) in MEANINGS.items():
        if (way in WHOLE and np.isnan(means).any()) or (way in COSTLY and name not in FEW):
            continue
        found = call(PACKAGES[package](raw, tmp_path, **UNITS, **attributes), net, tmp_path)
        expected = call(means, net, tmp_path)
        if not np.allclose(found, expected, rtol=1e-4, atol=1e-5):
            wrong.append(name)
    assert not wrong


@pytest.mark.parametrize("package", OTHERS)
@pytest.mark.parametrize("way", ["shard", "shard, mapping", "predict", "Model.predict", "Model.evaluate"])
def test_objects_of_other_packages_too(way: str, package: str, net: Net, tmp_path: Path) -> None:
    call = (FIRST | LATER)[way]
    for attributes, raw, means in MEANINGS.values():
        given = raw.astype("f4") if raw.dtype == np.float64 else raw
        found = call(OTHERS[package](given, tmp_path, **UNITS, **attributes), net, tmp_path)
        np.testing.assert_allclose(found, call(means, net, tmp_path), rtol=1e-4, atol=1e-5)
    if way in LATER:
        with pytest.raises(DataError, match="units 'mm'"):
            call(OTHERS[package](NAN.astype("f4"), tmp_path, units="mm"), net, tmp_path)


def test_groups_are_their_arrays(net: Net, tmp_path: Path) -> None:
    name = net.model.net.input_layers[0]
    expected = net.model.predict(MEANINGS["scale_factor"][2])
    for package, held in (PACKAGES | OTHERS).items():
        array = held(MEANINGS["scale_factor"][1], tmp_path, **UNITS, scale_factor=0.01)
        group = zarr.open_group(array.store, mode="r+") if package == "zarr" else getattr(array, "parent", None)
        if group is None or package == "a view of h5py":
            continue
        assert np.asarray(net.model.predict({name: group["x"]})).shape == expected.shape
        shard(group, Y, tmp_path / "group", shuffle=False, overwrite=True)
        np.testing.assert_allclose(load(tmp_path / "group", ["x"])[0], array[...] * 0.01, rtol=1e-4)


def test_attributes_of_an_unknown_kind_are_refused() -> None:
    class Array:
        attrs, shape, dtype = object(), (N, SIZE), np.dtype("i2")
        __getitem__ = INTEGERS.__getitem__

    with pytest.raises(DataError, match=r"a Array has attributes that are not read.* xarray"):
        shard(Array(), Y, "out")


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("way", LATER)
def test_other_units_are_refused(way: str, package: str, net: Net, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="units 'mm'"):
        LATER[way](PACKAGES[package](NAN, tmp_path, units="mm"), net, tmp_path)


@pytest.mark.parametrize("package", PACKAGES)
def test_missing_values_are_refused_without_a_fill(package: str, tmp_path: Path) -> None:
    x = PACKAGES[package](INTEGERS, tmp_path, _FillValue=-99)
    with pytest.raises(DataError, match="NaN"):
        shard(x, Y, tmp_path / "out")
    with pytest.raises(ValueError, match="missing values"):
        Regressor(epochs=1).fit(x, Y)


@pytest.mark.parametrize("package", PACKAGES)
def test_shards_are_those_of_the_file(package: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.mkdir()
    x = PACKAGES[package](INTEGERS, file, _FillValue=-99, scale_factor=0.5, **UNITS)
    (by_object,) = shard(x, None, tmp_path / "a", shuffle=False, missing=FILL).values()
    (path,) = file.iterdir()
    if package == "h5py":
        x.file.close()
        with pytest.raises(DataError, match="file that was closed"):
            shard(x, None, tmp_path / "c")
    kind = {"h5py": "hdf5"}.get(package, package)
    (by_path,) = shard_files(kind, tmp_path / "b", source=path, x=["x"], shuffle=False, missing=FILL).values()
    assert by_object.columns == by_path.columns and by_object.schema.reading.units == by_path.schema.reading.units
    np.testing.assert_array_equal(load(tmp_path / "a", ["x"])[0], load(tmp_path / "b", ["x"])[0])


def test_dimensions_of_zarr_are_those_of_training(tmp_path: Path) -> None:
    values = DRAW.normal(size=(N, 4, 4))

    def array(*dims: str) -> Any:
        made = zarr.create_array(store={}, shape=values.shape, dtype="f8", dimension_names=("day", *dims))
        made[...] = values if dims[0] == "north" else values.swapaxes(1, 2)
        return made

    same, turned = array("north", "east"), array("east", "north")
    known = shard(same, Y, tmp_path / "known", shuffle=False)[""]
    shard(turned, Y, tmp_path / "like", like=known, shuffle=False)
    np.testing.assert_array_equal(load(tmp_path / "like", ["x"])[0], load(tmp_path / "known", ["x"])[0])
    fitted = Regressor(epochs=1).fit(same, Y)
    for call in (fitted.predict, fitted.model_.predict):
        assert np.isfinite(call(same)).all()
        with pytest.raises(DataError, match="along east, north, but in the training data along north, east"):
            call(turned)


def test_fields_are_decoded(tmp_path: Path) -> None:
    field = DRAW.integers(-90, 90, (16, 16)).astype("i2")
    held = in_hdf5(field, tmp_path, scale_factor=0.1, **UNITS)
    shard(held, held, tmp_path / "known", patch=8)
    model = model_of(tmp_path, layers.Convolution(num_filters=1, kernel=1))
    np.testing.assert_allclose(model.predict_field(held), model.predict_field(field * 0.1), rtol=1e-4)
    with pytest.raises(DataError, match="units 'km'"):
        model.predict_field(in_hdf5(field, tmp_path, units="km"))
