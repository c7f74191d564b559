"""The start and the end of the fork server, and what a forked worker sets, with processes that the test plays."""

import errno
import logging
import os
import signal
import sys
import tempfile
from contextlib import nullcontext
from multiprocessing import util
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from support.lost_output import Failing

from singa_dask.cluster import fork_server as module
from singa_dask.cluster import worker_setup
from singa_dask.cluster.cores import THREAD_VARIABLES
from singa_dask.cluster.fork_server import IMPORTED, MALLOC, fork_server
from singa_dask.cluster.stop_signals import FOR_THE_DRIVER


def child(pid, *command):
    return Mock(pid=pid, cmdline=Mock(return_value=list(command)))


def handlers():
    return [signal.getsignal(number) for number in FOR_THE_DRIVER]


@pytest.fixture
def started(monkeypatch):
    """What the fork server found when it started; `fails`: what its start raises; `children` of this process;
    `waitid`: how they are waited for."""
    started = SimpleNamespace(fails=None, children=[], waitid=Mock(side_effect=ChildProcessError))

    def ensure_running():
        started.environment, started.handlers, started.tempdir = dict(os.environ), handlers(), util.get_temp_dir()
        if started.fails:
            raise started.fails

    monkeypatch.setattr(module.forkserver, "ensure_running", ensure_running)
    monkeypatch.setattr(module.forkserver, "set_forkserver_preload", lambda names: setattr(started, "preload", names))
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(children=lambda: started.children))
    monkeypatch.setattr(module.os, "waitid", started.waitid)
    for name in (*THREAD_VARIABLES, *MALLOC, "PYTHONHASHSEED"):
        monkeypatch.delenv(name, raising=False)
    return started


@pytest.mark.parametrize("fails", [None, OSError("no more processes")], ids=["starts", "fails"])
def test_it_starts_with_variables_of_its_own_and_without_ctrl_c_and_leaves_the_process_as_it_was(
    started, monkeypatch, fails
):
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    before, found, started.fails = dict(os.environ), handlers(), fails
    with pytest.raises(OSError, match="no more") if fails else nullcontext(), fork_server():
        assert not fails and dict(os.environ) == before and handlers() == found
    there = started.environment
    assert [there[name] for name in THREAD_VARIABLES] == ["1", "1", "7", "1"] and there["PYTHONHASHSEED"] == "6640"
    assert MALLOC.items() <= there.items() and started.preload == IMPORTED
    assert started.handlers == [signal.SIG_IGN] * len(FOR_THE_DRIVER)
    assert dict(os.environ) == before and handlers() == found


def test_its_folder_is_in_a_private_one_that_the_next_start_would_remove(started, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with fork_server():
        (folder,) = tmp_path.iterdir()
        assert started.tempdir == str(folder) and folder.stat().st_mode & 0o777 == 0o700
    assert not any(tmp_path.iterdir())
    with fork_server():
        assert os.path.isdir(started.tempdir) and started.tempdir != str(folder)


def test_it_is_killed_at_the_end_and_no_other_child(started):
    server = child(7, "python", "-c", "from multiprocessing.forkserver import main; main(3)")
    other, gone = child(8, "python", "-m", "distributed"), Mock(cmdline=Mock(side_effect=psutil.NoSuchProcess(5)))
    started.children = [gone, server, other]
    with fork_server():
        assert not server.kill.called
    assert server.kill.called and not other.kill.called
    started.waitid.assert_called_once_with(os.P_PID, 7, os.WEXITED | os.WNOWAIT)  # its status is left to Python


@pytest.fixture
def set_up(monkeypatch):
    """Set up this process as a worker, with standard streams on a full disk; those of the tests come back. done: to
    signals and to Numba."""
    logger = logging.getLogger("singa_dask")
    monkeypatch.setattr(logger, "handlers", [*logger.handlers])
    monkeypatch.setattr(signal, "signal", lambda *given: set_up.done.append(given))
    monkeypatch.setattr(worker_setup.numba.config, "reload_config", lambda: set_up.done.append("numba"))

    def set_up():
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, Failing(errno.ENOSPC))
        worker_setup.dask_setup(None)

    set_up.done = []
    return set_up


def test_what_a_worker_prints_may_be_lost_and_what_it_logs_is_escaped(set_up):
    set_up()
    for stream in (sys.stdout, sys.stderr):
        print("a layer's", file=stream, flush=True)
    full = sys.stderr.stream
    full.whole = 10
    logging.getLogger("singa_dask.training").warning("a\x1b")
    print("\x1b[31mred", file=sys.stderr)
    assert full.getvalue() == "a\\x1b\n\x1b[31mred\n"


def test_a_worker_sets_what_its_environment_says(set_up, monkeypatch):
    monkeypatch.setattr(worker_setup, "set_blas_threads", set_up.done.append)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    monkeypatch.setenv("MKL_NUM_THREADS", "many")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    set_up()
    assert set_up.done == [*((number, signal.SIG_IGN) for number in FOR_THE_DRIVER), "numba", {"openblas": 3}]
