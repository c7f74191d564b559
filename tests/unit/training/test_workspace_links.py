"""A run's files are not written through links, its lock cannot be removed, and its folder may vanish."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from support.shards import write_shards
from support.special_files import CALLED, intact, put

from singa_dask.errors import ConfigError
from singa_dask.job import Job
from singa_dask.layers import InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.monitor.progress import Display
from singa_dask.supervision.driver import train
from singa_dask.training.checkpoint import BEST, Checkpoint, newest, path_of, save
from singa_dask.training.workspace import Workspace
from singa_dask.updaters import SGD

pytestmark = pytest.mark.timeout(20, method="signal", func_only=True)


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path / "shared" / "w")


@pytest.fixture
def lock(workspace):
    workspace.folder.parent.mkdir()
    return workspace.folder.parent / ".w.lock"


def saved(workspace, step):
    return save(Checkpoint(step, 0, "", {"w": np.zeros(1)}), path_of(workspace.checkpoints, step))


def run_once(workspace, step=1, job="job"):
    """A run that saves once; where it has put an earlier one."""
    with workspace.locked():
        aside = workspace.set_aside()
        workspace.open(job)
        saved(workspace, step)
    return aside


def assert_in_use(workspace):
    with pytest.raises(ConfigError, match="another run is using it"), workspace.locked():
        pass


# Links


def test_a_lock_is_not_taken_through_a_link(workspace, lock, victim):
    lock.symlink_to(victim)
    with pytest.raises(ConfigError, match=r"\.w\.lock.*symbolic link"), workspace.locked():
        pass
    assert intact(victim)


def test_a_lock_is_not_emptied(workspace, lock):
    lock.write_text("a note")
    with workspace.locked():
        assert lock.read_text() == "a note"


@pytest.mark.parametrize("kind", ["fifo", "socket", "null", "folder"])
def test_a_lock_that_is_no_file(workspace, kind):
    put(kind, workspace.folder.parent / ".w.lock")
    with pytest.raises(ConfigError, match=rf"\.w\.lock.*({CALLED[kind]}|symbolic link)"), workspace.locked():
        pass


@pytest.mark.parametrize(
    "name",
    [
        "job.conf",
        ".run",
        ".metrics.jsonl.tmp",
        ".events.jsonl.tmp",
        ".summary.json.tmp",
        "metrics.jsonl",
        "events.jsonl",
        "summary.json",
    ],
)
def test_a_run_writes_nothing_through_links_that_it_finds(workspace, victim, name):
    workspace.folder.mkdir(parents=True)
    (workspace.folder / name).symlink_to(victim)
    refused = pytest.raises(ConfigError, match=r"\.run.*symbolic link") if name == ".run" else nullcontext()
    with refused, workspace.locked():
        workspace.open("job")
        workspace.append({"group": 0, "phase": "train", "step": 1})
        workspace.write_summary({"status": "completed"})
        workspace.must_write()
    assert intact(victim)


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_lines_are_not_added_through_a_link_that_appears(workspace, victim, name):
    with workspace.locked():
        workspace.open("job")
        (workspace.folder / name).unlink()
        (workspace.folder / name).symlink_to(victim)
        workspace.append({"group": 0, "phase": "train", "step": 1})
        workspace.tell("start", step=0)
        assert intact(victim)
        workspace.must_write()
    assert len(list(Workspace(workspace.folder).rows())) == 1 == len(Workspace(workspace.folder).told())


@pytest.mark.parametrize("of", ["half", "step", "best"])
def test_a_checkpoint_is_not_written_through_a_link(workspace, victim, of):
    path = path_of(workspace.checkpoints, 1)
    at = {"half": path.with_name(f".{path.name}.{os.getpid()}.tmp"), "step": path, "best": path.with_name(BEST)}[of]
    workspace.checkpoints.mkdir(parents=True)
    at.symlink_to(victim)
    saved(workspace, 1)
    save(Checkpoint(1, 0, "", {"w": np.zeros(1)}), path.with_name(BEST))
    assert newest(workspace.checkpoints)[0].step == 1 and not path.is_symlink() and intact(victim)


# The lock


@pytest.mark.parametrize("removed", [[".w.lock"], ["w/.run"], [".w.lock", "w/metrics.jsonl"]])
@pytest.mark.parametrize("earlier", [False, True], ids=["first", "after-another"])
def test_a_removed_lock_does_not_let_a_second_run_in(workspace, removed, earlier):
    if earlier:
        run_once(workspace)
    with workspace.locked():
        assert (workspace.set_aside() is not None) == earlier
        workspace.open("job")
        saved(workspace, 1)
        for name in removed:
            (workspace.folder.parent / name).unlink()
        assert_in_use(Workspace(workspace.folder))
    with workspace.locked():
        pass


def test_a_lock_file_that_is_removed_while_it_is_taken_is_taken_again(workspace, lock, monkeypatch):
    real = fcntl.flock

    def removed(*args):
        monkeypatch.setattr(fcntl, "flock", real)
        real(*args)
        lock.unlink()

    monkeypatch.setattr(fcntl, "flock", removed)
    with workspace.locked():
        assert_in_use(Workspace(workspace.folder))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_said(workspace, monkeypatch, caplog, number):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, os.strerror(number))))
    with workspace.locked():
        workspace.open("job")
    assert f"cannot be locked ({os.strerror(number)})" in caplog.text and "second run" in caplog.text
    assert caplog.text.count("cannot be locked") == 1


# A link to a workspace


@pytest.fixture
def linked(tmp_path, workspace):
    """A workspace that is a link to a folder on a larger disk, and that folder."""
    (tmp_path / "scratch").mkdir()
    workspace.folder.parent.mkdir()
    workspace.folder.symlink_to(tmp_path / "scratch" / "runs")
    return workspace, tmp_path / "scratch" / "runs"


def test_a_linked_workspace_stays_a_link(linked):
    workspace, target = linked
    for n in range(3):
        workspace.check_own()
        assert run_once(workspace, n + 1, f"job {n}") == (target.with_name(f"runs-{n}") if n else None)
        assert workspace.folder.is_symlink() and (target / "job.conf").read_text() == f"job {n}"
    assert {path.name for path in target.parent.iterdir()} >= {"runs", "runs-1", "runs-2"}
    assert [path.name for path in workspace.folder.parent.iterdir() if path.is_dir()] == ["w"]
    assert str(target.with_name("runs-1")) in workspace.earlier()
    assert workspace.find(Workspace(target.with_name("runs-1")).id) == target.with_name("runs-1")


def test_a_workspace_is_locked_under_all_its_names(linked):
    workspace, target = linked
    for one, other in ((workspace, Workspace(target)), (Workspace(target), workspace)):
        with one.locked():
            assert_in_use(other)


def test_given_data_lie_where_the_link_leads(linked):
    workspace, target = linked
    assert workspace.new_data(resume=False).samefile(target / "data")
    saved(workspace, 1)
    workspace.new_data(resume=False)
    assert workspace.folder.is_symlink() and workspace.aside == target.with_name("runs-1")


@pytest.mark.parametrize("kind", ["fifo", "socket", "null"])
def test_a_workspace_that_is_no_folder(workspace, kind):
    put(kind, workspace.folder)
    with pytest.raises(ConfigError, match=f"workspace: is {CALLED[kind]}, not a folder"):
        workspace.check_own()


@pytest.mark.parametrize("resume", [True, False])
def test_what_a_killed_process_left_of_given_data_is_removed(workspace, resume):
    (workspace.new_data(resume=False) / ".training.4194305").mkdir()
    (workspace.data / "training-0123").mkdir()
    workspace.new_data(resume=resume)
    assert [path.name for path in workspace.data.iterdir()] == ["training-0123"] * resume


def test_a_parent_may_be_a_link(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    workspace = Workspace(tmp_path / "runs" / "w")
    assert [run_once(workspace), run_once(workspace)] == [None, tmp_path / "runs" / "w-1"]
    assert (tmp_path / "runs").is_symlink() and (tmp_path / "scratch" / "w-1" / "job.conf").exists()


def test_an_earlier_run_is_not_moved_onto_a_link_that_leads_to_nothing(workspace):
    run_once(workspace)
    workspace.folder.with_name("w-1").symlink_to("nowhere")  # whose target may come back
    assert workspace.set_aside() == workspace.folder.with_name("w-2")


# A folder that vanishes


class Acts(Display):
    """Calls functions at steps of the run that are told in this way."""

    def __init__(self, kind, at):
        self.kind, self.at = kind, at

    def handle(self, event):
        if event["kind"] == self.kind and event.get("phase", "train") == "train":
            self.at.get(event["step"], lambda: None)()


@pytest.fixture
def folder(tmp_path):
    """Of a run."""
    return tmp_path / "runs" / "w"


@pytest.fixture
def trains(tmp_path, folder):
    """Trains for 8 steps with checkpoints at 2, 4 ..., and calls functions at these steps."""
    labels = np.arange(60) % 2
    write_shards(tmp_path / "data", np.stack([labels, 1 - labels], 1).astype(np.float32), labels)
    layers = [RecordInput(path=str(tmp_path / "data"), batchsize=30), InnerProduct(num_output=2), SoftmaxLoss()]

    def run(at, kind="metrics", **fields):
        fields = {"train_steps": 8, "checkpoint_freq": 2, "disp_freq": 1} | fields
        job = Job(name="points", layers=layers, updater=SGD(lr=0.1), **fields)
        return train(job, processes=False, workspace=folder, display=Acts(kind, at), curves=False)

    return run


def vanish(path: Path) -> None:
    """Remove a folder into which the run may be writing."""
    for _ in range(100):
        with suppress(OSError):
            return shutil.rmtree(path)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", ["..", ".", "metrics.jsonl", "events.jsonl", "job.conf", ".run"])
def test_what_vanishes_of_a_run_is_written_whole_again_and_a_folder_is_said_once(trains, folder, caplog, name):
    vanishes = (folder / name).unlink if name[-1] != "." else partial(vanish, (folder / name).resolve())
    result = trains({3: vanishes})
    assert [row["step"] for row in lines(folder / "metrics.jsonl")] == [*range(1, 9)]
    assert [event["event"] for event in lines(folder / "events.jsonl")] == ["start", "saves"]
    assert result.workspace == folder and Job.from_file(folder / "job.conf").proto.train_steps == 8
    assert result.checkpoint.exists() and (folder / "summary.json").exists()
    assert result.summary["run"] == (folder / ".run").read_text() and len(result.summary["run"]) == 12
    if name[-1] == ".":
        assert len([record for record in caplog.records if str(folder) in record.getMessage()]) == 1
        assert "was removed" in caplog.text


def test_a_folder_that_vanishes_where_nothing_is_measured_is_written_again_at_the_end(trains, folder):
    result = trains({2: lambda: vanish(folder)}, "checkpoint", disp_freq=0)
    assert result.workspace == folder and (folder / "job.conf").exists()
    assert [event["event"] for event in lines(folder / "events.jsonl")] == ["start", "saves"]


def test_a_folder_that_vanished_stays_locked(trains, folder):
    seen = []

    def again():
        assert_in_use(Workspace(folder))
        seen.append(True)

    trains({3: lambda: vanish(folder.parent), 5: again})
    assert seen


def test_a_run_whose_folder_another_one_has_taken_ends(trains, folder):
    other = Workspace(folder)
    with ExitStack() as stack:

        def taken():
            vanish(folder.parent)
            stack.enter_context(other.locked())
            other.open("another job")

        with pytest.raises(ConfigError, match="another run has taken"):
            trains({3: taken})
    assert (folder / "job.conf").read_text() == "another job" and list(other.rows()) == []
    assert not (folder / "summary.json").exists()
