"""When a nanny gets a fork server, with nannies and workers that the test plays."""

from __future__ import annotations

import asyncio
import pickle
import tempfile
from multiprocessing import util
from types import SimpleNamespace

import dask
import distributed
import pytest

from singa_dask.cluster import successors
from singa_dask.cluster.fork_server import IMPORTED
from singa_dask.cluster.successors import prepare_successor

_METHOD = "distributed.worker.multiprocessing-method"


@pytest.fixture
def nanny(monkeypatch, tmp_path):
    """A process of a nanny, without a client or a scheduler; `done`: what happens to its fork server; `at_exit`: what
    is done when it ends; `tmp`: its temporary files."""
    nanny = SimpleNamespace(done=[], at_exit=[], tmp=tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(successors.atexit, "register", nanny.at_exit.append)
    nanny.fork = successors._fork_workers

    def none():
        raise ValueError("no client")

    monkeypatch.setattr(successors, "default_client", none)
    monkeypatch.setattr(successors, "Scheduler", SimpleNamespace(_instances=[]))
    monkeypatch.setattr(distributed.utils, "_forkserver_preload_set", False)
    fork_server = SimpleNamespace(
        set_forkserver_preload=nanny.done.append, ensure_running=lambda: nanny.done.append("running")
    )
    monkeypatch.setattr(successors, "forkserver", fork_server)
    yield nanny
    for function in nanny.at_exit:
        function()


def test_a_nanny_that_spawns_workers_forks_them_from_now_on(nanny):
    with dask.config.set({_METHOD: "spawn"}):
        nanny.fork()
        assert nanny.done == [IMPORTED, "running"] and dask.config.get(_METHOD) == "forkserver"
        distributed.utils.get_mp_context()
        assert distributed.utils._forkserver_preload_set, "Dask does not replace what is imported"
        nanny.fork()
        assert len(nanny.done) == 2, "it does so already"
    (folder,) = nanny.tmp.iterdir()
    assert util.get_temp_dir() == str(folder) and folder.stat().st_mode & 0o777 == 0o700
    nanny.at_exit.pop()()
    assert not any(nanny.tmp.iterdir()) and util.get_temp_dir() != str(folder)


def test_a_nanny_in_the_process_of_a_scheduler_stays_as_it_is(nanny, monkeypatch):
    monkeypatch.setattr(successors, "Scheduler", SimpleNamespace(_instances=["one"]))
    with dask.config.set({_METHOD: "spawn"}):
        nanny.fork()
        assert dask.config.get(_METHOD) == "spawn"
    assert not nanny.done


def test_a_nanny_in_the_process_of_a_client_and_one_that_forks_stay_as_they_are(nanny, monkeypatch):
    with dask.config.set({_METHOD: "fork"}):
        nanny.fork()
        assert dask.config.get(_METHOD) == "fork"
    monkeypatch.setattr(successors, "default_client", object)
    with dask.config.set({_METHOD: "spawn"}):
        nanny.fork()
        assert dask.config.get(_METHOD) == "spawn"
    assert not nanny.done


def test_a_worker_asks_its_nanny_once_it_has_compiled():
    asked, waited = [], []

    class Nanny:
        async def run(self, function):
            asked.append(pickle.loads(function))
            raise OSError("the nanny is gone")

    loop = SimpleNamespace(
        add_callback=lambda function, *args: function(*args),
        call_later=lambda delay_s, function: (waited.append(delay_s), asyncio.run(function())),
    )
    prepare_successor(SimpleNamespace(nanny="tcp://n:1", loop=loop, rpc=lambda address: Nanny()))
    assert asked == [successors._prepare] and waited == [1.0]
    prepare_successor(SimpleNamespace(nanny=None))
    assert len(asked) == 1


def test_a_nanny_that_cannot_fork_workers_is_named(caplog):
    async def run(function):
        return {"status": "error", "exception": RuntimeError("no fork server")}

    loop = SimpleNamespace(
        add_callback=lambda function, *args: function(*args),
        call_later=lambda delay_s, function: asyncio.run(function()),
    )
    nanny = SimpleNamespace(run=run)
    prepare_successor(SimpleNamespace(nanny="tcp://n:1", loop=loop, rpc=lambda address: nanny))
    assert "tcp://n:1 cannot fork workers" in caplog.text and "no fork server" in caplog.text
