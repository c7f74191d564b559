"""Where all axes of a sample are equal, the channels are where the shards have them, in every container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

from singa_dask import Classifier, Job, Regressor, layers, load_model, shard, train, updaters
from singa_dask.errors import ConfigError
from singa_dask.monitor.progress import Display

N, SIZE = 12, 4
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, SIZE, SIZE, SIZE)).astype("f4")  # (N, C, H, W)
Y = (X[:, 0] > 0).astype("u1")
CONTAINERS = {"array": lambda x: x, "lazy": lambda x: da.from_array(x, chunks=5), "mapping": lambda x: {"data": x}}


def model_of(x: np.ndarray, channels: str, folder: Path) -> Any:
    shard(x, Y, folder / channels, channels=channels, shuffle=False)
    read = layers.RecordInput("data", path=str(folder / channels), batchsize=N)
    net = [read, layers.Convolution(num_filters=2, kernel=1), layers.SoftmaxLoss()]
    job = Job(name="c", layers=net, updater=updaters.SGD(lr=0.1), train_steps=3, seed=1)
    run = train(job, processes=False, workspace=folder / f"{channels}-run", curves=False, display=Display())
    return load_model(run.checkpoint)


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("channels")
    last = np.moveaxis(X, 1, -1)
    return {"first": model_of(X, "first", folder), "last": model_of(last, "last", folder)}


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_layout_of_the_shards_decides(container: str, models: dict[str, Any]) -> None:
    made, last = CONTAINERS[container], np.moveaxis(X, 1, -1)
    first, other = (np.asarray(models[at].predict(made(x))) for at, x in (("first", X), ("last", last)))
    np.testing.assert_allclose(first, other, rtol=1e-5)
    assert not np.allclose(first, np.asarray(models["last"].predict(made(X))))
    if container != "lazy":
        losses = [models[at].evaluate(made(x), Y)["loss"] for at, x in (("first", X), ("last", last))]
        assert losses[0] == pytest.approx(losses[1])


@pytest.mark.parametrize("lazy", [False, True])
def test_estimators_ask_where_the_channels_are(lazy: bool) -> None:
    made = CONTAINERS["lazy" if lazy else "array"]
    labels = np.arange(N) % 2
    net = [layers.Convolution(num_filters=2, kernel=1), layers.InnerProduct(num_output=2)]
    with pytest.raises(ValueError, match=r"X does not tell which axis has the channels. Set channels"):
        Classifier(net, epochs=1).fit(made(X), labels)
    with pytest.raises(ValueError, match=r"channels must be None, 'first', 'last', 'none'. Received: 'lsat'"):
        Classifier(net, epochs=1, channels="lsat").fit(made(X), labels)
    first, last = (
        Classifier(net, epochs=1, channels=channels, random_state=0).fit(made(x), made(labels) if lazy else labels)
        for channels, x in (("first", X), ("last", np.moveaxis(X, 1, -1).copy()))
    )
    one = np.asarray(first.predict_proba(made(X)))
    np.testing.assert_allclose(one, np.asarray(last.predict_proba(made(np.moveaxis(X, 1, -1).copy()))), rtol=1e-4)


def test_answers_that_are_images_have_channels_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"channels: .*samples of 'y' do not tell.*Set channels=\{'y'"):
        shard(X, X, tmp_path / "none", channels={"x": "first"})
    made = shard(X, X, tmp_path / "both", channels="first")
    assert [column.channels for column in made[""].columns[:2]] == ["first", "first"]
    made = shard(X, X, tmp_path / "two", channels={"x": "first", "y": "last"})
    assert [column.channels for column in made[""].columns[:2]] == ["first", "last"]
    with pytest.raises(ConfigError, match=r"out: must be the folder for the shards. Received: ndarray"):
        shard(str(tmp_path), X, X)
    net = [layers.Convolution(num_filters=SIZE, kernel=1)]
    fitted = Regressor(net, epochs=1, channels="first", random_state=0).fit(X, X)
    inside = Regressor(net, epochs=1, channels="last", random_state=0)
    inside.fit(np.moveaxis(X, 1, -1).copy(), np.moveaxis(X, 1, -1).copy())
    expected = np.moveaxis(inside.predict(np.moveaxis(X, 1, -1).copy()), -1, 1)
    np.testing.assert_allclose(fitted.predict(X), expected, rtol=1e-3, atol=1e-5)
