"""Commands of a user whose home does not exist."""

import os
import shutil
import subprocess
import sys

import pytest

from singa_dask.data.fetch import cache_dir
from singa_dask.data.resolve import resolve
from singa_dask.errors import ConfigError, DataError
from singa_dask.job.code_trust import key_file, sign
from singa_dask.planning.profile import Profile
from singa_dask.profiling import store

SAID = "does not exist, and is not created"

_LIBRARIES = """
import os
from singa_dask.cli import main

@main.command()
def probe():
    import distributed, matplotlib.pyplot
    print(os.path.dirname(os.environ["MPLCONFIGDIR"]))

main(["probe"])
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The home, which is not there."""
    for name in ("SINGA_DASK_CACHE", "SINGA_DASK_DATA", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "nobody"
    monkeypatch.setenv("HOME", str(home))
    yield home
    shutil.rmtree(home, ignore_errors=True)


def keep_shards(home, caplog):
    with pytest.raises(DataError, match=rf"the home {home} {SAID}.* SINGA_DASK_CACHE"):
        resolve("dataset:digits/train")


def keep_a_profile(home, caplog):
    with pytest.raises(ConfigError, match=rf"the home {home} {SAID}.* SINGA_DASK_CACHE"):
        store.save("key", Profile())


def lock_a_profile(home, caplog):
    with store.locked("key", pytest.fail):
        pass


def keep_code(home, caplog):
    assert sign(b"code") == ""
    assert f"the home {home} {SAID}" in caplog.text and "XDG_CONFIG_HOME" in caplog.text and len(caplog.records) == 1


@pytest.mark.parametrize("keep", [keep_shards, keep_a_profile, lock_a_profile, keep_code])
def test_a_home_that_does_not_exist_is_not_created(home, caplog, keep):
    keep(home, caplog)
    assert not home.exists()


def test_folders_that_variables_name_are_created(home, tmp_path, monkeypatch):
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path / "a/cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "a/config"))
    store.save("key", Profile())
    assert sign(b"code") and key_file().is_file() and (cache_dir() / "profiles/key.json").is_file()
    assert not home.exists()


def test_libraries_do_not_create_it_either(home, tmp_path):
    command = [sys.executable, "-c", _LIBRARIES]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert ran.stdout == f"{tmp_path}\n", ran.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left"
