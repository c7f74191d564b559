"""End-to-end tests type the commands that users type, in an empty folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support import commands
from support.dask_commands import DaskCommands


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The environment of commands: data sets are made in a cache of this test session, modules are compiled once."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "SINGA_DASK_CACHE": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for the temporary files of a command. `tmp_path` is too long for the sockets among them."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def singa_dask(environment, tmp_path):
    """Run `singa-dask ARGS`, which ends with the exit code `code`: 0, if nothing else is said."""
    return partial(commands.run, cwd=tmp_path, env=environment, code=0)


@pytest.fixture
def here(environment, tmp_path):
    """The same in this process: for calls that start no other process."""
    return partial(commands.run_here, cwd=tmp_path, env=environment, code=0)


@pytest.fixture
def program(environment, tmp_path):
    """Run a script, or `python ARGS`, in the same way."""
    return lambda *args, **options: commands.run_command(
        [sys.executable, *args], **{"cwd": tmp_path, "env": environment, **options}
    )


@pytest.fixture
def dask(environment, tmp_path):
    """A Dask cluster by commands, which ends with the test. It has no workers yet."""
    cluster = DaskCommands(tmp_path / "dask", environment)
    yield cluster
    cluster.end()


@pytest.fixture(scope="module")
def scheduler(environment, tmp_path_factory):
    """The scheduler file of a cluster of two `dask worker` processes, which ends with the module."""
    cluster = DaskCommands(tmp_path_factory.mktemp("dask") / "cluster", environment)
    cluster.workers(2)
    yield cluster.file
    cluster.end()
