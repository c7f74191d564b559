"""Rows that are given beside each other have the same labels: a table of entry points, containers and faults.

A cell is right where the rows are refused, or where only their order differs and the result is that of the right one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from singa_dask import Job, Model, Regressor, layers, load, shard, train, updaters
from singa_dask.data import ShardFolder
from singa_dask.data.columns import Role
from singa_dask.errors import DataError
from singa_dask.monitor.progress import Display

N = 40
DRAW = np.random.default_rng(0)
X = pd.DataFrame(DRAW.normal(size=(N, 2)), columns=["a", "b"], index=np.arange(N) * 3 + 7)


def truth(x: Any) -> Any:
    return (2 * x.a + x.b).rename("y")


def weights(x: Any) -> Any:
    return (x.a**2 + 1).rename("w")


Y, W = truth(X), weights(X)
LATER = np.r_[: N // 2, N // 2 + 1 : N, N // 2]  # rows of the second half in another order
FAULTS: dict[str, Callable[[Any], Any]] = {
    "another order": lambda y: y.iloc[::-1],
    "another order of the later rows": lambda y: y.iloc[LATER],
    "shifted by one": lambda y: y.set_axis(y.index + 3),
    "some other rows": lambda y: y.set_axis(np.r_[y.index[:-5], np.arange(5)]),
    "no row of X": lambda y: y.set_axis(y.index + 1),
    "labels that repeat": lambda y: y.iloc[::-1].set_axis(np.repeat(y.index[: N // 2], 2)),
}


def lazy(x: Any) -> Any:
    """A Dask collection of two partitions, whose divisions are not known."""
    return dd.from_pandas(x, npartitions=2, sort=False).clear_divisions()


def unlike(y: Any) -> Any:
    """The same rows, in two partitions of other lengths."""
    return dd.concat([dd.from_pandas(part, npartitions=1, sort=False) for part in (y[:15], y[15:])]).clear_divisions()


def same(x: Any) -> Any:
    return x


# Each has answers and weights from Series, and its faults; X is made alike.
MEMORY, DASK = (same, FAULTS), (lazy, FAULTS | {"partitions of other lengths": unlike})
CONTAINERS = {
    "Series": (MEMORY, lambda x: x, lambda y: y),
    "DataFrame": (MEMORY, lambda x: x, lambda y: pd.DataFrame({"u": y, "v": y})),
    "Series of Dask": (DASK, lambda x: x, lambda y: y),
    "DataFrame of Dask": (DASK, lambda x: x, lambda y: pd.DataFrame({"u": y, "v": y})),
}
MAPPINGS = {
    "mapping of Series": (MEMORY, "ab"),
    "mapping of DataFrames": (MEMORY, [["a"], ["b"]]),
    "mapping of Series of Dask": (DASK, "ab"),
    "mapping of DataFrames of Dask": (DASK, [["a"], ["b"]]),
}


def fitted(x: Any, y: Any, weight: Any = None, **more: Any) -> Any:
    net = [layers.InnerProduct(num_output=2 if y.ndim == 2 else 1)]
    return Regressor(net, epochs=1, random_state=0, **more).fit(x, y, weight)


def predicted(net: Any) -> np.ndarray:
    return net.predict(X)


WITH_Y = {
    "fit": lambda net, x, y, now: predicted(fitted(x, now)),
    "partial_fit": lambda net, x, y, now: predicted(deepcopy(net).partial_fit(x, now)),
    "score": lambda net, x, y, now: np.array(net.score(x, now)),
    "validation": lambda net, x, y, now: fitted(x, y, validation=(x, now)).history_.loss.to_numpy(),
}
WITH_WEIGHTS = {
    "fit": lambda net, x, y, now: predicted(fitted(x, y, now)),
    "score": lambda net, x, y, now: np.array(net.score(x, y, now)),
}


REFUSALS = r" where [Xxy] has | rows, |cannot be paired|other coordinates along 'row'"


def wrong_cells(
    container: str, faults: Any, call: Callable[[Any], Any], right: Any, change: Callable[[Any, Any], Any]
) -> list[str]:
    """The faults that are neither refused nor of order alone. change: makes what is given of a fault."""
    wrong, expected = [], None
    for fault, of in faults.items():
        try:
            found = call(change(of, fault))
        except Exception as error:
            if not (isinstance(error, DataError) and re.search(REFUSALS, str(error))):
                wrong.append(f"{container}, {fault}: {type(error).__name__}: {error}")
            continue
        expected = call(right) if expected is None else expected
        if ("order" not in fault and "lengths" not in fault) or not np.allclose(found, expected, rtol=1e-5, atol=1e-6):
            wrong.append(f"{container}, {fault}")
    return wrong


def applied(make: Callable[[Any], Any], whole: Any) -> Callable[[Any, str], Any]:
    return lambda of, fault: of(whole) if fault == "partitions of other lengths" else make(of(whole))


@pytest.mark.parametrize(
    ("way", "weights"), [*((way, False) for way in WITH_Y), *((way, True) for way in WITH_WEIGHTS)]
)
def test_estimators_pair_rows_by_their_labels(way: str, weights: bool) -> None:
    call, wrong = (WITH_WEIGHTS if weights else WITH_Y)[way], []
    for container, ((make, faults), of_x, of_y) in CONTAINERS.items():
        x, y = make(of_x(X)), make(of_y(Y))
        net = fitted(x, y) if way in ("partial_fit", "score") else None
        whole = W if weights else of_y(Y)
        wrong += wrong_cells(
            container, faults, lambda now, net=net, x=x, y=y: call(net, x, y, now), make(whole), applied(make, whole)
        )
    assert not wrong, "\n".join(wrong)


def off(x: Any, y: Any, out: Path, **more: Any) -> np.ndarray:
    """How far the targets of shards are from those of the features beside them, and the weights."""
    folder = ShardFolder(next(iter(shard(x, y, out, overwrite=True, **more).values())))
    held: dict[Any, list[np.ndarray]] = {}
    for column in folder.manifest.columns:
        parts = [folder.reader(i).column(column.name) for i in range(len(folder.manifest.shards))]
        held.setdefault(column.role, []).append(np.concatenate(parts).reshape(-1, column.values))
    features = np.concatenate(held[Role.FEATURE], axis=1)
    table = pd.DataFrame(features, columns=["a", "b"])
    errors = [y.T - truth(table).to_numpy() for y in held[Role.TARGET]]
    errors += [w.T - weights(table).to_numpy() for w in held.get(Role.WEIGHT, [])]
    return np.array(max(np.abs(each).max() for each in errors) > 1e-5)


def trained(x: Any, y: Any, *weight: Any) -> np.ndarray:
    net = [layers.RecordInput(batchsize=N), layers.InnerProduct(num_output=1), layers.EuclideanLoss()]
    job = Job(name="rows", layers=net, updater=updaters.SGD(lr=0.1), train_steps=2, seed=1)
    found = train(job, data=(x, y, *weight), processes=False, display=Display(), curves=False)
    return found.history.loss.to_numpy()


@pytest.mark.parametrize("way", ["y", "sample_weight", "member of X", "member of y", "like", "train"])
def test_shards_pair_rows_by_their_labels(way: str, tmp_path: Path) -> None:
    wrong = []
    out = tmp_path / "out"
    for container, ((make, faults), _, of_y) in CONTAINERS.items():
        x, y, known = make(X), make(of_y(Y)), shard(X, of_y(Y), tmp_path / "known", overwrite=True)[""]
        calls = {
            "y": (lambda now, x=x: off(x, now, out), of_y(Y)),
            "sample_weight": (lambda now, x=x, y=y: off(x, y, out, sample_weight=now), W),
            "like": (lambda now, x=x, known=known: off(x, now, out, like=known), of_y(Y)),
            "train": (lambda now, x=x, make=make: trained(x, make(Y), now), W),
        }
        if way in calls:
            call, whole = calls[way]
            wrong += wrong_cells(container, faults, call, make(whole), applied(make, whole))
    for container, ((make, faults), (a, b)) in MAPPINGS.items():
        x, y = {"a": make(X[a]), "b": make(X[b])}, make(Y)
        calls = {
            "y": (lambda now, x=x: off(x, now, out), Y),
            "sample_weight": (lambda now, x=x, y=y: off(x, y, out, sample_weight=now), W),
            "member of X": (lambda now, x=x, y=y: off({**x, "b": now}, y, out), X[b]),
            "member of y": (lambda now, x=x, y=y: off(x, {"y": y, "z": now}, out), Y),
        }
        if way in calls:
            call, whole = calls[way]
            wrong += wrong_cells(container, faults, call, make(whole), applied(make, whole))
    assert not wrong, "\n".join(wrong)


COUNTED = X.reset_index(drop=True)
SORTED = COUNTED.sort_values("a")
# By way: what counts its rows, and has the labels of what it is given with in another order.
BESIDE_SORTED: dict[str, Callable[[Any, Path], Any]] = {
    "fit": lambda y, out: fitted(SORTED, y),
    "weights": lambda y, out: fitted(SORTED, y.to_numpy(), y.abs()),
    "score": lambda y, out: fitted(SORTED, y.to_numpy()).score(SORTED, y),
    "evaluate": lambda y, out: fitted(SORTED, y.to_numpy()).model_.evaluate(SORTED, y),
    "shard": lambda y, out: shard(SORTED, y, out),
    "split_data": lambda y, out: held_out(SORTED, y.to_numpy(), out, y.gt(0).map({True: "train", False: "test"})),
    "member": lambda y, out: shard({"a": SORTED.a, "b": y}, y.to_numpy(), out),
    "X counts": lambda y, out: shard(COUNTED, truth(SORTED), out),
    "Dataset": lambda y, out: shard(dataset(SORTED).to_dataframe(), y, out),
}


@pytest.mark.parametrize("way", BESIDE_SORTED)
def test_a_default_index_beside_its_labels_in_another_order_is_told(way, tmp_path, caplog):
    BESIDE_SORTED[way](truth(COUNTED), tmp_path / "out")
    assert "by the labels of their index" in caplog.text and "from 0. If" in caplog.text
    caplog.clear()
    fitted(SORTED, truth(SORTED)), fitted(COUNTED, truth(COUNTED)), fitted(X, truth(X).iloc[::-1])
    fitted(SORTED, pd.Series(truth(SORTED).to_numpy(), SORTED.index + 1).reset_index(drop=True).to_numpy())
    assert "by the labels of their index" not in caplog.text


# Labels of both libraries beside each other: of X, and of what is given beside it.

xarray = pytest.importorskip("xarray")
FEW = {name: FAULTS[name] for name in ("another order", "shifted by one", "labels that repeat")}


def array(x: Any) -> Any:
    return xarray.DataArray(x.to_numpy(), {"row": x.index.to_numpy()}, ("row", "column")[: x.ndim])


def dataset(x: Any) -> Any:
    return xarray.Dataset({name: array(x[name]) for name in x})


MIXED = {
    "DataArray beside a DataFrame": (same, array),
    "Series beside a DataArray": (array, same),
    "Series beside a Dataset": (dataset, same),
}
MEMBERS = {"DataArray beside a Series": (same, array), "Series beside a DataArray": (array, same)}


def cells(container: str, call: Callable[[Any], Any], make: Callable[[Any], Any], whole: Any) -> list[str]:
    return wrong_cells(container, FEW, call, make(whole), applied(make, whole))


@pytest.mark.parametrize(
    ("way", "weighted"), [("fit", False), ("score", False), ("validation", False), ("fit", True), ("score", True)]
)
def test_estimators_pair_pandas_with_xarray(way: str, weighted: bool) -> None:
    call, wrong = (WITH_WEIGHTS if weighted else WITH_Y)[way], []
    for container, (make_x, make) in MIXED.items():
        x, y = make_x(X), make(Y)
        net = fitted(x, y) if way == "score" else None
        wrong += cells(container, lambda now, net=net, x=x, y=y: call(net, x, y, now), make, W if weighted else Y)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("of_weights", [same, array])
@pytest.mark.parametrize("of_y", [same, array])
def test_weights_have_the_rows_of_y_where_x_has_no_labels(of_y: Any, of_weights: Any, tmp_path: Path) -> None:
    x, y = X.to_numpy(), of_y(Y)
    net = fitted(x, y)
    wrong = cells("score", lambda now: np.array(net.score(x, y, now)), of_weights, W)
    wrong += cells("shard", lambda now: off(x, y, tmp_path / "out", sample_weight=now), of_weights, W)
    assert not wrong, "\n".join(wrong)


def held_out(x: Any, y: Any, out: Path, part: Any) -> np.ndarray:
    shard(x, y, out, split_data={"part": part}, split_column="part", overwrite=True)
    return np.sort(np.asarray(load(out / "test", ["y"])[0]).ravel())


def test_shards_pair_pandas_with_xarray(tmp_path: Path) -> None:
    wrong, out, parts = [], tmp_path / "out", Y.gt(0).map({True: "train", False: "test"})
    for container, (make_x, make) in MIXED.items():
        x, y = make_x(X), make(Y)
        wrong += cells(f"y: {container}", lambda now, x=x: off(x, now, out), make, Y)
        wrong += cells(f"weights: {container}", lambda now, x=x, y=y: off(x, y, out, sample_weight=now), make, W)
        wrong += cells(f"split_data: {container}", lambda now, x=x, y=y: held_out(x, y, out, now), make, parts)
    for container, (make_first, make) in MEMBERS.items():
        x, y = {"a": make_first(X.a), "b": make(X.b)}, make_first(Y)
        wrong += cells(f"member of X: {container}", lambda now, x=x, y=y: off({**x, "b": now}, y, out), make, X.b)
        wrong += cells(f"member of y: {container}", lambda now, x=x, y=y: off(x, {"y": y, "z": now}, out), make, Y)
    assert not wrong, "\n".join(wrong)


def test_labels_that_are_not_computed_are_not_paired_with_coordinates(tmp_path: Path) -> None:
    x, y = array(X).chunk(row=20), array(Y).chunk(row=20)
    for given in ((x, lazy(Y)), (lazy(X), y)):
        with pytest.raises(DataError, match=r"cannot be paired .* along 'row', .*drop_vars\('row'\)"):
            shard(*given, tmp_path / "out")
        with pytest.raises(DataError, match="cannot be paired"):
            fitted(*given)


def test_a_model_pairs_the_rows_of_its_inputs() -> None:
    read = [layers.RecordInput(name, shape=[1], target_shape=[1], has_label=name == "a") for name in "ab"]
    out = layers.InnerProduct(num_output=1)(layers.Concate("both", concate_dim=1)(*read))
    model, wrong = Model([layers.EuclideanLoss()(out, read[0])], seed=1), list[str]()

    def scores(x: Any) -> np.ndarray:
        found = model.predict(x)
        return np.asarray(found.sortby("row") if hasattr(found, "dims") else found).ravel()

    for container, (make_first, make) in {**MEMBERS, "Series": (same, same), "DataArrays": (array, array)}.items():
        x = {"a": make_first(X.a), "b": make(X.b)}
        loss = {
            "member of x": lambda now, x=x: np.array(model.evaluate({**x, "b": now}, {"a": Y})["loss"]),
            "y": lambda now, x=x: np.array(model.evaluate(x, {"a": now})["loss"]),
        }
        wrong += cells(f"predict: {container}", lambda now, x=x: scores({**x, "b": now}), make, X.b)
        wrong += cells(f"evaluate, x: {container}", loss["member of x"], make, X.b)
        wrong += cells(f"evaluate, y: {container}", loss["y"], make, Y)
    assert not wrong, "\n".join(wrong)
