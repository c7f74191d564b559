"""Sharding on Dask workers that are processes: with less memory than the data, and when one of them dies."""

import os
import signal

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from support.blocks import stored

from singa_dask import shard
from singa_dask.data.ingest import run
from singa_dask.errors import ClusterError

LIMIT = 450 << 20


@pytest.fixture
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=LIMIT, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def numbers(block, block_info=None):
    """Samples that hold their own number."""
    start = block_info[None]["array-location"][0][0] if block_info else 0
    return block + np.arange(start, start + len(block), dtype=np.float32)[:, None]


def killed_once(block, flag=None):
    try:
        os.open(flag, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return block
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_without_memory_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "STATUS_SECONDS", 1.0)
    X = da.ones((60, 5), chunks=(30, 5))
    with (
        dask.config.set({"distributed.worker.memory.pause": 0.01}),
        LocalCluster(n_workers=1, threads_per_worker=1, memory_limit=LIMIT, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
        pytest.raises(ClusterError, match=r"all Dask workers have paused, .* of 450 MiB\); 0 of 2 tasks are done"),
    ):
        shard(X, None, tmp_path / "out", client=client)
    assert not (tmp_path / "out").exists()


def test_a_worker_that_dies_is_replaced(tmp_path, client):
    x = np.random.default_rng(0).random((400, 5))
    X = da.from_array(x, chunks=(50, 5))
    expected = shard(X, x[:, 0], tmp_path / "here", durable=False)
    X = X.map_blocks(killed_once, flag=str(tmp_path / "killed"), meta=x[:0])
    got = shard(X, x[:, 0], tmp_path / "there", client=client, durable=False)
    assert (tmp_path / "killed").exists()
    assert got[""].digest == expected[""].digest
    assert sorted(os.listdir(tmp_path)) == ["here", "killed", "there"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_samples_of_four_times_the_memory_of_a_worker(tmp_path, client):
    rows, width = 4 * LIMIT // 4096, 1024
    X = da.zeros((rows, width), chunks=(4096, width), dtype=np.float32).map_blocks(numbers, dtype=np.float32)
    processes = client.run(os.getpid)
    (manifest,) = shard(X, X[:, 0], tmp_path / "out", client=client, durable=False, nshards=32).values()
    assert client.run(os.getpid) == processes, "a worker died for lack of memory"
    assert manifest.total == rows
    got = stored(manifest)
    np.testing.assert_array_equal(np.sort(got["y"]), np.arange(rows))
    np.testing.assert_array_equal(got["x"][:, -1], got["y"])
