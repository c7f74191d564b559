"""A job reads shards, and its model raw arrays: both see the same numbers, and predict in the units of the data."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.shards import write_shards

from singa_dask import layers, updaters
from singa_dask.algorithms import BP
from singa_dask.algorithms.evaluation import Evaluator
from singa_dask.errors import ConfigError
from singa_dask.inference.described import KnownData
from singa_dask.inference.feeding import feed_of, normalised
from singa_dask.inference.model import Model
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import InputLayer
from singa_dask.net import Net, in_units
from singa_dask.ops import get_ops
from singa_dask.training.feed import Feed
from singa_dask.training.prepare import prepare

ROWS = 12
DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(0, 255, (ROWS, 3, 4, 5)).astype(np.uint8)
NUMBERS = DRAW.normal(size=ROWS) * 50 + 1000
FIELDS = DRAW.normal(size=(ROWS, 2, 4, 5)) * np.array([1, 50]).reshape(2, 1, 1) + 7

CASES = {
    "channels first, one number": (IMAGES, NUMBERS, "first", {}),
    "channels last, one number": (np.ascontiguousarray(np.moveaxis(IMAGES, 1, -1)), NUMBERS, "last", {}),
    "flat in the job": (IMAGES, NUMBERS, "first", {"shape": [60]}),
    "flat, numbers per channel": (IMAGES, NUMBERS, "first", {"shape": [60], "mean": [1, 2, 3], "normalise": False}),
    "vectors": (DRAW.normal(size=(ROWS, 5)) + 30, NUMBERS, None, {}),
    "volumes": (DRAW.normal(size=(ROWS, 2, 3, 4, 5)), NUMBERS, "first", {}),
    "fields as targets": (IMAGES, FIELDS, "first", {}),
    "half precision": (DRAW.normal(size=(ROWS, 5)).astype(np.float16), NUMBERS, None, {}),
}


def prepared(folder, x, y, channels, store, **loss):
    write_shards(folder / "shards", x, y, channels=channels)
    store = {"normalise": True, "normalise_target": True, **store}
    size = int(np.prod(y.shape[1:]))
    net = [
        layers.RecordInput("data", path=str(folder / "shards"), batchsize=ROWS, shuffle=False, **store),
        layers.InnerProduct("out", num_output=size, param=[{"init": {"type": "kUniform", "low": -1, "high": 1}}]),
        layers.EuclideanLoss("loss"),
    ]
    job = Job(name="units", train_steps=1, test_steps=1, test_freq=1, layers=net, updater=updaters.SGD(lr=0.1))
    return prepare(job).job


@pytest.mark.parametrize("case", CASES)
def test_raw_arrays_become_what_the_loader_gives(case, tmp_path):
    x, y, channels, store = CASES[case]
    job = prepared(tmp_path, x, y, channels, store)
    model = Model(job.neuralnet)
    train = Net(job.neuralnet, Phase.kTrain, get_ops("cpu"))
    with ThreadPoolExecutor(1) as pool, Feed.open(job, train, pool.submit, stop=1) as feed:
        loaded, step = feed.next(0)
        raw = x.reshape(ROWS, -1) if store else x
        known = KnownData(model.net, model.described)
        fed = normalised(known, feed_of(known, raw, y)[0])
        layer = train.layers["data"]
        assert isinstance(layer, InputLayer)
        ours = layer.labels(train.ops, loaded["data"].labels)
        np.testing.assert_allclose(fed["data"].features, loaded["data"].features, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(fed["data"].labels, ours, rtol=1e-4, atol=1e-4)
        assert abs(ours.mean()) < 1e-3
        assert abs(ours.std() - 1) < 1e-3
        model.net.initialise(1)
        train.flat.values[...] = model.net.flat.values
        test = Net(job.neuralnet, Phase.kTest, train.ops, share=train)
        predicted = Evaluator(test, BP()).predict(loaded, step)["loss"]
    store = job.neuralnet.layer[0].store_conf
    scores = test.output("loss").reshape(*ours.shape)
    np.testing.assert_allclose(
        predicted.reshape(ours.shape), scores * np.array(store.target_std) + store.target_mean, rtol=1e-4
    )
    np.testing.assert_allclose(model.predict(raw), predicted, rtol=1e-3)
    answers = in_units(train, "loss", fed["data"].labels)
    order = y if y.ndim == 1 else np.moveaxis(y, 1, -1)
    np.testing.assert_allclose(answers.reshape(order.shape), order, rtol=1e-4)


def test_layers_that_only_training_has_give_the_units(tmp_path):
    job = prepared(tmp_path, *CASES["vectors"])
    (loss,) = (layer for layer in job.neuralnet.layer if layer.name == "loss")
    loss.exclude.append(Phase.kTest)
    x, y = CASES["vectors"][:2]
    model = Model(job.neuralnet)
    assert model.outputs == ("out",)
    assert abs(model.predict(x).mean() - y.mean()) < 10 * y.std()


def test_samples_without_targets_are_predicted_in_units(tmp_path):
    x, y = CASES["vectors"][:2]
    write_shards(tmp_path / "train", x, y)
    write_shards(tmp_path / "new", x)
    common = {"batchsize": ROWS, "normalise": True, "normalise_target": True}
    net = [
        layers.RecordInput("data", path=str(tmp_path / "train"), exclude=["kTest"], **common),
        layers.RecordInput("data", path=str(tmp_path / "new"), include=["kTest"], has_label=False, **common),
        layers.InnerProduct("out", num_output=1, param=[{"init": {"type": "kUniform", "low": -1, "high": 1}}]),
        layers.EuclideanLoss("loss"),
    ]
    job = Job(name="units", train_steps=1, layers=net, updater=updaters.SGD(lr=0.1))
    ready = prepare(job, phases=[Phase.kTest]).job
    train, test = (layer.store_conf for layer in ready.neuralnet.layer[:2])
    assert list(test.target_shape) == [1]
    assert (list(test.target_mean), list(test.target_std)) == (list(train.target_mean), list(train.target_std))
    assert abs(Model(ready.neuralnet).predict(x).mean() - y.mean()) < 10 * y.std()


@pytest.mark.parametrize(
    ("y", "says"),
    [(NUMBERS, r"has targets of shape \[1\].*\[2\]"), (np.arange(ROWS) % 3, "labels that are classes.*--target NAME")],
)
def test_a_target_shape_that_the_shards_do_not_have_is_refused(y, says, tmp_path):
    with pytest.raises(ConfigError, match=f"target_shape.*{says}"):
        prepared(tmp_path, CASES["vectors"][0], y, None, {"target_shape": [2]})
