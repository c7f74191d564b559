"""Weights of a validation set count in what is watched: a table of ways in, containers, and weights of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from singa_dask import Classifier, Job, Regressor, layers, load, shard, train, updaters
from singa_dask.errors import ConfigError, DataError
from singa_dask.monitor.progress import Display

N, SIZE = 60, 3
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, SIZE))
NUMBERS = X.sum(axis=1)
CLASSES = (NUMBERS > 0).astype(int)
TRAIN, VALID = slice(40), slice(40, N)
WEIGHT = (np.arange(20) % 2) * 3.0
KEPT = slice(41, N, 2)
WRONG = {"numbers": np.where(WEIGHT > 0, NUMBERS[VALID], 1e4), "classes": np.where(WEIGHT > 0, CLASSES[VALID], 1)}
RIGHT = {"numbers": NUMBERS, "classes": CLASSES}
CONTAINERS: Mapping[str, Callable[[Any], Any]] = {
    "NumPy": lambda x: x,
    "pandas": lambda x: pd.DataFrame(x, columns=list("abc")) if x.ndim > 1 else pd.Series(x, name="y"),
    "Dask array": lambda x: da.from_array(x, chunks=(7, *x.shape[1:])),
    "Dask DataFrame": lambda x: dd.from_pandas(CONTAINERS["pandas"](x), npartitions=2),
}


def fitted(kind: str, given: Any, weight: Any, validation: Any) -> Any:
    made = {"numbers": Regressor, "classes": Classifier}[kind]
    net = [layers.InnerProduct(num_output={"numbers": 1, "classes": 2}[kind])]
    more = {"epochs": 3, "learning_rate": 0.05, "random_state": 0}
    found = made(net, validation=validation, **more).fit(given(X[TRAIN]), given(RIGHT[kind][TRAIN]), weight)
    return found.history_[found.history_.phase == "validate"]


def by_train(data: Any, validation: Any) -> Any:
    read = layers.RecordInput("x", batchsize=20)
    job = Job(
        name="w",
        layers=[read, layers.InnerProduct(num_output=1), layers.MSELoss()],
        updater=updaters.SGD(lr=0.01),
        train_steps=4,
        seed=1,
    )
    done = train(job, data=data, validation=validation, processes=False, display=Display(), curves=False)
    return done.history[done.history.phase == "validate"].loss


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("weight", [None, np.ones(40)], ids=["unweighted", "weighted"])
@pytest.mark.parametrize(
    ("kind", "container"),
    [("numbers", "pandas"), ("classes", "NumPy"), ("classes", "Dask array"), ("numbers", "Dask DataFrame")],
)
def test_samples_of_weight_0_do_not_count(kind: str, container: str, weight: Any) -> None:
    given = CONTAINERS[container]
    own = None if weight is None else given(weight)
    seen = fitted(kind, given, own, (given(X[VALID]), given(WRONG[kind]), given(WEIGHT)))
    wanted = fitted(kind, given, own, (given(X[KEPT]), given(RIGHT[kind][KEPT])))
    for metric in {"loss", "accuracy"} & {*seen.columns}:
        np.testing.assert_allclose(seen[metric], wanted[metric], rtol=1e-5)


@pytest.mark.parametrize("container", CONTAINERS)
def test_train_counts_them_too(container: str) -> None:
    given = CONTAINERS[container]
    data = given(X[TRAIN]), given(NUMBERS[TRAIN])
    held = given(X[VALID]), given(WRONG["numbers"]), given(WEIGHT)
    wanted = by_train(data, (given(X[KEPT]), given(NUMBERS[KEPT]))) * WEIGHT.mean()
    np.testing.assert_allclose(by_train(data, held), wanted, rtol=1e-5)
    np.testing.assert_allclose(by_train((*data, given(np.ones(40))), held), wanted, rtol=1e-5)


def test_shards_without_them_are_refused_beside_those_with_them(tmp_path: Path) -> None:
    shard(X[TRAIN], NUMBERS[TRAIN], tmp_path / "none")
    shard(X[VALID], WRONG["numbers"], tmp_path / "some", sample_weight=WEIGHT)
    given = X[TRAIN], NUMBERS[TRAIN]
    np.testing.assert_allclose(
        by_train(given, tmp_path / "some"), by_train(given, (X[VALID], WRONG["numbers"], WEIGHT)), rtol=1e-5
    )
    for data, validation, told in (
        (tmp_path / "none", tmp_path / "some", "has the weight 'weight', and data none"),
        (tmp_path / "none", (X[VALID], WRONG["numbers"], WEIGHT), "has the weight 'weight', and data none"),
        (tmp_path / "some", tmp_path / "none", "has none, and data the weight 'weight'"),
    ):
        with pytest.raises(ConfigError, match=told):
            by_train(data, validation)


def test_a_score_refuses_the_weights_that_fit_refuses() -> None:
    found = Classifier([layers.InnerProduct(num_output=2)], epochs=1, random_state=0).fit(X, CLASSES)
    negative = np.where(np.arange(N) == 3, -1.0, 1)
    lazily = da.from_array(X, chunks=(20, SIZE)), da.from_array(CLASSES, chunks=20)
    for weight, told in ((negative, "(?i)negative"), (np.zeros(N), "at least one non-zero")):
        for x, y, w in ((X, CLASSES, weight), (*lazily, da.from_array(weight, chunks=20))):
            for call in (found.score, found.fit):
                with pytest.raises(ValueError, match=told):
                    call(x, y, w)


@pytest.mark.parametrize("lazy", [False, True])
def test_arrays_validate_a_net_of_a_table_by_their_places(lazy: bool) -> None:
    given = CONTAINERS["Dask array"] if lazy else CONTAINERS["NumPy"]
    more = {"epochs": 1, "random_state": 0}
    net, table = [layers.InnerProduct(num_output=1)], CONTAINERS["pandas"]
    held = given(X[VALID]), given(NUMBERS[VALID])
    found = Regressor(net, validation=held, **more).fit(table(X[TRAIN]), NUMBERS[TRAIN]).history_
    frames = table(X[VALID]), NUMBERS[VALID]
    wanted = Regressor(net, validation=frames, **more).fit(table(X[TRAIN]), NUMBERS[TRAIN]).history_
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-6)
    with pytest.raises(ValueError, match=r"fitted to a, b, c|expecting 3 features"):
        Regressor(net, validation=(held[0][:, :2], held[1]), **more).fit(table(X[TRAIN]), NUMBERS[TRAIN])


# What a mask holds, and what is said; "" for nothing.
MASKS = {
    "0 and 1": (np.arange(N) % 2, ""),
    "booleans": (np.arange(N) % 2 > 0, ""),
    "255": ((np.arange(N) % 2 * 255).astype("u1"), "must be 1 where a target counts and 0 elsewhere, but holds 255"),
    "a half": (np.arange(N) % 2 / 2, "but holds 0.5"),
    "negative": (-(np.arange(N) % 2), "but holds -1"),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("container", CONTAINERS)
def test_masks_hold_0_and_1(container: str, mask: str, tmp_path: Path) -> None:
    given, (values, told) = CONTAINERS[container], MASKS[mask]
    if not told:
        shard(given(X), given(NUMBERS), tmp_path / "s", mask=given(values), shuffle=False)
        np.testing.assert_array_equal(load(tmp_path / "s", ["mask"])[0].ravel(), values)
        return
    with pytest.raises(DataError, match=told):
        shard(given(X), given(NUMBERS), tmp_path / "s", mask=given(values))


def test_a_run_that_was_given_data_says_so_when_it_goes_on(tmp_path: Path) -> None:
    net = [layers.RecordInput("x", batchsize=20), layers.InnerProduct(num_output=1), layers.MSELoss()]
    job = Job(name="r", layers=net, updater=updaters.SGD(lr=0.01), train_steps=2, seed=1)
    how = {"processes": False, "display": Display(), "curves": False, "workspace": tmp_path / "run"}
    train(job, data=(X, NUMBERS), **how)
    with pytest.raises(ConfigError, match=r"the earlier run was given data.*Give the same data again"):
        train(job, resume=True, **how)
