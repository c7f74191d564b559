"""Samples whose coordinates or dimensions are in another order than in training give the same results, others are
refused: a table of containers, faults and ways in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from singa_dask import Job, Regressor, layers, load, load_model, shard, train, updaters
from singa_dask.data.sharding import shard_files
from singa_dask.data.sources.patches import Patches
from singa_dask.errors import DataError
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of

xarray = pytest.importorskip("xarray")
N, H, W = 12, 6, 8
DRAW = np.random.default_rng(0)
GRID = ("day", "north", "east")
EAST = np.roll(np.arange(-180.0, 180, 45), 3)  # neither rises nor falls
COORDS = {"day": np.arange(N), "north": np.arange(50.0, 50 + H), "east": EAST}


def field(units: str) -> Any:
    values = DRAW.normal(size=(N, H, W)).astype("f4")
    return xarray.DataArray(values, COORDS, GRID, attrs={"units": units})


WIND, HEAT = field("m s-1").rename("wind"), field("W m-2").rename("heat")
BOTH = xarray.Dataset({"wind": WIND, "heat": HEAT})
Y = (WIND.mean(("north", "east")) + HEAT[:, 0, 0]).drop_vars(("north", "east")).rename("y")


def each(change: Any) -> Any:
    """The change of every variable of a Dataset or a mapping, or of a DataArray."""

    def changed(x: Any) -> Any:
        if isinstance(x, Mapping) and not hasattr(x, "data_vars"):
            return {name: change(array) for name, array in x.items()}
        return change(x)

    return changed


def last(change: Any) -> Any:
    """The change of one array of a mapping."""
    return lambda x: {**x, "heat": change(x["heat"])}


def units(x: Any) -> Any:
    return (
        x.assign({name: units(v) for name, v in x.items()}) if hasattr(x, "data_vars") else x.assign_attrs(units="erg")
    )


def placed(**coords: Any) -> Any:
    return lambda x: x.assign_coords({name: list(values) for name, values in coords.items()})


MIXED = [2, 0, 5, 3, 1, 4]
# The same samples in another order: the results are the same.
EXACT = {
    "reversed": each(lambda x: x.isel(north=slice(None, None, -1))),
    "permuted": each(lambda x: x.isel(north=MIXED)),
    "sorted": each(lambda x: x.sortby("east")),
    "rolled": each(lambda x: x.roll(east=3, roll_coords=True)),
    "transposed": each(lambda x: x.transpose("day", "east", "north")),
    "transposed and permuted": each(lambda x: x.transpose("day", "east", "north").isel(north=MIXED).sortby("east")),
    "in float32": each(lambda x: x.isel(north=MIXED).assign_coords(north=(50 + np.array(MIXED)).astype("f4"))),
}
TOGETHER = {
    "rows of one permuted": last(lambda x: x[::-1]),
    "grid of one permuted": last(lambda x: x.isel(north=MIXED)),
    "dimensions of one transposed": last(lambda x: x.transpose("east", "north", "day")),
}
# Others: they are refused.
WRONG = {
    "other units": each(units),
    "other places in no order": each(placed(north=[50, 54, 53, 52, 51, 60])),
    "one place twice": each(placed(north=[50, 51, 51, 53, 54, 55])),
    "permuted, one place twice": each(placed(east=[0, 45, 90, -180, -135, -90, -45, 0])),
    "falls elsewhere": each(placed(north=[40, 39, 38, 37, 36, 35])),
    "another dimension": each(lambda x: x.rename(north="row")),
}
APART = {
    "other rows of one": last(placed(day=np.arange(N) + 1)),
    "another grid of one": last(placed(north=np.arange(N)[:H])),
    "other units of one": last(units),
    "one without rows": last(lambda x: x[0]),
}
# Containers: of one field, and of two, which are two input layers.
SAMPLES = {
    "DataArray": WIND,
    "Dataset of one field": WIND.to_dataset(),
    "Dataset of fields": BOTH,
    "mapping": dict(BOTH),
    "lazy mapping": dict(BOTH.chunk(day=5)),
}
MAPPINGS = ["mapping", "lazy mapping"]
FITTED = ["DataArray", "Dataset of one field", "Dataset of fields"]


def number(x: Any) -> np.ndarray:
    """Predictions in the order of the days."""
    x = x.sortby("day") if hasattr(x, "dims") and "day" in x.coords else x
    return np.asarray(x, float).reshape(-1)


def stored(net: Any, x: Any, folder: Path) -> list[np.ndarray]:
    shard(x, Y, folder / "new", like=net.folder, shuffle=False, overwrite=True)
    return [np.asarray(each) for each in load(folder / "new", [*net.columns])]


def predicted(net: Any, x: Any, folder: Path, kind: str) -> Any:
    path = folder / f"new.{kind}"
    x.to_netcdf(path, engine="h5netcdf") if kind == "nc" else x.to_zarr(path, mode="w")
    names = ("wind",) if len(x.data_vars) == 1 else ()
    predict_blocks(net.model, blocks_of(net.model, str(path), names), folder / "p.nc")
    with xarray.open_dataset(folder / "p.nc", engine="h5netcdf") as found:
        return number(found["prediction" if "prediction" in found else "y"].load())


class Net:
    """A model of shards of one field or of two, and estimators by the kind of samples."""

    def __init__(self, several: bool, folder: Path) -> None:
        self.folder = folder / f"{several}-shards"
        shard(BOTH if several else WIND, Y, self.folder)
        self.columns = ("wind", "heat") if several else ("x",)
        how = {"path": str(self.folder), "batchsize": 4, "normalise": True}
        read = [layers.RecordInput(name, column=name, has_label=not at, **how) for at, name in enumerate(self.columns)]
        out = layers.InnerProduct(num_output=1)(layers.Concate("all", concate_dim=1)(*read) if several else read[0])
        loss = layers.EuclideanLoss()(out, read[0])
        job = Job(name="n", layers=[loss], updater=updaters.SGD(lr=0.01), train_steps=1, seed=3)
        run = train(job, processes=False, workspace=folder / f"{several}-run", curves=False)
        self.model = load_model(run.checkpoint)
        kinds = [kind for kind in FITTED if (kind == "Dataset of fields") == several]
        self.fitted = {kind: Regressor(epochs=1, random_state=0).fit(SAMPLES[kind], Y) for kind in kinds}


def again(net: Any, x: Any, kind: str) -> np.ndarray:
    return number(deepcopy(net.fitted[kind]).partial_fit(x, Y).score(x, Y))


# The kinds of samples, and the result of a net, samples, a folder and the kind.
Way = tuple[list[str], Callable[[Any, Any, Path, str], np.ndarray]]
WAYS: dict[str, Way] = {
    "predict": (FITTED, lambda net, x, _, kind: number(net.fitted[kind].predict(x))),
    "score": (FITTED[2:], lambda net, x, _, kind: number(net.fitted[kind].score(x, Y))),
    "partial_fit": (FITTED[2:], lambda net, x, _, kind: again(net, x, kind)),
    "Model.predict": ([*SAMPLES], lambda net, x, *_: number(net.model.predict(x))),
    "Model.predict_all": ([*SAMPLES], lambda net, x, *_: number(next(iter(net.model.predict_all(x).values())))),
    "Model.evaluate": (MAPPINGS, lambda net, x, *_: number(net.model.evaluate(x, Y)["loss"])),
    "shard(like=)": (
        ["DataArray", "lazy mapping"],
        lambda net, x, folder, _: np.hstack([*map(np.ravel, stored(net, x, folder))]),
    ),
    "predict, netCDF": (["Dataset of fields"], lambda net, x, folder, _: predicted(net, x, folder, "nc")),
    "predict, Zarr": (["Dataset of one field"], lambda net, x, folder, _: predicted(net, x, folder, "zarr")),
}


@pytest.fixture(scope="module")
def nets(tmp_path_factory: Any) -> dict[str, Net]:
    folder = tmp_path_factory.mktemp("nets")
    of = {several: Net(several, folder) for several in (False, True)}
    return {kind: of[isinstance(x, Mapping) and len(x) > 1] for kind, x in SAMPLES.items()}


COSTLY = {"partial_fit", "predict, netCDF", "predict, Zarr"}
FEW = {"transposed and permuted", "in float32", "other places in no order", "permuted, one place twice"}


def faults_of(way: str, kind: str) -> dict[str, tuple[Any, bool]]:
    """The changes, and whether the results stay the same."""
    same, other = (EXACT | TOGETHER, WRONG | APART) if kind in MAPPINGS else (EXACT, WRONG)
    every = {**{name: (change, True) for name, change in same.items()}, **{n: (c, False) for n, c in other.items()}}
    return {name: each for name, each in every.items() if way not in COSTLY or name in FEW}


TAKEN = "is taken"


def verdict(call: Callable[[], Any], is_right: Callable[[Any], bool], *, exact: bool) -> str:
    """What is wrong with a call that must be right if it is exact, and else be refused; "" for nothing."""
    try:
        found = call()
    except DataError as error:
        return str(error) if exact else ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not exact:
        return TAKEN
    return "" if is_right(found) else "other results"


@pytest.mark.parametrize("way", WAYS)
def test_the_order_is_that_of_training_or_refused(way: str, nets: dict[str, Net], tmp_path: Path) -> None:
    kinds, call = WAYS[way]
    wrong = []
    for kind in kinds:
        expected = call(nets[kind], SAMPLES[kind], tmp_path, kind)
        assert np.isfinite(expected).all()
        for fault, (change, exact) in faults_of(way, kind).items():
            found = verdict(
                lambda change=change, kind=kind: call(nets[kind], change(SAMPLES[kind]), tmp_path, kind),
                lambda found, expected=expected: (
                    found.shape == expected.shape and np.allclose(found, expected, rtol=1e-4, atol=1e-5)
                ),
                exact=exact,
            )
            wrong += [f"{kind}, {fault}: {found}"] * bool(found)
    assert not wrong, "\n".join(wrong)


# Answers beside X: aligned by their coordinates.
OF_Y = {
    "fit": lambda net, y: number(Regressor(epochs=1, random_state=0).fit(BOTH, y).predict(BOTH)),
    "score": lambda net, y: number(net.fitted["Dataset of fields"].score(BOTH, y)),
    "Model.evaluate": lambda net, y: number(net.model.evaluate(BOTH, y)["loss"]),
    "Model.evaluate, mapping": lambda net, y: number(net.model.evaluate(dict(BOTH), {"wind": y})["loss"]),
}


@pytest.mark.parametrize("way", OF_Y)
def test_answers_are_those_of_the_rows(way: str, nets: dict[str, Net]) -> None:
    net, call = nets["Dataset of fields"], OF_Y[way]
    expected = call(net, Y)
    np.testing.assert_allclose(call(net, Y[::-1]), expected, rtol=1e-5)
    np.testing.assert_allclose(call(net, Y[np.random.default_rng(1).permutation(N)]), expected, rtol=1e-5)
    for other in (Y.assign_coords(day=np.arange(N) + 1), Y.assign_coords(day=[0, *range(N - 1)])):
        with pytest.raises(DataError, match="other coordinates along 'day'"):
            call(net, other)


def test_arrays_beside_what_is_turned_are_refused(tmp_path: Path) -> None:
    y = (2 * WIND).rename("y")
    falling = {"x": WIND[:, ::-1], "y": y[:, ::-1]}
    fitted = Regressor(epochs=1, random_state=0).fit(WIND, y)
    assert fitted.score(*falling.values()) == pytest.approx(fitted.score(WIND, y))
    like = shard(WIND, y, tmp_path / "like", shuffle=False)[""]
    alone = shard(WIND, y.values, tmp_path / "alone", shuffle=False)[""]
    for plain in falling:
        given = falling | {plain: falling[plain].values}
        for of in (lambda given: fitted.score(*given.values()), lambda given: written(given, like, tmp_path)):
            with pytest.raises(DataError, match=f"(?i){plain}: has an axis of {H} without coordinates"):
                of(given)
    with pytest.raises(DataError, match=f"y: has an axis of {H} without coordinates here or there, and x is in"):
        written(falling, alone, tmp_path)
    for x, of in ((WIND.values, y), (WIND, y.values)):
        with pytest.raises(DataError, match="would be turned, but not what is given with it"):
            Regressor(epochs=1, random_state=0).fit(x, of).score(*falling.values())


def written(given: dict[str, Any], like: Any, folder: Path) -> Any:
    return shard(*given.values(), folder / "new", like=like, shuffle=False)


# Whole fields, of which the net reads patches.
LARGE = {"north": np.arange(30.0), "east": np.roll(np.arange(0.0, 360, 10), 7)}
FIELD = xarray.DataArray(DRAW.normal(size=(30, 36)).astype("f4"), LARGE, ("north", "east"), attrs={"units": "K"})
FIELDS = xarray.Dataset({"wind": FIELD, "heat": (2 * FIELD).assign_attrs(units="W")})
FIELD_KINDS = {
    "DataArray": FIELD,
    "lazy Dataset": FIELDS.chunk(north=15),
    "mapping": dict(FIELDS),
    "mixed mapping": {**dict(FIELDS), "wind": FIELD.chunk(east=12)},
}
TRAININGS = {"a field": {"stride": 8}, "records": {"stride": 6}, "netCDF": {"margin": 1, "stride": 6}}
FIELD_FAULTS = {
    "transposed": (each(lambda x: x.transpose("east", "north")), True),
    "reversed": (each(lambda x: x.isel(north=slice(None, None, -1))), True),
    "sorted": (each(lambda x: x.sortby("east")), True),
    "transposed and rolled": (each(lambda x: x.transpose("east", "north").roll(east=5, roll_coords=True)), True),
    "a part of it": (each(lambda x: x.isel(north=slice(10, None))), False),
    "other units": (each(units), False),
    "another dimension": (each(lambda x: x.rename(north="row")), False),
    "one place twice": (each(placed(east=[0.0, *LARGE["east"][1:-1], 0.0])), False),
}
FIELD_TOGETHER = {
    "one transposed": (last(lambda x: x.T), True),
    "one reversed": (last(lambda x: x[::-1]), True),
    "other units of one": (last(units), False),
    "other places of one": (last(placed(north=np.arange(30) + 1)), False),
}


@pytest.fixture(scope="module")
def patchers(tmp_path_factory: Any) -> dict[tuple[str, bool], Any]:
    """Nets of patches, by how they were trained and whether they read two fields."""
    folder = tmp_path_factory.mktemp("patches")
    made = {}
    for training in TRAININGS:
        for several in (False, True):
            out = folder / f"{training.replace(' ', '-')}-{several}"
            x = FIELDS.rename(wind="wind") if several else FIELD.rename("wind")
            if training == "netCDF":
                FIELDS.assign(y=FIELD).to_netcdf(folder / "f.nc", engine="h5netcdf")
                names = ["wind", "heat"] if several else "wind"
                how: dict[str, Any] = {"source": folder / "f.nc", "x": names, "target": "y", "cut": Patches(8, 8)}
                shard_files("netcdf", out, **how, overwrite=True)
            else:
                x = x.expand_dims(day=2) if training == "records" else x
                y = FIELD.expand_dims(day=2) if training == "records" else FIELD
                shard(x, y, out, patch=8)
            columns = ("wind", "heat") if several else ("x",)
            read = [
                layers.RecordInput(n, column=n, path=str(out), batchsize=2, has_label=n != "heat") for n in columns
            ]
            both = layers.Concate("both", concate_dim=1)(*read) if several else read[0]
            found = layers.Convolution(num_filters=1, kernel=3, pad=1)(both)
            job = Job(
                name="n",
                layers=[layers.EuclideanLoss()(found, read[0])],
                updater=updaters.SGD(lr=1e-4),
                train_steps=1,
                seed=2,
            )
            run = train(job, processes=False, workspace=out.with_suffix(".run"), curves=False)
            made[training, several] = load_model(run.checkpoint)
    return made


@pytest.mark.parametrize("training", TRAININGS)
def test_whole_fields_are_bound_as_samples_are(training: str, patchers: Any) -> None:
    wrong = []
    for kind, x in FIELD_KINDS.items():
        mapping = "mapping" in kind
        model = patchers[training, not hasattr(x, "dims") or hasattr(x, "data_vars")]
        expected = model.predict_field(x, **TRAININGS[training])
        for fault, (change, exact) in {**FIELD_FAULTS, **(FIELD_TOGETHER if mapping else {})}.items():
            found = verdict(
                lambda change=change, model=model, x=x: model.predict_field(change(x), **TRAININGS[training]),
                lambda found, expected=expected: np.allclose(
                    found.sel(expected.coords).transpose(*expected.dims), expected, rtol=1e-4, atol=1e-5
                ),
                exact=exact,
            )
            if found and (fault, found) != ("a part of it", TAKEN):
                wrong.append(f"{kind}, {fault}: {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("plain", FIELDS)
def test_an_array_beside_a_field_that_is_turned_is_refused(plain: str, lazy: bool, patchers: Any) -> None:
    falling = dict((FIELDS.chunk() if lazy else FIELDS).isel(north=slice(None, None, -1)))
    with pytest.raises(DataError, match=f"{plain}: has an axis of 30 without coordinates here or there"):
        patchers["a field", True].predict_field(falling | {plain: falling[plain].data})
    rising = dict(FIELDS)
    patchers["a field", True].predict_field(rising | {plain: rising[plain].data})
