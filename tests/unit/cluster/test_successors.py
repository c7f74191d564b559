"""When a nanny gets a fork server, with nannies and workers that the test plays."""

import asyncio
import pickle
import tempfile
from multiprocessing import util
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

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
    monkeypatch.setattr(successors, "default_client", Mock(side_effect=ValueError("no client")))
    monkeypatch.setattr(successors, "Scheduler", SimpleNamespace(_instances=[]))
    monkeypatch.setattr(distributed.utils, "_forkserver_preload_set", False)
    told = {"set_forkserver_preload": nanny.done.append, "ensure_running": lambda: nanny.done.append("running")}
    monkeypatch.setattr(successors, "forkserver", SimpleNamespace(**told))
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


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("spawn", "Scheduler", SimpleNamespace(_instances=["one"])),
        ("spawn", "default_client", object),
        ("fork", "atexit", None),
    ],
    ids=["with-a-scheduler", "with-a-client", "that-forks"],
)
def test_a_nanny_in_the_process_of_others_or_with_a_way_of_its_own_stays_as_it_is(
    nanny, monkeypatch, method, name, value
):
    monkeypatch.setattr(successors, name, value)
    with dask.config.set({_METHOD: method}):
        nanny.fork()
        assert dask.config.get(_METHOD) == method and not nanny.done


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"side_effect": OSError("the nanny is gone")}, []),
        ({"return_value": {"status": "OK"}}, []),
        (
            {"return_value": {"status": "error", "exception": RuntimeError("no fork server")}},
            ["tcp://n:1 cannot fork workers, and starts them anew: RuntimeError('no fork server')"],
        ),
    ],
    ids=["gone", "forks", "cannot-fork"],
)
def test_a_worker_asks_its_nanny_once_it_has_compiled(caplog, answer, said):
    run, waited = AsyncMock(**answer), []
    loop = SimpleNamespace(
        add_callback=lambda function, *args: function(*args),
        call_later=lambda delay_s, function: (waited.append(delay_s), asyncio.run(function())),
    )
    for nanny in ("tcp://n:1", None):
        prepare_successor(SimpleNamespace(nanny=nanny, loop=loop, rpc=lambda address: SimpleNamespace(run=run)))
    run.assert_awaited_once_with(function=pickle.dumps(successors._prepare))
    assert waited == [1.0] and [record.getMessage() for record in caplog.records] == said
