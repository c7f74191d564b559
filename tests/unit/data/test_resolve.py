"""Named data sets: made once in the cache from files that are found or downloaded, here from a server of our own."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from singa_dask.data import Manifest, resolve
from singa_dask.data.catalogue import PublishedFile, Recipe
from singa_dask.data.fetch import cache_dir, download, raw_files
from singa_dask.data.schema import VERSION
from singa_dask.errors import DataError

RESOLVE = importlib.import_module("singa_dask.data.resolve")


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


def test_several_may_ask_for_it_at_once(cache, monkeypatch, caplog):
    """Threads lock the file each for itself, as processes do."""
    monkeypatch.setattr(RESOLVE, "LOCK_TIMEOUT_S", 1e9)
    with ThreadPoolExecutor(3) as threads:
        paths = {*threads.map(resolve, ["dataset:digits/train"] * 3)}
    assert Manifest.load(*paths).total == 1438
    assert not list(cache.rglob(".*.part-*")) and "another attempt is writing it" not in caplog.text


def test_a_lock_that_is_never_given_back_does_not_block_for_ever(cache, monkeypatch, caplog):
    monkeypatch.setattr(RESOLVE, "LOCK_TIMEOUT_S", 0.3)
    folder = cache / "shards" / f"v{VERSION}"
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


# Downloads


CONTENT = bytes(range(256)) * 9000  # 2.3 MB: several chunks


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def source(tmp_path):
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "data.bin").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=tmp_path / "public"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    checksum = ("sha256", hashlib.sha256(CONTENT).hexdigest())
    yield PublishedFile("data.bin", f"http://127.0.0.1:{server.server_port}/data.bin", checksum, len(CONTENT))
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def no_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SINGA_DASK_DATA", raising=False)
    return tmp_path


def recipe_of(source: PublishedFile) -> Recipe:
    return Recipe("things", "", "idx", ("train",), ("a",), sources=(source,), alternatives=("part_[12].bin",))


def test_a_file_is_downloaded_once_into_the_cache(source, no_folders, caplog):
    caplog.set_level("INFO")
    found = raw_files(recipe_of(source))
    path = no_folders / "cache" / "raw" / "things" / "data.bin"
    assert found == {"data.bin": path}
    assert path.read_bytes() == CONTENT
    assert "data.bin: 100 %" in caplog.text
    (no_folders / "public" / "data.bin").unlink()
    assert raw_files(recipe_of(source)) == found
    assert [p.name for p in path.parent.iterdir()] == ["data.bin"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"checksum": ("md5", "0" * 32)}, "md5 differs"),
        ({"size": 1000}, "larger than the published 1,000 bytes"),
        ({"url": "file:///etc/passwd"}, "only http and https"),
        ({"url": "{url}x"}, r"cannot be downloaded .*Put data\.bin in .*SINGA_DASK_DATA"),
    ],
)
def test_what_is_not_the_published_file_is_an_error_and_is_not_kept(source, tmp_path, change, fault):
    change = {key: value.format(url=source.url) if key == "url" else value for key, value in change.items()}
    with pytest.raises(DataError, match=fault):
        download(replace(source, **change), tmp_path / "raw")
    assert not list(tmp_path.glob("raw/*"))


@pytest.mark.parametrize("answer", [None, b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nabc"])
def test_a_server_that_is_silent_or_sends_less_than_it_promises_is_an_error(source, tmp_path, answer):
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        if answer is not None:
            pool.submit(serve, listener)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/data.bin"
        with pytest.raises(DataError):
            download(replace(source, url=url), tmp_path / "raw", timeout_s=0.3 if answer is None else 30)
    assert not list(tmp_path.glob("raw/*"))


@pytest.fixture
def mine(no_folders, monkeypatch):
    """The user's folder for this data set."""
    monkeypatch.setenv("SINGA_DASK_DATA", str(no_folders / "mine"))
    (no_folders / "mine" / "things").mkdir(parents=True)
    return no_folders / "mine" / "things"


def test_files_in_singa_dask_data_come_before_a_download(source, mine, caplog):
    (mine / "data.bin").write_bytes(CONTENT[:-1])
    assert raw_files(recipe_of(source)) == {"data.bin": mine / "data.bin"}
    assert "differ from the published ones (other checksum): data.bin" in caplog.text
    assert not cache_dir().exists()


def test_alternatives_do_instead_of_the_sources(source, mine):
    for name in ("part_1.bin", "part_2.bin.gz", "part_3.bin"):
        (mine / name).touch()
    assert raw_files(recipe_of(source)) == {"part_1.bin": mine / "part_1.bin", "part_2.bin": mine / "part_2.bin.gz"}


def test_a_named_folder_is_the_only_place_to_look(source, no_folders):
    with pytest.raises(DataError, match=r"does not hold the files of things\. Expected: data\.bin"):
        raw_files(recipe_of(source), no_folders)
