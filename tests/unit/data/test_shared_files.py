"""What workers see of the files of this process; other machines are played by taking files away."""

import os
import re
from socket import gethostname

import h5py
import numpy as np
import pytest
from distributed.core import CommClosedError
from support.views import OtherMachine

from singa_dask.data import shared_files, write_shards
from singa_dask.data.columns import Role
from singa_dask.data.in_place import index
from singa_dask.data.shared_files import SharedFiles, View, check_shared, in_place_files, in_words, other_views
from singa_dask.errors import ClusterError, ConfigError

FAR = "tcp://far:1"


class Machine:
    """A client with a worker that sees what this process sees. answer: what it says instead."""

    def __init__(self, answer=None):
        self.answer, self.workers = answer, None

    def wait_for_workers(self, count, timeout):
        assert (count, timeout) == (1, shared_files.WORKERS_TIMEOUT_S)

    def map(self, function, numbers, **options):
        return list(numbers)

    def cancel(self, waiting, force):
        assert waiting

    def run(self, function, *args, workers, on_error, callback_timeout):
        assert on_error == "return" and callback_timeout == shared_files.ANSWER_S
        self.workers = workers
        if isinstance(self.answer, TimeoutError):
            raise self.answer
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


def test_other_shards_or_another_file_under_the_same_path_are_told_apart(tmp_path, shards):
    other = tmp_path / "other"
    write_shards(other, np.ones((20, 3), np.float32), np.zeros(20, int))
    for path, change in (
        (shards, lambda: (other / "manifest.json").rename(shards / "manifest.json")),
        (tmp_path / "mean.h5", lambda: (tmp_path / "mean.h5").write_bytes(b"b" * 9)),
    ):
        if path != shards:
            path.write_bytes(b"a" * 9)

        class Changed(Machine):
            def run(self, function, *args, change=change, **options):
                change()
                return super().run(function, *args, **options)

        with pytest.raises(ClusterError, match=rf"{path}: the Dask workers on .* see something else under this path"):
            check_shared(Changed(), SharedFiles([path]))


def test_a_worker_must_be_able_to_write(tmp_path, monkeypatch):
    def refused(path, mode):
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
    ],
)
def test_workers_that_cannot_say_it(tmp_path, answer, said):
    with pytest.raises(ClusterError, match=said):
        check_shared(Machine(answer), SharedFiles(folder=tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_worker_that_has_just_been_lost_is_not_blind(tmp_path):
    check_shared(Machine(CommClosedError("gone")), SharedFiles(folder=tmp_path))


def test_a_cluster_without_workers_is_an_error():
    def none_came(count, timeout):
        raise TimeoutError

    client = Machine()
    client.wait_for_workers = none_came
    with pytest.raises(ClusterError, match="has had no workers for 30 s"):
        check_shared(client, SharedFiles())


def test_many_hosts_are_counted_and_their_workers_are_not():
    views = {
        f"tcp://{host}:{port}": View(f"h{host}", "/w", "do not see it", "Go.") for host in range(7) for port in (1, 2)
    }
    said = in_words({**views, "tcp://else:1": View("else", "/other", "do not see it")})
    named = ", ".join(f"h{host} (tcp://{host}:1)" for host in range(5))
    assert said == f"/w: the Dask workers on {named} and 2 more hosts do not see it. Go."


def test_files_that_are_read_in_place_are_named_by_their_manifest(tmp_path, shards):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["x"], file["y"] = np.zeros((9, 2), np.float32), np.zeros(9, np.int32)
    index([tmp_path / "own.h5"], tmp_path / "read", {"x": ("x", Role.FEATURE), "y": ("y", Role.LABEL)})
    assert in_place_files(tmp_path / "read") == [tmp_path / "own.h5"] and in_place_files(shards) == []
    client = OtherMachine(Machine(), tmp_path / "own.h5")
    with pytest.raises(ClusterError, match=re.escape(f"{tmp_path}/own.h5: the Dask workers on")):
        check_shared(client, SharedFiles([tmp_path / "read", *in_place_files(tmp_path / "read")]))
