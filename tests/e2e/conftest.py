"""End-to-end tests type the commands that users type, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
from support import commands


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The environment of commands: data sets are made in a cache of this test session, modules are compiled once."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "SINGA_DASK_CACHE": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture
def singa_dask(environment, tmp_path):
    """Run `singa-dask ARGS`."""
    return partial(commands.run, cwd=tmp_path, env=environment)


@pytest.fixture
def here(environment, tmp_path):
    """Run `singa-dask ARGS` in this process: for calls that start no other process."""
    return partial(commands.run_here, cwd=tmp_path, env=environment)


@pytest.fixture(scope="module")
def scheduler(environment, tmp_path_factory):
    """The scheduler file of a cluster of two `dask worker` processes, which ends with the module."""
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    here = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    commands = [["dask_scheduler", *here, "--port", "0"], ["dask_worker", *here, "--nworkers", "2", "--nthreads", "1"]]
    options = {"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [
        subprocess.Popen([sys.executable, "-m", f"distributed.cli.{c[0]}", *c[1:]], **options) for c in commands
    ]
    yield file
    for process in reversed(processes):
        process.terminate()
        process.wait(timeout=20)
