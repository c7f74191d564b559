"""Clusters that Dask scales: no worker is there before somebody asks for it."""

import logging

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from singa_dask import Regressor
from singa_dask.cluster import wait_workers

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def adaptive(monkeypatch):
    """A client of a cluster of at most 3 workers, which has none yet."""
    monkeypatch.setenv("PYTHONHASHSEED", "6640")  # nannies write theirs into this process
    options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": logging.CRITICAL}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=0, host="127.0.0.1", memory_limit=0, **options) as cluster,
        Client(cluster) as client,
    ):
        cluster.adapt(minimum=0, maximum=3, interval="200ms")
        yield client


def test_a_wait_asks_for_workers(adaptive):
    assert len(wait_workers(adaptive, 2, timeout_s=60.0)) == 2
    assert not adaptive.futures, "nothing is asked for any more"


@pytest.mark.long
def test_a_model_is_fitted_on_workers_that_come_when_they_are_asked_for(adaptive, tmp_path):
    draw = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    fitted = Regressor(epochs=2, client=adaptive, workspace=tmp_path / "run").fit(draw, draw[:, 0])
    assert fitted.predict(draw).shape == (100,)
