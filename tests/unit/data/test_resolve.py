from __future__ import annotations

import fcntl
import importlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from singa_dask.data import Manifest, resolve
from singa_dask.errors import DataError


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_named_data_set_is_made_once_in_the_cache(cache):
    train = resolve("dataset:digits/train")
    assert train.is_relative_to(cache)
    before = (train / "manifest.json").stat().st_mtime_ns
    assert Manifest.load(resolve("dataset:digits/test")).total == 359
    assert resolve("dataset:digits/train") == train
    assert (train / "manifest.json").stat().st_mtime_ns == before


def test_several_processes_may_ask_for_it_at_once(cache):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        paths = {*processes.map(resolve, ["dataset:digits/train"] * 2)}
    assert Manifest.load(*paths).total == 1438
    assert not list(cache.rglob(".*.part-*"))


def test_a_lock_that_is_never_given_back_does_not_block_for_ever(cache, monkeypatch, caplog):
    monkeypatch.setattr(importlib.import_module("singa_dask.data.resolve"), "LOCK_TIMEOUT_S", 0.3)
    folder = cache / "shards" / "v2"
    folder.mkdir(parents=True)
    with (folder / "digits.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert (resolve("dataset:digits/train") / "manifest.json").exists()
    assert "continuing without the lock" in caplog.text


def test_ordinary_paths_become_absolute_and_the_parent_of_splits_names_them(images, monkeypatch):
    monkeypatch.chdir(images.folder.parent)
    assert resolve("images") == resolve(str(images.folder)) == images.folder
    with pytest.raises(DataError, match="subfolders: images"):
        resolve(str(images.folder.parent))


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("dataset:minst/train", "no data set is named 'minst'. Did you mean mnist"),
        ("dataset:digits/tset", "Did you mean test"),
        ("dataset:digits", "Name one: dataset:digits/train"),
        ("dataset:../etc/train", r"no data set is named '\.\.'"),
        ("mnist/train", "Did you mean dataset:mnist/train"),
        ("nowhere", "singa-dask shard"),
    ],
)
def test_wrong_paths_are_errors_that_name_the_nearest_data_set(cache, path, fault):
    with pytest.raises(DataError, match=fault):
        resolve(path)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="SINGA_DASK_CACHE"):
        resolve("dataset:digits/train")
