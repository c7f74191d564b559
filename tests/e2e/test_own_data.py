"""Data of one's own, from an HDF5 file and from Dask collections to predictions, on two `dask worker` processes."""

from __future__ import annotations

import json
import os

import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import psutil
import pytest
from distributed import Client, LocalCluster

from singa_dask import ClusterTopology, Job, layers, load_model, shard, train, updaters
from singa_dask.monitor.progress import Display

ROWS = 1200


@pytest.fixture(scope="module")
def fields(tmp_path_factory):
    """An HDF5 file of fields, channels first, compressed, in groups, with a number that depends on them."""
    draw = np.random.default_rng(0)
    x = draw.normal(5, 2, (ROWS, 2, 6, 6)).astype(np.float32)
    y = (1000 + 40 * x[:, 0].mean((1, 2)) - 25 * x[:, 1, 0, 0]).astype(np.float32)
    path = tmp_path_factory.mktemp("fields") / "sim.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("run/fields", data=x, chunks=(100, 2, 6, 6), compression="gzip")
        file["run/energy"] = y
    return path


@pytest.mark.long
@pytest.mark.timeout(240)
def test_from_an_hdf5_file_to_predictions_on_a_cluster(scheduler, fields, singa_dask, tmp_path):
    on = ["--scheduler-file", str(scheduler)]
    told = singa_dask("shard", "hdf5", "--source", str(fields), "--out", "shards", *on)
    assert told.code == 1 and "run/fields  float32 (1200, 2, 6, 6)  gzip" in told.err
    chosen = ["--x", "run/fields", "--y", "run/energy"]
    told = singa_dask("shard", "hdf5", "--source", str(fields), *chosen, "--out", "shards", *on)
    assert told.code == 0, told.err
    assert "float32 (2, 6, 6), channels first" in told.out and "y  target" in told.out
    assert singa_dask("new", "shards", "--out", "job.conf").code == 0
    cluster = tmp_path / "two.conf"
    cluster.write_text("cluster { nworkers_per_group: 2 nservers_per_group: 2 }")
    few = ["--set", "train_steps=160", "--set", "validate_freq=80", "--set", "updater.learning_rate.base_lr=0.003"]
    told = singa_dask("train", "job.conf", "--cluster", str(cluster), "--workspace", "run", *few, *on)
    assert told.code == 0, told.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["validate"]["r2"] > 0.6 and summary["validate"]["mae"] < 40  # in the units of the file
    assert (tmp_path / "run" / "parity-validate.png").stat().st_size > 5_000
    told = singa_dask("predict", "run", "--data", str(fields), *chosen, "--out", "predictions.csv", *on)
    assert told.code == 0, told.err
    predicted = pd.read_csv(tmp_path / "predictions.csv")
    with h5py.File(fields) as file:
        np.testing.assert_allclose(predicted["true_y"], file["run/energy"][()], rtol=1e-4)
    assert np.corrcoef(predicted["true_y"], predicted["y"])[0, 1] > 0.75


@pytest.mark.long
@pytest.mark.timeout(240)
def test_from_dask_collections_to_lazy_predictions(scheduler, environment, monkeypatch, tmp_path):
    monkeypatch.setenv("SINGA_DASK_CACHE", environment["SINGA_DASK_CACHE"])
    draw = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"a": draw.normal(size=ROWS), "b": draw.normal(3, 2, ROWS), "kind": draw.choice(["u", "v"], ROWS)}
    )
    frame["label"] = np.where(frame.a * 2 + (frame.kind == "u") > 0.5, "yes", "no")
    with Client(scheduler_file=str(scheduler)) as client:
        table = dd.from_pandas(frame, npartitions=4)
        net = [
            layers.RecordInput(batchsize=32, normalise=True),
            layers.InnerProduct(num_output=16),
            layers.ReLU(),
            layers.InnerProduct(num_output=2),
            layers.SoftmaxLoss(),
        ]
        job = Job(
            name="table",
            layers=net,
            updater=updaters.Adam(lr=0.01),
            train_steps=150,
            metric=["f1"],
            cluster=ClusterTopology.allreduce(2),
        )
        x, y = table[["a", "b", "kind"]], table["label"]
        result = train(job, client, data=(x, y), validation=0.2, workspace=tmp_path / "run", display=Display())
        assert result.summary["validate"]["f1"] > 0.9
        model = load_model(result.checkpoint)
        assert model.classes == ("no", "yes")
        lazy = model.predict(x)
        assert isinstance(lazy, dd.DataFrame) and list(lazy.columns) == ["no", "yes"]
        found = lazy.compute()
        assert (found.index == frame.index).all()
        assert (np.where(found["yes"] > 0.5, "yes", "no") == frame["label"]).mean() > 0.9

        fields = da.from_array(draw.normal(size=(400, 3, 4, 4)).astype(np.float32), chunks=(50, 3, 4, 4))
        (manifest,) = shard(fields, fields.mean(axis=(1, 2, 3)), tmp_path / "fields", client=client).values()
        assert manifest.total == 400 and manifest.features.channels == "first"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_data_of_four_times_the_memory_of_a_worker(tmp_path):
    """Written as shards, trained on and predicted by two workers of 640 MiB; none is lost."""
    limit = 640 << 20
    rows = 4 * limit // (3 * 32 * 32 * 4)
    local = LocalCluster(2, threads_per_worker=1, memory_limit=limit, dashboard_address=None)
    with local as cluster, Client(cluster) as client:
        x = da.random.default_rng(0).normal(size=(rows, 3, 32, 32), chunks=(1500, 3, 32, 32)).astype("f4")
        y = x.mean(axis=(1, 2, 3)) * 50
        before = psutil.Process().memory_info().rss
        processes = client.run(os.getpid)
        shard(x, y, tmp_path / "shards", client=client, channels="first", progress=False)
        assert client.run(os.getpid) == processes
        net = [
            layers.RecordInput(path=str(tmp_path / "shards"), batchsize=128, normalise=True, normalise_target=True),
            layers.InnerProduct(num_output=16),
            layers.ReLU(),
            layers.InnerProduct(num_output=1),
            layers.EuclideanLoss(),
        ]
        job = Job(
            name="large",
            layers=net,
            updater=updaters.Adam(lr=0.001),
            train_steps=rows // 128,
            cluster=ClusterTopology.allreduce(2),
        )
        result = train(job, client, workspace=tmp_path / "run", display=Display())
        assert result.summary["restarts"] == 0
        predicted = load_model(result.checkpoint).predict(x)
        processes = client.run(os.getpid)
        error = float(abs(predicted[:, 0] - y).mean().compute())
        assert error < 0.3  # the targets vary by 0.9
        assert client.run(os.getpid) == processes
        assert psutil.Process().memory_info().rss - before < 300 << 20
