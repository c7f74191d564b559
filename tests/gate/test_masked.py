"""What a Dask array masks is missing everywhere, as what an array of NumPy masks: a table of ways in, and of arrays
that tell of their masks or do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from singa_dask import Classifier, Job, Model, Regressor, layers, train, updaters
from singa_dask.errors import DataError
from singa_dask.monitor.progress import Display

N = 30
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, 3))
Y = X.sum(axis=1)
CLASSES = (Y > 0).astype(int)
HIDDEN = np.arange(N) % 3 == 0
FILL = -9999


def masked(values: np.ndarray) -> Any:
    """The values with another number under the mask."""
    hidden = np.broadcast_to(HIDDEN.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    return np.ma.array(np.where(hidden, values.dtype.type(FILL), values), mask=hidden)


def from_files(given: Any) -> Any:
    parts = [given[start : start + 10] for start in range(0, N, 10)]
    made = [da.from_delayed(dask.delayed(part, traverse=False), part.shape, part.dtype) for part in parts]
    return da.concatenate(made)


# Of chunks that do not tell of their masks in the last one.
CONTAINERS: Mapping[str, Callable[[Any], Any]] = {
    "NumPy": lambda x: x,
    "from_array": lambda x: da.from_array(x, chunks=(10, *x.shape[1:])),
    "masked_equal": lambda x: da.ma.masked_equal(da.from_array(x.data, chunks=10), FILL),
    "from_delayed": from_files,
}
NET = {"epochs": 1, "random_state": 0}


def classifier(**more: Any) -> Classifier:
    return Classifier([layers.InnerProduct(num_output=2)], **NET, **more)


def regressor(**more: Any) -> Regressor:
    return Regressor([layers.InnerProduct(num_output=1)], **NET, **more)


@pytest.fixture(scope="module")
def nets() -> tuple[Any, Any]:
    return classifier().fit(X, CLASSES), regressor().fit(X, Y)


def by_train(x: Any, y: Any) -> Any:
    net = [layers.RecordInput(batchsize=N), layers.InnerProduct(num_output=2), layers.SoftmaxLoss()]
    job = Job(name="t", layers=net, updater=updaters.SGD(lr=0.1), train_steps=1)
    return train(job, data=(x, y), processes=False, display=Display(), curves=False)


def beside(given: Any, values: Any) -> Any:
    """Further arrays in the container of what is given."""
    return values if isinstance(given, np.ndarray) else da.from_array(values, chunks=(10, *values.shape[1:]))


# Each is given labels or features with masked samples, and refuses them.
REFUSE: Mapping[str, Callable[[Any, Any], Any]] = {
    "labels, fit": lambda y, nets: classifier().fit(beside(y, X), y),
    "labels, validation": lambda y, nets: classifier(validation=(beside(y, X), y)).fit(X, CLASSES),
    "labels, partial_fit": lambda y, nets: classifier().fit(X, CLASSES).partial_fit(beside(y, X), y),
    "labels, score": lambda y, nets: nets[0].score(beside(y, X), y),
    "labels, evaluate": lambda y, nets: nets[0].model_.evaluate(beside(y, X), y),
    "labels, train": lambda y, nets: by_train(beside(y, X), y),
    "targets, fit": lambda y, nets: regressor().fit(beside(y, X), y),
    "targets, score": lambda y, nets: nets[1].score(beside(y, X), y),
    "targets, evaluate": lambda y, nets: nets[1].model_.evaluate(X, y),
    "weights, fit": lambda w, nets: regressor().fit(beside(w, X), beside(w, Y), w),
    "features, fit": lambda x, nets: regressor().fit(x, beside(x, Y)),
    "features, predict": lambda x, nets: np.asarray(nets[1].predict(x)),
    "features, evaluate": lambda x, nets: nets[1].model_.evaluate(x, Y),
    "features, Model.predict": lambda x, nets: np.asarray(nets[1].model_.predict(x)),
}
GIVEN = {"labels": CLASSES, "targets": Y, "weights": np.ones(N), "features": X}
TOLD = "missing|NaN|masks values in a chunk"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("way", REFUSE)
def test_masked_samples_are_refused(way: str, container: str, nets: Any) -> None:
    given = CONTAINERS[container](masked(GIVEN[way.partition(",")[0]]))
    with pytest.raises((ValueError, DataError), match=TOLD):
        REFUSE[way](given, nets)


@pytest.mark.parametrize("container", CONTAINERS)
def test_masked_features_are_filled(container: str) -> None:
    given, values = CONTAINERS[container](masked(X)), masked(X).astype(float).filled(np.nan)
    found = regressor(missing="mean").fit(given, beside(given, Y)).predict(values)
    np.testing.assert_array_equal(
        found, regressor(missing="mean").fit(beside(given, values), beside(given, Y)).predict(values)
    )


@pytest.mark.parametrize("container", CONTAINERS)
def test_labels_that_are_all_there_keep_their_type(container: str) -> None:
    given = np.ma.array(CLASSES, mask=np.zeros(N, bool))
    if container == "masked_equal":
        made = da.ma.masked_equal(da.from_array(CLASSES, chunks=10), FILL)
    else:
        made = CONTAINERS[container](given)
    assert classifier().fit(beside(made, X), made).classes_.dtype == CLASSES.dtype


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("mapping", [False, True])
def test_masked_positions_of_a_field_are_not_predicted_from(mapping: bool, container: str) -> None:
    read = layers.RecordInput("x", shape=[1, 4, 4], has_label=False)
    model = Model([read, layers.Convolution(num_filters=1, kernel=3, pad=1)], seed=0)
    hidden = np.zeros((N, 12), bool)
    hidden[13:15, 4:6] = True
    field = np.ma.array(np.where(hidden, FILL, DRAW.normal(size=hidden.shape)), mask=hidden)
    given = CONTAINERS[container](field)
    found = np.asarray(model.predict_field({"x": given} if mapping else given, stride=1))
    expected = model.predict_field(field.filled(np.nan), stride=1)
    assert 0 < np.isnan(expected).sum() < expected.size
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
