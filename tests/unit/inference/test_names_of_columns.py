"""A model reads whatever holds rows, or windows of rows, by the names of the columns that it was trained on."""

import numpy as np
import pandas
import pytest
import xarray

from singa_dask import DistOpt, Model, layers, shard, updaters
from singa_dask.data.shards import ShardFolder
from singa_dask.errors import DataError

DRAW = np.random.default_rng(0)
NAMES, OTHER, WRONG = [*"abc"], [*"cab"], [*"xyz"]
A = DRAW.normal(size=(8, 3)).astype(np.float32)
W = DRAW.normal(size=(4, 5, 3)).astype(np.float32)
TIMES = pandas.date_range("2024-01-01", periods=8, freq="h", name="time")


def frame(values=A, names=NAMES, index=None):
    return pandas.DataFrame(values, columns=NAMES, index=index)[[*names]]


def array(values=A, dims="sv", names=NAMES):
    return xarray.DataArray(values, {"v": NAMES}, [*dims]).sel(v=[*names])


def dataset(values=A, dims="sv", names=NAMES):
    return array(values, dims, names).to_dataset("v")


TRAINED = {"DataFrame": frame(), "DataArray": array(), "Dataset": dataset()}
ROWS = {
    "DataFrame": lambda names: frame(names=names),
    "DataFrame of more": lambda names: frame(names=names).assign(more=1.0)[["more", *names]],
    "DataArray": lambda names: array(names=names),
    "DataArray of Dask": lambda names: array(names=names).chunk(s=3),
    "Dataset": lambda names: dataset(names=names),
    "mapping": lambda names: {"data": array(names=names)},
    "Series": lambda names: [row for _, row in frame(names=names).iterrows()],
    "frames of a row": lambda names: [frame(names=names)[i : i + 1] for i in range(8)],
    "dated frames of a row": lambda names: [frame(names=names, index=TIMES)[i : i + 1] for i in range(8)],
    "DataArrays": lambda names: [*array(names=names)],
    "Datasets of a row": lambda names: [dataset(names=names).isel(s=[i]) for i in range(8)],
}
WINDOWS = {
    "DataArray": lambda names: array(W, "stv", names),
    "DataArray, names before the steps": lambda names: array(W, "stv", names).transpose("s", "v", "t"),
    "Dataset": lambda names: dataset(W, "stv", names),
    "mapping": lambda names: {"data": array(W, "stv", names)},
    "frames": lambda names: [frame(each, names) for each in W],
    "frames of more": lambda names: [frame(each, names).assign(more=1.0) for each in W],
    "DataArrays": lambda names: [*array(W, "stv", names)],
    "DataArrays, names before the steps": lambda names: [each.T for each in array(W, "stv", names)],
    "Datasets": lambda names: [dataset(each, "tv", names) for each in W],
}
UNNAMED = {
    "array": A,
    "list": A.tolist(),
    "DataArray": array().drop_vars("v"),
    "frames of a row": [pandas.DataFrame(each[None]) for each in A],
    "windows": W,
    "DataArray of windows": array(W, "stv").drop_vars("v"),
    "frames of windows": [pandas.DataFrame(each) for each in W],
}


def model(tmp_path, trained, **conf):
    """With its initial parameters, and the description of these data."""
    manifest = shard(trained, A[:, 0], tmp_path / "s", shuffle=False, targets=True)[""]
    store = layers.RecordInput("data", shape=[3], target_shape=[1], **conf)
    made = Model([store, layers.InnerProduct(num_output=conf.get("horizon", 1)), layers.EuclideanLoss()])
    made.described = {"data": manifest.description}
    return made


def windowed(tmp_path, trained):
    return model(tmp_path, trained, sequence=5, horizon=2)


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize(("made", "given"), [(model, ROWS), (windowed, WINDOWS)])
def test_columns_are_put_in_order_or_refused(made, given, trained, tmp_path):
    net = made(tmp_path, TRAINED[trained])
    expected = np.ravel(net.predict(A if given is ROWS else W))
    for kind, of in given.items():
        for names in (NAMES, OTHER):
            np.testing.assert_allclose(np.ravel(net.predict(of(names))), expected, rtol=1e-5, err_msg=kind)
        renamed = of(NAMES)
        renamed = [_renamed(each) for each in renamed] if isinstance(renamed, list) else _renamed(renamed)
        with pytest.raises(DataError, match=r"a, b, c|'a'"):
            net.predict(renamed)


def _renamed(x):
    if isinstance(x, dict):
        return {name: _renamed(each) for name, each in x.items()}
    if isinstance(x, xarray.DataArray):
        return x.assign_coords(v=WRONG)
    names = dict(zip(NAMES, WRONG, strict=True))
    if isinstance(x, pandas.DataFrame):
        return x.rename(columns=names)
    return x.rename(names)


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("kind", UNNAMED)
def test_without_names_the_places_count(kind, trained, tmp_path):
    made = windowed if "window" in kind else model
    net = made(tmp_path, TRAINED[trained])
    expected = np.ravel(net.predict(W if made is windowed else A))
    np.testing.assert_allclose(np.ravel(net.predict(UNNAMED[kind])), expected, rtol=1e-5)


@pytest.mark.parametrize("trained", TRAINED)
def test_dates_of_the_steps_rise(trained, tmp_path):
    net, given = windowed(tmp_path, TRAINED[trained]), array(W, "stv").assign_coords(t=TIMES[:5].values)
    net.predict(given)
    net.predict(given.assign_coords(t=-np.arange(5)))  # lags
    with pytest.raises(DataError, match=r"its times do not rise.* Give x of data\.sortby\('t'\)"):
        net.predict(given.isel(t=slice(None, None, -1)))


def in_a_loop(sequence=0, outputs=1):
    conf = {"sequence": 5, "horizon": 1} if sequence else {}
    store = layers.RecordInput("data", shape=[3], target_shape=[outputs], **conf)
    return Model([store, layers.InnerProduct(num_output=outputs), layers.EuclideanLoss()])


def trained_in_a_loop(net, x, y):
    DistOpt(updaters.SGD(lr=0.1), net).backward_and_update(net(x, y))
    return net


@pytest.mark.parametrize(
    ("of", "first"),
    [
        *((ROWS, kind) for kind in ("DataFrame", "DataArray", "Dataset", "mapping", "Series")),
        *((WINDOWS, kind) for kind in ("DataArray", "Dataset", "frames")),
    ],
)
def test_the_first_call_of_a_loop_sets_the_names(of, first):
    plain, sequence = (A, 0) if of is ROWS else (W, 5)
    y = np.zeros((len(plain), 1), np.float32)
    expected = np.ravel(trained_in_a_loop(in_a_loop(sequence), plain, y).predict(plain))
    net = trained_in_a_loop(in_a_loop(sequence), of[first](NAMES), y)
    loss = float(net(plain, y))
    for kind, given in of.items():
        given = given(OTHER)
        np.testing.assert_allclose(np.ravel(net.predict(given)), expected, rtol=1e-5, err_msg=kind)
        if kind != "DataArray of Dask":
            np.testing.assert_allclose([float(net(given, y)), net.evaluate(given, y)["loss"]], loss, rtol=1e-5)
    with pytest.raises(DataError, match=r"a, b, c|'a'"):
        net(_renamed(of["DataArray"](NAMES)), y)


def test_the_first_call_of_a_loop_sets_the_names_of_targets(tmp_path):
    y = pandas.DataFrame(A[:, :2], columns=["p", "q"])
    net = trained_in_a_loop(in_a_loop(outputs=2), A, y)
    loss = float(net(A, y.to_numpy()))
    labelled = xarray.DataArray(y.to_numpy(), {"t": ["p", "q"]}, ("s", "t"))
    for given in (y, y[["q", "p"]], labelled.sel(t=["q", "p"])):
        np.testing.assert_allclose([float(net(A, given)), net.evaluate(A, given)["loss"]], loss)
    with pytest.raises(DataError, match="columns p, which are missing"):
        net(A, y.rename(columns={"p": "r"}))
    assert [*net.predict(frame()).columns] == ["p", "q"]
    net.save(tmp_path / "m.h5")


def test_a_call_that_fails_sets_no_names():
    net, y = in_a_loop(), np.zeros((8, 1), np.float32)
    with pytest.raises(DataError, match="as many samples"):
        net(frame(names=OTHER), y[:3])
    net(frame(), y)
    np.testing.assert_array_equal(net.predict(frame(names=OTHER)), net.predict(A))


def test_all_ranks_give_the_same_names():
    net, other = in_a_loop(), in_a_loop()
    other(frame(), np.zeros((8, 1), np.float32))
    marks = []
    other.ranks.numbers = lambda mark: marks.append(mark) or [mark]
    other.called, other.described = False, {}
    other(frame(), np.zeros((8, 1), np.float32))
    net.ranks.numbers = lambda mark: [marks[0], mark]
    with pytest.raises(DataError, match="rank 1 gives columns of other names, or in another order, than rank 0"):
        net(frame(names=OTHER), np.zeros((8, 1), np.float32))


@pytest.mark.parametrize("kind", ["DataFrame", "DataFrame of more", "DataArray", "Series"])
def test_tables_after_an_array_are_read_by_its_names(kind, tmp_path):
    first = shard(array(), A[:, 0], tmp_path / "first", shuffle=False)[""]
    again = shard(ROWS[kind](OTHER), A[:, 0], tmp_path / "again", shuffle=False, like=tmp_path / "first")[""]
    np.testing.assert_array_equal(ShardFolder(again).reader(0).column("x"), A)
    with pytest.raises(DataError, match="lacks the columns a, b, c"):
        shard(_renamed(frame()), A[:, 0], tmp_path / "other", like=first)
    with pytest.raises(DataError, match=r"is a table, and the samples of .* came from an array"):
        shard(dataset(), A[:, 0], tmp_path / "refused", like=first)
