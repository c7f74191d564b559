"""Counts the hops of an HDF5 file from `shard` to a mini-batch: python benchmarks/hops.py [--list]

A hop is the first call of a function in data/, inference/ or training/ from another module of these rooms. Properties,
and functions that call nothing of these rooms, are looked up rather than gone through, and do not count. A hop into a
module that the way has been in before is a return.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import h5py
import numpy as np

import singa_dask
from singa_dask.data import Loader, make_stream, shard_files, store_info
from singa_dask.job.job_pb2 import StoreProto

PACKAGE = Path(singa_dask.__file__).parent
ROOMS = tuple(f"{PACKAGE / room}/" for room in ("data", "inference", "training"))
ROWS = 1000


def walk(folder: Path) -> None:
    """Shard a file, and load a mini-batch of its samples."""
    store = StoreProto(path=str(folder / "shards"), batchsize=[10], normalise=True)
    shard_files("hdf5", folder / "shards", source=folder / "samples.h5", progress=False)
    manifest = store_info(store).manifest
    with Loader(make_stream(store, manifest, seed=0), store, _submit) as loader:
        loader.next()


def _submit(function: Callable[..., Any], *arguments: Any) -> Future:
    future: Future = Future()
    future.set_result(function(*arguments))
    return future


@contextmanager
def recorded() -> Iterator[dict[tuple[CodeType, CodeType], None]]:
    """The calls between functions of the rooms, each once, in the order in which they are first made."""
    calls: dict[tuple[CodeType, CodeType], None] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _is_station(frame):
            return
        caller = frame.f_back
        while caller is not None and not _is_station(caller):
            caller = caller.f_back
        if caller is not None:
            calls[caller.f_code, frame.f_code] = None

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _is_station(frame: FrameType) -> bool:
    code = frame.f_code
    if not code.co_filename.startswith(ROOMS) or code.co_name.startswith("<"):
        return False
    owner = frame.f_globals.get(code.co_qualname.partition(".")[0])
    return not isinstance(vars(owner).get(code.co_name), property | cached_property) if owner else True


def hops_of(calls: dict[tuple[CodeType, CodeType], None]) -> list[tuple[CodeType, CodeType]]:
    """The first call of each function from another module."""
    calling = {caller for caller, _ in calls}
    first: dict[CodeType, CodeType] = {}
    for caller, called in calls:
        if caller.co_filename != called.co_filename and called in calling:
            first.setdefault(called, caller)
    return [(caller, called) for called, caller in first.items()]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with h5py.File(folder / "samples.h5", "w") as file:
            file["x"] = np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)
            file["y"] = np.arange(ROWS) % 3
        walk(folder)  # imports
        (folder / "shards").rename(folder / "before")
        with recorded() as calls:
            walk(folder)
    seen: dict[str, None] = {}
    returns = 0
    hops = hops_of(calls)
    for caller, called in hops:
        returns += called.co_filename in seen
        seen |= {caller.co_filename: None, called.co_filename: None}
        if "--list" in sys.argv:
            places = (f"{Path(each.co_filename).relative_to(PACKAGE)}:{each.co_qualname}" for each in (caller, called))
            print(" -> ".join(places))
    print(f"{len(hops)} hops, {len(seen)} files, {returns} returns")


if __name__ == "__main__":
    main()
