"""What users of other libraries asked for on a Dask cluster (docs/asked.md), with their data and their mishaps."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib import import_module

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, wait
from sklearn.datasets import load_digits, make_regression
from support.commands import wait_for
from support.leaks import leaks_forbidden

from singa_dask import Classifier, ClusterTopology, Regressor, load_model
from singa_dask.cluster import GroupFailed, form_group, local_cluster, wait_workers

pytestmark = pytest.mark.timeout(180)
TWO = ClusterTopology.allreduce(2)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster of two processes, with the settings of docs/cluster.md."""
    # On a busy machine a process is silent for longer than usual, and not lost.
    with leaks_forbidden(), local_cluster(2, worker_ttl_s=60) as client:
        client.run(import_module, "dask.dataframe")
        yield client


@pytest.fixture
def workers(client, monkeypatch, tmp_path) -> list:
    """Both workers as they are now: tests have them replaced. Runs are in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    client.cluster.scale(2)
    return wait_workers(client, 2)


def test_models_that_are_trained_further_in_tasks(client, workers):
    """https://github.com/dask/dask-ml/issues/549, 664: HyperbandSearchCV sends models from task to task, and calls
    `partial_fit` for the better half again."""
    x, y = (array[:600] for array in load_digits(return_X_y=True))
    rates = [1e-5, 1e-4, 1e-2, 2e-2]
    models = [client.submit(Classifier, learning_rate=rate, random_state=0, pure=False) for rate in rates]
    for part in (slice(0, 250), slice(250, 500)):
        given = (x[part], y[part], np.arange(10))
        models = [client.submit(Classifier.partial_fit, model, *given, pure=False) for model in models]
        scores = client.gather([client.submit(Classifier.score, model, x[500:], y[500:]) for model in models])
        models = [models[i] for i in np.argsort(scores)[len(models) // 2 :]]
    (best,) = client.gather(models)
    assert best.learning_rate in rates[2:] and best.n_iter_ == 2 and best.score(x[500:], y[500:]) > 0.5


def test_data_that_was_on_a_worker_that_restarted(client, workers):
    """https://github.com/dmlc/xgboost/issues/9420, 9419: training waits for ever for the worker that had the data."""
    x = da.random.default_rng(0).random((300, 10), chunks=(10, 10))
    x, y = client.persist([x, x.sum(axis=1)])
    wait([x, y])
    client.restart_workers([workers[0].address])
    regressor = Regressor(client=client, cluster=TWO, epochs=15, learning_rate=0.05, random_state=0).fit(x, y)
    assert regressor.score(x, y) > 0.7
    assert workers[0].pid not in {each.pid for each in wait_workers(client, 2)}


def test_early_stopping_ends_on_all_workers(client, workers):
    """https://github.com/lightgbm-org/LightGBM/issues/6351, 6197, 7009: training hangs when it should stop early."""
    x, y = (da.from_array(array, chunks=100) for array in make_regression(1000, 10, noise=20, random_state=0))
    settings = {"epochs": 1000, "learning_rate": 0.02, "validation": 0.1, "patience": 3}
    regressor = Regressor(client=client, cluster=TWO, random_state=0, **settings).fit(x, y)
    assert "has not improved" in regressor.result_.summary["ended_early"]
    assert regressor.n_iter_ < 100 and regressor.score(x, y) > 0.9


def test_partitions_without_rows_and_fewer_than_workers(client, workers):
    """https://github.com/dask/dask-ml/issues/911, https://github.com/dmlc/xgboost/issues/7639: empty partitions."""
    frame = pd.DataFrame({"x": np.arange(100) / 5, "a": np.random.default_rng(0).normal(size=100)})
    frame["label"] = frame["a"] > 0
    filtered = dd.from_pandas(frame, npartitions=4)
    filtered = filtered[filtered.x < 5]
    assert [*filtered.map_partitions(len).compute()] == [25, 0, 0, 0]
    x, y = filtered[["x", "a"]], filtered["label"]
    settings = {"epochs": 50, "learning_rate": 0.1, "random_state": 0}
    classifier = Classifier(client=client, cluster=TWO, **settings).fit(x, y)
    assert len(classifier.predict(x).compute()) == 25
    assert classifier.score(x, y) > 0.9


def test_labels_that_are_sorted_by_chunk(client, workers):
    """https://github.com/lightgbm-org/LightGBM/issues/5025, 2419: each chunk lacks most of the classes."""
    x, y = (array[:1500] for array in load_digits(return_X_y=True))
    order = np.argsort(y, kind="stable")
    by_class = [da.from_array(array[order], chunks=150) for array in (x, y)]
    score = Classifier(epochs=8, random_state=0, client=client, cluster=TWO).fit(*by_class).score(x, y)
    assert score == pytest.approx(Classifier(epochs=8, random_state=0).fit(x, y).score(x, y), abs=0.01)
    assert score > 0.95


def test_categories_of_another_order_in_each_partition(client, workers):
    """https://github.com/dmlc/xgboost/issues/8852: codes of categories are those of their partition."""
    orders, rng = (["a", "b", "c"], ["c", "a", "b"]), np.random.default_rng(0)

    def part(order):
        kind = pd.Categorical(rng.choice(order, 60), order)
        return pd.DataFrame({"kind": kind, "y": np.select([kind == "a", kind == "b"], [1.0, 5.0], 3.0)})

    parts = [part(order) for order in orders]
    frame = dd.from_delayed([*map(client.scatter, parts)], meta=parts[0].iloc[:0].astype({"kind": "category"}))
    settings = {"epochs": 60, "learning_rate": 0.05, "random_state": 0}
    regressor = Regressor(client=client, cluster=TWO, **settings).fit(frame[["kind"]], frame["y"])
    for order in (*orders, ["b", "c", "a"]):
        new = pd.DataFrame({"kind": pd.Categorical(["a", "b", "c"], order)})
        np.testing.assert_allclose(regressor.predict(new), [1, 5, 3], atol=0.1)


def test_a_model_outlives_the_workers_that_trained_it(client, workers, tmp_path):
    """https://github.com/dmlc/xgboost/issues/11804: the workers are retired when training has ended."""
    x = da.random.default_rng(0).random((300, 4), chunks=(100, 4))
    y, settings = x.sum(axis=1), {"epochs": 8, "learning_rate": 0.05, "random_state": 0}
    regressor = Regressor(client=client, cluster=TWO, workspace=tmp_path / "run", **settings).fit(x, y)
    numbers = x.compute()
    client.cluster.scale(0)
    wait_for(lambda: not client.scheduler_info()["workers"])
    here = regressor.predict(numbers)
    assert np.corrcoef(here, numbers.sum(axis=1))[0, 1] > 0.9
    lazy = load_model(tmp_path / "run").predict(x)
    client.cluster.scale(1)
    np.testing.assert_allclose(lazy.compute()[:, 0], here, rtol=1e-4)


def test_mpi_again_after_a_loss_and_then_tasks(client, workers):
    """https://github.com/dask/dask-mpi/issues/25: start MPI in running Dask workers, and again if one is lost."""

    def total(comm):
        numbers = np.array([comm.rank + 1.0])
        comm.all_reduce(numbers)
        return float(numbers[0])

    def for_ever(comm):
        while True:
            total(comm)

    with form_group(client, [worker.address for worker in workers], total) as group:
        assert group.results() == [3.0, 3.0]
    group = form_group(client, [worker.address for worker in workers], for_ever)
    os.kill(group.workers[1].pid, signal.SIGKILL)
    with pytest.raises(GroupFailed, match=r"rank 1 on tcp://.*: its worker process"):
        group.wait(60)
    group.close()
    with form_group(client, [worker.address for worker in wait_workers(client, 2)], total) as group:
        assert group.results() == [3.0, 3.0]
        assert [client.submit(sum, [1, 2], workers=[at], pure=False).result(60) for at in group.addresses] == [3, 3]
