"""Loading as Dask tasks, beside a training task on the same worker process."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

import numpy as np
import pytest
from distributed import Client, LocalCluster, get_client, get_worker, secede
from support.shards import write_shards

from singa_dask.data import Loader, Manifest, Stream, StreamConf, dask_submit, stream_of
from singa_dask.errors import DataError
from singa_dask.job.job_pb2 import StoreProto


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (512, 8, 8, 3), dtype=np.uint8)
    return str(write_shards(tmp_path / "shards", images, np.arange(512) % 10, 2, classes=10, window=16).folder)


class Unserialisable:
    """A result that cannot leave its process."""

    def __init__(self) -> None:
        self.address = id(self)

    def __reduce__(self):
        raise TypeError("was serialised")


def whereabouts() -> tuple[str, str, Unserialisable]:
    return get_worker().address, threading.current_thread().name, Unserialisable()


def train(folder: str, conf: StreamConf, rank: int, nranks: int) -> dict:
    """What a worker's training task does, with sums instead of a net."""
    secede()
    worker = get_worker()
    submit = dask_submit(get_client(), worker)
    address, thread, result = submit(whereabouts).result(30)
    stream = stream_of(Manifest.load(folder), conf)
    store = StoreProto(std_value=255, sequence=conf.sequence, lookahead=conf.lookahead)
    with Loader(stream, store, submit, rank, nranks) as loader:
        batches = [loader.next() for _ in range(40)]
        labels = np.concatenate([batch.labels for batch in batches])
        total = sum(float(batch.features.sum(dtype=np.float64)) for batch in batches)
    return {
        "pinned": address == worker.address,
        "thread": thread,
        "not copied": result.address == id(result),
        "labels": labels.tolist(),
        "total": total,
    }


@pytest.mark.parametrize(
    "conf",
    [StreamConf(32, seed=3), StreamConf(8, shuffle=False, sequence=6, lookahead=1)],
    ids=["samples", "sequences"],
)
def test_workers_train_on_what_tasks_on_their_own_process_load(client, folder, conf):
    addresses = list(client.scheduler_info()["workers"])
    futures = [
        client.submit(train, folder, conf, rank, 2, workers=[address], pure=False)
        for rank, address in enumerate(addresses)
    ]
    results = client.gather(futures)
    stream = stream_of(Manifest.load(folder), conf)
    for rank, result in enumerate(results):
        assert result["pinned"]
        assert result["not copied"]
        assert "Dask-Loader" in result["thread"]
        rows = np.concatenate([stream.share(step, rank, 2)[1] for step in range(40)])
        assert result["labels"] == (rows % 10).tolist()
    assert results[0]["total"] > 0


def loading_beside_training(folder: str) -> int:
    """The keys that are left behind by a task that loads until the worker's event loop has come round often."""
    secede()
    worker, client = get_worker(), get_client()
    ticks, enough = [], threading.Event()

    def tick() -> None:
        ticks.append(len(ticks))
        if len(ticks) < 50:
            worker.loop.call_later(0.01, tick)
        else:
            enough.set()

    worker.loop.add_callback(tick)
    stream = Stream(Manifest.load(folder), StreamConf(64, seed=3))
    with Loader(stream, StoreProto(), dask_submit(client, worker)) as loader:
        while not enough.is_set():
            loader.next()
    deadline = time.monotonic() + 30
    while (left := loading(worker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def loading(worker) -> int:
    """Loading tasks that the worker knows of, running or done."""
    return sum(str(key).startswith("load_steps") for key in list(worker.state.tasks))


def test_the_event_loop_goes_on_beside_loading_and_finished_blocks_are_released(client, folder):
    assert client.submit(loading_beside_training, folder, pure=False).result(60) == 0


def failing(folder: str) -> str:
    secede()
    submit = dask_submit(get_client(), get_worker())
    manifest = Manifest.load(folder)
    path = manifest.folder / manifest.shards[1].file
    path.write_bytes(path.read_bytes()[:-100])
    try:
        with Loader(Stream(manifest, StreamConf(8)), StoreProto(), submit) as loader:
            loader.next()
    except DataError as error:
        return str(error)
    return "no error"


def test_the_error_of_a_loading_task_reaches_the_training_task(client, folder):
    assert "shard-00001.h5" in client.submit(failing, folder, pure=False).result(60)


def given_up() -> bool:
    """Whether a task is not waited for that Dask has cancelled."""
    secede()
    future = dask_submit(get_client(), get_worker())(time.sleep, 3)
    get_client().cancel(future._queue._tasks)
    try:
        future.result(60)
    except CancelledError:
        return True
    return False


def test_a_task_that_dask_gave_up_is_not_waited_for(client):
    assert client.submit(given_up, pure=False).result(60)
