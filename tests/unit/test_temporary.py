"""Folders that are in use, and those that killed processes have left."""

import os
import subprocess
import sys

from singa_dask import temporary
from singa_dask.temporary import in_use, private_folder, remove_abandoned

_HOLDS = """
import sys, time
from pathlib import Path
from singa_dask.temporary import in_use
with in_use(Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(60)
"""


def test_only_what_nobody_uses_is_removed(tmp_path):
    own, left = tmp_path / "own", tmp_path / "left"
    for folder in (own, left):
        (folder / "below").mkdir(parents=True)
    with in_use(own):
        assert remove_abandoned([own, left, tmp_path / "absent"]) == [own]
        assert own.is_dir() and not left.exists()
    assert remove_abandoned([own]) == [] and not own.exists()


def test_a_folder_is_in_use_as_long_as_its_process_lives(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", _HOLDS, folder], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holds\n"
        assert remove_abandoned([folder]) == [folder]
        process.kill()
    assert remove_abandoned([folder]) == [] and not folder.exists()


def test_neither_links_nor_what_others_own_is_removed(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert temporary.remove_abandoned([tmp_path / "link"]) == [tmp_path / "link"]
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert temporary.remove_abandoned([tmp_path / "mine"]) == [tmp_path / "mine"] and (tmp_path / "mine").is_dir()


def test_a_file_system_without_locks_keeps_everything(tmp_path, monkeypatch):
    def flock(*args):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(temporary.fcntl, "flock", flock)
    with temporary.in_use(tmp_path):
        assert temporary.remove_abandoned([tmp_path]) == [tmp_path] and tmp_path.is_dir()


def test_a_private_folder_is_gone_afterwards_and_those_of_killed_processes_too(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with private_folder() as left:
        killed, others = tmp_path / f"{left.name.rpartition('-')[0]}-killed", tmp_path / "other-folder"
    for folder in (killed, others):
        folder.mkdir()
        (folder / "listener").touch()
    with private_folder() as folder, private_folder() as second:
        assert sorted(tmp_path.iterdir()) == sorted([folder, second, others])
        assert {path.stat().st_mode & 0o777 for path in (folder, second)} == {0o700}
    assert [*tmp_path.iterdir()] == [others]
