"""Drivers in other places: in a task of the cluster itself, and where the workers cannot reach them."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
from distributed import get_client

from singa_dask import ClusterTopology, Job, layers, train, updaters
from singa_dask.cluster import formation, local_cluster
from singa_dask.cluster.pmi_server import PmiServer
from singa_dask.errors import ClusterError
from singa_dask.monitor.progress import Display

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def points(workers: int) -> Job:
    net = [layers.RecordInput("data", batchsize=12), layers.InnerProduct(num_output=2), layers.SoftmaxLoss()]
    cluster = ClusterTopology.allreduce(workers)
    return Job(name="points", layers=net, updater=updaters.SGD(lr=0.1), train_steps=4, cluster=cluster)


def trained(workers, folder, client=None):
    """The summary of a run in `folder`; in a Dask task, on its cluster."""
    x, labels = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32), np.arange(48) % 2
    options = {"data": (x, labels), "workspace": folder, "display": Display(), "curves": False, "patience_s": 3.0}
    return train(points(workers), client or get_client(), **options).summary


def test_a_run_in_a_dask_task_trains_on_the_other_workers(no_leaks, tmp_path):
    with local_cluster(4) as client:
        summary = client.submit(trained, 3, tmp_path / "run", pure=False).result(timeout=90)
        assert (summary["status"], summary["step"]) == ("completed", 4) and (tmp_path / "run/checkpoint").is_dir()
        with pytest.raises(
            ClusterError, match=r"^only 3 of 4 .* Not counted: tcp://\S+: this driver is one of its ta"
        ):
            client.submit(trained, 4, tmp_path / "other", pure=False).result(timeout=90)


def test_a_driver_that_workers_cannot_reach_says_so_once_and_where_to_run_it(
    cluster3, workers3, tmp_path, monkeypatch
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]

    class Elsewhere(PmiServer):
        def __init__(self, *given):
            super().__init__(*given)
            self.endpoint = replace(self.endpoint, port=closed)

    monkeypatch.setattr(formation, "PmiServer", Elsewhere)
    with pytest.raises(ClusterError) as caught:
        trained(3, tmp_path / "run", cluster3)
    said = str(caught.value)
    assert f"on {socket.gethostname()} cannot reach the driver at 127.0.0.1:{closed}" in said
    assert "client.submit" in said and "\n" not in said and not hasattr(caught.value, "__notes__")
