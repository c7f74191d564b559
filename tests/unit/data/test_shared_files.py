"""What workers see of the files of this process; other machines are played by taking files away."""

import asyncio
import os
import shutil
from socket import gethostname

import numpy as np
import pytest
from distributed.core import CommClosedError
from support.shards import write_shards
from support.sources import write_file
from support.views import OtherMachine

from singa_dask.data import shard_files, shared_files
from singa_dask.data.shared_files import SharedFiles, View, check_shared, in_place_files, in_words, other_views
from singa_dask.errors import ClusterError, ConfigError

FAR = "tcp://far:1"


NOBODY = object()


class Machine:
    """A client with a worker that sees what this process sees. answer: what it says instead; before: it looks.
    imports_s: how long it imports the package."""

    def __init__(self, answer=None, before=lambda: None, imports_s=0.0):
        self.answer, self.before, self.workers, self.imports_s = answer, before, None, imports_s

    def wait_for_workers(self, count, timeout):
        if self.answer is NOBODY:
            raise TimeoutError

    def map(self, function, numbers, **options):
        return list(numbers)

    def cancel(self, waiting, force):
        assert waiting

    def run(self, function, *args, workers, **options):
        if function is asyncio.to_thread:
            self.imports_s -= options["callback_timeout"]
            if self.imports_s > 0:
                raise TimeoutError
            return {}
        if isinstance(self.answer, TimeoutError):
            raise self.answer
        if function is os.getpid:
            return {}
        self.before()
        self.workers = workers
        return {FAR: self.answer or function(*args)}


@pytest.fixture
def shards(tmp_path):
    write_shards(tmp_path / "shards", np.zeros((20, 3), np.float32), np.zeros(20, int))
    return tmp_path / "shards"


def test_a_worker_that_sees_everything_is_not_named_and_nothing_is_left(tmp_path, shards):
    (tmp_path / "mean.h5").write_bytes(b"x" * (3 << 20))
    client = Machine()
    shared = SharedFiles([shards, tmp_path / "mean.h5", tmp_path], tmp_path / "run", "Name another.")
    check_shared(client, shared)
    assert client.workers is None and sorted(os.listdir(tmp_path)) == ["mean.h5", "shards"]
    (tmp_path / "run").mkdir()
    assert other_views(client, shared, [FAR]) == {} and client.workers == [FAR]
    assert os.listdir(tmp_path / "run") == []


def test_a_folder_that_another_run_removed_is_not_one_that_workers_do_not_share(tmp_path):
    (tmp_path / "run").mkdir()
    client = Machine(before=lambda: shutil.rmtree(tmp_path / "run"))
    words = (
        "run: was removed in the meantime, as by another run in the same workspace. Give each run a workspace of its"
    )
    with pytest.raises(ClusterError, match=words):
        check_shared(client, SharedFiles([], tmp_path / "run", "Name another."))


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("run", "do not share this folder. Name another."),
        ("shards", "do not see it (No such file or directory). Put it on a file system that all machines share, or"),
        ("vocab.txt", "do not see it (No such file or directory). Put it on"),
    ],
)
def test_what_a_worker_does_not_see_is_named_with_its_host_and_the_way_out(tmp_path, shards, name, how):
    (tmp_path / "vocab.txt").write_text("abc")
    (tmp_path / "run").mkdir()
    shared = SharedFiles([shards, tmp_path / "vocab.txt"], tmp_path / "run", "Name another.")
    client = OtherMachine(Machine(), tmp_path / name)
    with pytest.raises(ClusterError) as caught:
        check_shared(client, shared)
    assert str(caught.value).startswith(f"{tmp_path / name}: the Dask workers on {gethostname()} ({FAR}) {how}")
    assert os.listdir(tmp_path / "run") == [], "the probe is removed"


@pytest.mark.parametrize("name", ["shards", "mean.h5"])
def test_other_shards_or_another_file_under_the_same_path_are_told_apart(tmp_path, shards, name):
    write_shards(tmp_path / "other" / "shards", np.ones((20, 3), np.float32), np.zeros(20, int))
    for folder, letter in ((tmp_path, b"a"), (tmp_path / "other", b"b")):
        (folder / "mean.h5").write_bytes(letter * 9)
    file = "shards/manifest.json" if name == "shards" else name
    client = Machine(before=lambda: (tmp_path / "other" / file).rename(tmp_path / file))
    with pytest.raises(ClusterError, match=rf"/{name}: the Dask workers on .* see something else under this path"):
        check_shared(client, SharedFiles([tmp_path / name]))


def test_a_worker_must_be_able_to_write(tmp_path, monkeypatch):
    def refused(path, mode, encoding):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(shared_files, "open", refused, raising=False)
    with pytest.raises(ClusterError, match=r"cannot write to this folder \(Permission denied\)\. Name another"):
        check_shared(Machine(), SharedFiles(folder=tmp_path, share="Name another."))
    assert os.listdir(tmp_path) == []


def test_a_folder_that_this_process_cannot_make_is_a_fault_of_the_job(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"/file/run: cannot be written \(Not a directory\)"):
        check_shared(Machine(), SharedFiles(folder=tmp_path / "file" / "run"))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ModuleNotFoundError("No module named 'singa_dask'"), "cannot run singa_dask .*Install the same version"),
        (TimeoutError(), r"do not say which files they see \(no answer within 10 s\)"),
        (NOBODY, "has had no workers for 30 s"),
    ],
)
def test_workers_that_cannot_say_it(tmp_path, answer, said):
    with pytest.raises(ClusterError, match=said):
        check_shared(Machine(answer), SharedFiles(folder=tmp_path))
    assert os.listdir(tmp_path) == []


def test_workers_import_the_package_before_they_are_asked(tmp_path, caplog):
    check_shared(Machine(imports_s=1.0), SharedFiles(folder=tmp_path))
    assert not caplog.records
    check_shared(Machine(imports_s=500.0), SharedFiles(folder=tmp_path))
    assert "the Dask workers are importing singa_dask; waiting up to 600 s" in caplog.text
    with pytest.raises(ClusterError, match="they have not imported singa_dask within 600 s"):
        check_shared(Machine(imports_s=1000.0), SharedFiles(folder=tmp_path))


def test_a_worker_that_has_just_been_lost_is_not_blind(tmp_path):
    check_shared(Machine(CommClosedError("gone")), SharedFiles(folder=tmp_path))


def test_many_hosts_are_counted_and_their_workers_are_not():
    views = {
        f"tcp://{host}:{port}": View(f"h{host}", "/w", "do not see it", "Go.") for host in range(7) for port in (1, 2)
    }
    said = in_words({**views, "tcp://else:1": View("else", "/other", "do not see it")})
    named = ", ".join(f"h{host} (tcp://{host}:1)" for host in range(5))
    assert said == f"/w: the Dask workers on {named} and 2 more hosts do not see it. Go."


def test_files_that_are_read_in_place_are_named_by_their_manifest(tmp_path, shards):
    own = write_file("hdf5", tmp_path / "own.h5", {"x": np.zeros((9, 2), np.float32), "y": np.zeros(9, np.int32)})
    shard_files("hdf5", tmp_path / "read", source=own, in_place=True)
    assert in_place_files(tmp_path / "read") == [own] and in_place_files(shards) == []
