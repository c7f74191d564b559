"""The folder of a run, and its files of lines."""

import errno
import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.limits import small_disk

from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.temporary import NOT_KEPT
from singa_dask.training.checkpoint import Checkpoint, path_of, save
from singa_dask.training.line_file import LineFile
from singa_dask.training.workspace import Workspace


def measured(workspace):
    return [(row["phase"], row["step"]) for row in workspace.rows()]


@pytest.fixture
def workspace(tmp_path):
    """A workspace in which a run measured three steps and saved one."""
    made = Workspace(tmp_path / "a" / "b")
    made.open("job")
    for step in (1, 2, 3):
        made.append({"group": 0, "phase": "test", "step": step})
        made.append({"group": 0, "phase": "train", "step": step})
    (made.checkpoints / "step-00000002.h5").write_text("x")
    return made


@pytest.mark.parametrize(("step", "kept"), [(2, [("test", 1), ("train", 1), ("train", 2)]), (None, [])])
def test_a_resumed_run_keeps_what_it_will_not_measure_again(workspace, step, kept):
    workspace.open("job 2", resumes=True)
    assert len(measured(workspace)) == 6, "the memory of its workers may be of a later step"
    workspace.rewind(step)
    assert measured(workspace) == kept
    assert list(workspace.checkpoints.iterdir()) and workspace.job.read_text() == "job 2"


def test_a_resumed_run_gives_back_the_room_of_what_was_not_saved_to_its_end(workspace, monkeypatch):
    for module, name in ((os, "replace"), (Path, "unlink")):
        monkeypatch.setattr(module, name, Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        save(Checkpoint(3, 0, "", {}), path_of(workspace.checkpoints, 3))
    monkeypatch.undo()
    names = {path.name for path in workspace.checkpoints.iterdir()}
    assert len(names) == 2
    workspace.open("job", resumes=True)
    assert {path.name for path in workspace.checkpoints.iterdir()} == names & {"step-00000002.h5"}


def test_a_folder_with_files_of_others_is_left_alone(workspace, tmp_path):
    workspace.check_own()
    Workspace(tmp_path / "new").check_own()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".gitkeep").touch()
    Workspace(tmp_path / "mine").check_own()
    (tmp_path / "mine" / "job.conf").write_text("# mine")
    with pytest.raises(
        ConfigError, match=r"workspace: .*mine holds files that are not from a run. Received: job.conf"
    ):
        Workspace(tmp_path / "mine").check_own()


def test_a_fresh_run_loses_nothing_of_the_one_before(workspace):
    folder = workspace.folder
    assert workspace.set_aside() == folder.with_name("b-1")
    assert not folder.exists()
    assert str(folder.with_name("b-1")) in workspace.earlier()
    workspace.open("a run that saves nothing")
    assert workspace.set_aside() is None
    (workspace.checkpoints / "step-00000001.h5").write_text("x")
    assert workspace.set_aside() == folder.with_name("b-2")
    assert len(measured(Workspace(folder.with_name("b-1")))) == 6
    assert (folder.with_name("b-1") / "checkpoint" / "step-00000002.h5").exists()


def test_one_run_at_a_time(workspace):
    with workspace.locked():
        other = Workspace(workspace.folder)
        with pytest.raises(ConfigError, match=r"another run is using it.*/a/b.*--workspace"), other.locked():
            pass
        with Workspace(workspace.folder.with_name("c")).locked():
            pass
    with workspace.locked():
        pass


def new_data(workspace):
    return workspace.new_data(resume=False)


def resumed_data(workspace):
    return workspace.new_data(resume=True)


def locked(workspace):
    workspace.locked().__enter__()


@pytest.mark.parametrize("acts", [new_data, resumed_data, locked])
@pytest.mark.parametrize("opens", [new_data, resumed_data])
def test_a_workspace_with_given_data_is_locked_until_the_run_ends(workspace, opens, acts):
    other = Workspace(workspace.folder)
    with workspace.restored_if_refused():
        data = opens(workspace)
        (data / "shards").mkdir()
        there = set(workspace.folder.parent.iterdir())
        for _ in "before", "after":
            with pytest.raises(ConfigError, match="another run is using it"):
                acts(other)
            with workspace.locked():
                pass
        assert (data / "shards").is_dir() and set(workspace.folder.parent.iterdir()) == there
    with other.restored_if_refused():
        assert resumed_data(other) == data


def test_the_run_that_new_data_moves_is_not_in_use(workspace):
    (workspace.checkpoints / "step-00000001.h5").write_text("x")
    with workspace.restored_if_refused():
        workspace.new_data(resume=False)
        assert not Workspace(workspace.aside).in_use()


def test_a_run_without_a_workspace_says_how_to_keep_its_files(tmp_path):
    folder = tmp_path / f"{NOT_KEPT}x" / "run"
    with pytest.raises(CheckpointError, match=r"keeps no files.*workspace='runs/name'.*summary"):
        Workspace(folder).find("0123456789ab")


def test_a_line_cut_short_is_left_out(workspace):
    with open(workspace.metrics, "a") as file:
        file.write('{"phase": "train", "step": 4')
    assert len(measured(workspace)) == 6


def test_a_resumed_run_keeps_its_events_and_a_new_one_has_none(workspace):
    assert workspace.told() == []
    workspace.tell("start", step=0)
    with open(workspace.events, "a") as file:
        file.write('{"event": "restart", "st')
    workspace.open("job", resumes=True)
    workspace.tell("start", step=2)
    assert workspace.told() == [{"event": "start", "step": 0}, {"event": "start", "step": 2}]
    workspace.open("job")
    assert workspace.told() == []


def test_the_summary_is_json(workspace):
    assert workspace.read_summary() == ({}, [])
    workspace.write_summary({"status": "completed", "groups": {}})
    assert workspace.read_summary() == ({"status": "completed", "groups": {}}, [])
    assert json.loads(workspace.summary.read_text()) == {"status": "completed", "groups": {}}
    assert sorted(p.name for p in workspace.folder.iterdir()) == [
        ".run",
        "checkpoint",
        "events.jsonl",
        "job.conf",
        "metrics.jsonl",
        "summary.json",
    ]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    blocked = Workspace(tmp_path / "file" / "x")
    for act in (lambda: blocked.open(""), lambda: blocked.locked().__enter__()):
        with pytest.raises(ConfigError, match=r"workspace: cannot be written .*file/x.* --workspace"):
            act()


def test_the_probe_of_a_driver_that_was_killed_is_removed(tmp_path):
    run = Workspace(tmp_path / "run")
    run.open("job")
    (run.folder / ".probe-1a2b").touch()
    run.open("job", resumes=True)
    assert not (run.folder / ".probe-1a2b").exists() and run.job.exists()


def numbers(lines):
    return [row["n"] for row in lines.rows()]


def test_lines_that_cannot_be_written_come_later_and_in_order(tmp_path):
    lines = LineFile(tmp_path / "lines.jsonl")
    lines.append({"n": 1})
    with small_disk(lines.path.stat().st_size + 3):
        for n in (2, 3):
            lines.append({"n": n})
    assert lines.fault.errno == errno.EFBIG and numbers(lines) == [1, 2, 3]
    assert numbers(LineFile(lines.path)) == [1], "half a line does not stay"
    lines.append({"n": 4})
    assert lines.fault is None and numbers(LineFile(lines.path)) == [1, 2, 3, 4]


def test_lines_that_are_replaced_while_the_disk_is_full_are_replaced_later(tmp_path):
    lines = LineFile(tmp_path / "lines.jsonl")
    for n in range(3):
        lines.append({"n": n})
    with small_disk(3):
        lines.replace([{"n": 0}])
        lines.append({"n": 7})
    assert numbers(lines) == [0, 7] and numbers(LineFile(lines.path)) == [0, 1, 2]
    lines.write()
    assert lines.fault is None and numbers(LineFile(lines.path)) == [0, 7]
    assert [path.name for path in tmp_path.iterdir()] == ["lines.jsonl"]


def test_a_line_that_is_too_long_is_left_out_whatever_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr("singa_dask.training.line_file.MAX_LINE_NBYTES", 20)
    path = tmp_path / "lines.jsonl"
    lengths = (19, 20, 21, 39, 40, 41, 60)  # with the line's end
    path.write_text("".join('{"n": %d}'.ljust(each - 1) % each + "\n" for each in lengths))
    rows, faults = LineFile(path).read()
    assert [row["n"] for row in rows] == [19, 20]
    assert faults == [f"{path}: line 3 and 4 more are damaged, and left out"]
    with open(path, "a") as file:
        file.write(" " * 50)
    assert len(LineFile(path).read()[0]) == 2


def test_half_a_last_line_is_passed_over(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 1}\n{"n"')
    assert numbers(LineFile(path)) == [1] and list(LineFile(tmp_path / "none").rows()) == []
