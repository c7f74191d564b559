"""Objects of Dask that are no collections of rows: every way in says what was received and what to give."""

from concurrent.futures import Future

import numpy as np
import pytest
from dask import bag, delayed

from singa_dask import Classifier, Job, Model, Regressor, layers, shard, train, updaters
from singa_dask.errors import DataError

X, Y = np.ones((4, 2)), np.arange(4.0)
NET = [layers.RecordInput("data", batchsize=2, shape=[2], target_shape=[1]), layers.InnerProduct(num_output=1)]
GIVEN = {
    "bag": (bag.from_sequence([{"a": 1}], npartitions=1), r"Received: a Bag\. Give {}\.to_dataframe\(\)\."),
    "delayed": (delayed(X), r"Received: a Delayed\. Give dask\.array\.from_delayed\({}, shape, dtype\), "),
    "attribute": (delayed(X).T, r"Received: a Delayed\. .* or {}\.compute\(\)\."),
    "delayeds": ([delayed(X)] * 2, r"Received: a list of 2 Delayed objects\. Give dask\.array\.concatenate\("),
    "future": (Future(), r"Received: a Future\. Give client\.gather\({}\)\."),
    "futures": ((Future(),) * 3, r"Received: a list of 3 Future objects\. Give numpy\.concatenate\(client\.gather"),
}
WAYS = {
    "fit X": ("X", lambda of, out: Regressor(epochs=1).fit(of, Y)),
    "fit y": ("y", lambda of, out: Classifier(epochs=1).fit(X, of)),
    "fit weights": ("sample_weight", lambda of, out: Regressor(epochs=1).fit(X, Y, of)),
    "partial_fit": ("X", lambda of, out: Regressor().partial_fit(of, Y)),
    "shard": ("X", lambda of, out: shard(of, Y, out)),
    "shard a column": (r"X\['a'\]", lambda of, out: shard({"a": of}, Y, out)),
    "shard y": ("y", lambda of, out: shard(X, of, out)),
    "train": ("X", lambda of, out: run(out, data=(of, Y))),
    "train without y": ("data", lambda of, out: run(out, data=of)),
    "train, validation": ("X", lambda of, out: run(out, data=(X, Y, Y), validation=(of, Y))),
    "predict": ("x", lambda of, out: Model(NET).predict(of)),
    "predict by name": (r"x\['data'\]", lambda of, out: Model(NET).predict({"data": of})),
    "evaluate": ("x", lambda of, out: Model([*NET, layers.MSELoss()]).evaluate(of, Y)),
    "evaluate y": ("y", lambda of, out: Model([*NET, layers.MSELoss()]).evaluate(X, of)),
}


def run(out, **given):
    net = [layers.RecordInput("data", batchsize=2), layers.InnerProduct(num_output=1), layers.MSELoss()]
    job = Job(name="j", layers=net, updater=updaters.SGD(lr=0.1), train_steps=1)
    return train(job, processes=False, workspace=out, **given)


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_at_hand_is_refused_with_a_way_out(way, kind, tmp_path):
    (given, words), (what, call) = GIVEN[kind], WAYS[way]
    if way == "train without y" and kind == "futures":
        what, words = "X", GIVEN["future"][1]  # a tuple is X, y and weights
    with pytest.raises(DataError, match=f"^{what} must be an array or a table.*{words.format(what)}"):
        call(given, tmp_path / "out")
