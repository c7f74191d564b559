"""Estimators, models and Dask workers predict on GPUs by the rule of training, with the results of the CPU."""

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from dask import dataframe as dd
from support.trained import points_job, write_points

from singa_dask import Classifier, Model, Regressor, load_model
from singa_dask.cluster import local_cluster
from singa_dask.inference.evaluate import measure
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers import InnerProduct, ReLU
from singa_dask.ops.gpu.turns import own_gpu

pytestmark = pytest.mark.timeout(280)
NAMES = ["width", "height", "depth"]
SETTINGS = {"epochs": 3, "batch_size": 32, "random_state": 1}
X = np.random.default_rng(5).normal(size=(96, 3)).astype(np.float32)
TABLE = pd.DataFrame(X, columns=NAMES)


def net(outputs):
    return [InnerProduct(num_output=16), ReLU(), InnerProduct(num_output=outputs)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def classifier(cupy, run):
    return Classifier(net(2), workspace=run, **SETTINGS).fit(TABLE, X.sum(axis=1) > 0)


@pytest.fixture(scope="module")
def expected(classifier, run):
    return load_model(run, device="cpu").predict(X)


@pytest.fixture
def used(emulation):
    """Whether the GPU has computed since the last call."""
    return (lambda: True) if emulation is None else (lambda: emulation.counts()["product"] > 0)


@pytest.mark.parametrize("kind", ["frame", "Dask array", "Dask frame"])
def test_a_classifier_predicts_on_the_gpu(classifier, expected, used, kind):
    given = TABLE
    if kind != "frame":
        given = da.from_array(X, chunks=(40, 3)) if kind == "Dask array" else dd.from_pandas(TABLE, npartitions=2)
    used()
    np.testing.assert_allclose(np.asarray(classifier.predict_proba(given)), expected, atol=2e-5)
    assert used() and classifier.model_.ops.device == "gpu"


def test_a_regressor_evaluates_and_continues_on_the_gpu_and_on_the_cpu_if_it_is_told_so(cupy, used):
    y = X @ np.array([1, -2, 0.5], np.float32)
    found = {}
    for gpu in (None, [], [0]):
        used()
        fitted = Regressor(net(1), gpu=gpu, **SETTINGS).fit(X, y).partial_fit(X, y)
        assert used() == (gpu != [])
        found[str(gpu)] = fitted.predict(X), fitted.score(X, y), fitted.model_.evaluate(X, y)["loss"]
        assert used() == (gpu != [])
        assert pickle.loads(pickle.dumps(fitted)).model_.ops.device == ("cpu" if gpu == [] else "gpu")
    for each in found.values():
        for value, other in zip(each, found["[]"], strict=True):
            np.testing.assert_allclose(value, other, atol=1e-3)


def test_the_job_and_the_device_say_where_a_model_computes(classifier, run, gpus):
    assert load_model(run).ops.device == "gpu" and load_model(run, device="cpu").ops.device == "cpu"
    last = Model(classifier.model_._proto, device="gpu", device_id=gpus - 1)
    assert own_gpu() == gpus - 1  # whoever chooses has chosen for the process
    assert pickle.loads(pickle.dumps(last)).ops.device_id == gpus - 1
    assert own_gpu([0]) == 0 and pickle.loads(pickle.dumps(last)).ops.device_id == 0


def test_the_test_data_are_measured_on_the_gpu(cupy, tmp_path, used):
    write_points(tmp_path, train=90, test=90)
    found = []
    for gpu in ("gpu=[]", "gpu=[0]"):
        job = points_job(tmp_path, gpu).job
        Model(job.neuralnet, seed=3).save(tmp_path / "model.h5")
        used()
        found.append(measure(job, tmp_path / "model.h5", Phase.kTest).numbers)
        assert used() or gpu == "gpu=[]"
    assert found[0].keys() == found[1].keys()
    np.testing.assert_allclose([*found[1].values()], [*found[0].values()], rtol=2e-5)


def test_dask_workers_predict_on_a_gpu_each(classifier, expected, gpus, tmp_path):
    lazy = classifier.predict_proba(da.from_array(X, chunks=(12, 3)))
    TABLE.to_csv(tmp_path / "new.csv", index=False)
    with local_cluster(min(gpus, 2), worker_ttl_s=120) as client:
        np.testing.assert_allclose(lazy.compute(), expected, atol=2e-5)
        assert (
            predict_blocks(
                classifier.model_,
                blocks_of(classifier.model_, str(tmp_path / "new.csv")),
                tmp_path / "out.csv",
                client,
            )
            == 96
        )
        on = client.run(own_gpu)
    assert len(set(on.values())) == min(gpus, 2)
    written = pd.read_csv(tmp_path / "out.csv")
    np.testing.assert_allclose(
        written[[name for name in written if name.startswith("probability_")]], expected, atol=2e-5
    )
