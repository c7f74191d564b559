"""Runs one after the other on a cluster of the user's, as in a notebook."""

import logging
import os
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster

from singa_dask import ClusterTopology, Job, layers, train, updaters

X = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)


def job(number):
    net = [layers.RecordInput(batchsize=32), layers.InnerProduct(num_output=1), layers.EuclideanLoss()]
    rule, topology = updaters.Adam(lr=0.02), ClusterTopology.allreduce(2)
    return Job(name=f"run{number}", layers=net, updater=rule, train_steps=20, cluster=topology)


def mapped(folder):
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if folder in line]


def test_runs_leave_the_processes_without_mapped_files_and_closing_prints_nothing(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        before = client.run(os.getpid)
        for number in range(4):
            result = train(job(number), client, data=(X, X[:, 0]), workspace=tmp_path / str(number), display=None)
            assert result.summary["status"] == "completed"
            assert client.run(mapped, str(tmp_path)) == {key: [] for key in before}
        assert client.run(os.getpid) == before
    assert [record.message for record in caplog.records if record.name.startswith("distributed")] == []
