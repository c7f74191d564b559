"""Program: our loader over the training data of an example, in one of WAYS. A step is STEP mini-batches.

Every turn opens a loader, which loads exactly the turn's mini-batches, and closes it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tools.contest import serve_turns
from tools.jobs import training_data

from singa_dask.cluster import local_cluster
from singa_dask.data import Loader, Manifest, dask_submit, make_stream
from singa_dask.job.job_pb2 import StoreProto

STEP = 20

Read = Callable[[bytes, int, int], float]  # (store, first mini-batch, the one after the last) -> seconds


def read(store: bytes, submit: Callable[..., Any], start: int, stop: int) -> float:
    """Seconds for these mini-batches."""
    conf = StoreProto.FromString(store)
    stream = make_stream(conf, Manifest.load(Path(conf.path)), seed=0)
    began = time.perf_counter()
    with Loader(stream, conf, submit, start_step=start, stop_step=stop) as loader:
        for _ in range(start, stop):
            loader.next()
    return time.perf_counter() - began


def read_in_task(store: bytes, start: int, stop: int) -> float:
    """The same in a task of Dask, as a worker's training is one."""
    from distributed import get_client, get_worker, secede

    secede()
    return read(store, dask_submit(get_client(), get_worker()), start, stop)


def tasks(stack: ExitStack) -> Read:
    """As in training: Dask tasks in the worker's own process load ahead."""
    client = stack.enter_context(local_cluster(1))
    return lambda *turn: client.submit(read_in_task, *turn, pure=False).result()


def plain(stack: ExitStack) -> Read:
    """Without Dask and in one thread: what a task would load is loaded there and then."""

    def submit(function: Callable[..., Any], *arguments: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*arguments))
        return future

    return lambda store, start, stop: read(store, submit, start, stop)


WAYS = {f.__name__: f for f in (tasks, plain)}


def main(example: str, way: str) -> None:
    store = training_data(example)
    text = store.SerializeToString()
    with ExitStack() as stack:
        read_from = WAYS[way](stack)
        epoch = make_stream(store, Manifest.load(Path(store.path)), seed=0).steps_per_epoch
        read_from(text, 0, epoch)  # compares hashes
        position = epoch

        def turn(steps: int) -> float:
            nonlocal position
            position += STEP * steps
            return read_from(text, position - STEP * steps, position)

        serve_turns(turn)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
