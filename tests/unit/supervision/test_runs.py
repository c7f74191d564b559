"""Lists and comparisons of runs, from recorded summaries."""

from __future__ import annotations

import fcntl
import json
import os

import pytest
from click.testing import CliRunner

from singa_dask.cli import main
from singa_dask.errors import ConfigError
from singa_dask.supervision.runs import RunRecord, differences, runs_in
from singa_dask.training.workspace import Workspace

JOB = """name: "digits"
train_steps: {steps}
cluster {{ nworkers_per_group: 2 nservers_per_group: 2 }}
updater {{ type: kSGD learning_rate {{ type: kFixed base_lr: {rate} }} }}
neuralnet {{ layer {{ name: "ip" type: kInnerProduct innerproduct_conf {{ num_output: 10 bias_term: false }} }} }}
"""


@pytest.fixture
def record(tmp_path):
    """Writes the folder of a run."""

    def write(name, steps=100, rate=0.1, rows=(), **summary):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "job.conf").write_text(JOB.format(steps=steps, rate=rate))
        (folder / ".run").write_text("0123456789ab")
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if summary:
            own = {"job": "digits", "strategy": "allreduce", "groups": {}, "step": steps, "train_steps": steps}
            (folder / "summary.json").write_text(json.dumps({**own, **summary}))
        return RunRecord(Workspace(folder))

    return write


def measured(step, loss, phase="train", group=0, **more):
    return {"group": group, "phase": phase, "step": step, "loss": loss, **more}


def test_what_a_summary_tells(record):
    run = record("a", status="completed", samples_per_s=1234.5, began=60.0, test={"loss": 0.5}, train={"loss": 0.4})
    assert (run.state, run.name, run.strategy, run.steps) == ("completed", "digits", "allreduce", (100, 100))
    assert (run.samples_per_s, run.began, run.result) == (1234.5, 60.0, ("test", {"loss": 0.5}))


@pytest.mark.parametrize("active", [True, False])
def test_a_run_without_a_summary_is_running_or_lost(record, active):
    rows = [
        measured(10, 2.0, samples_per_s=5.0),
        measured(30, 9.0, group=1, samples_per_s=7.0),
        measured(20, 1.0, samples_per_s=6.0),
        measured(20, 1.5, "validate"),
    ]
    run = record("a", rows=rows)
    with open(run.workspace.folder / ".run") as file:
        if active:
            fcntl.flock(file, fcntl.LOCK_EX)
        run = RunRecord(run.workspace)
    assert run.state == ("running" if active else "lost")
    assert (run.name, run.strategy, run.steps, run.samples_per_s) == ("digits", "allreduce", (20, 100), 6.0)
    assert run.result == ("validate", {"loss": 1.5}) and run.began == os.stat(run.workspace.job).st_mtime


def test_a_run_that_resumes_is_running_though_it_has_an_old_summary(record):
    run = record("a", status="interrupted", rows=[measured(10, 2.0)])
    assert run.state == "interrupted"
    with run.workspace.locked():
        resumed = RunRecord(Workspace(run.workspace.folder))
        assert (resumed.state, resumed.steps) == ("running", (10, 100))


def test_runs_are_sorted_by_their_beginning_and_others_are_passed_over(record, tmp_path):
    for name, began in (("a", 30.0), ("b", 10.0), ("c", 20.0)):
        record(name, status="completed", began=began)
    (tmp_path / "runs" / "no-run").mkdir()
    assert [run.workspace.folder.name for run in runs_in(tmp_path / "runs")] == ["b", "c", "a"]
    assert [run.began for run in runs_in(tmp_path / "runs" / "a")] == [30.0]
    with pytest.raises(ConfigError, match=r"FOLDER: there is no folder .*/nothing. Give the folder that holds"):
        runs_in(tmp_path / "nothing")


def test_in_what_runs_differ(record):
    same = {"status": "completed", "overflows": 0}
    a = record(
        "a", data={"train/data": "x1"}, versions={"numpy": "2.1"}, samples_per_s=10.0, test={"loss": 0.5}, **same
    )
    b = record("b", 300, 0.01, data={"train/data": "x2"}, versions={"numpy": "2.1"}, samples_per_s=1e4, **same)
    assert [(each.kind, each.key, each.values) for each in differences([a, b])] == [
        ("job", "updater.learning_rate.base_lr", ("0.1", "0.01")),
        ("job", "train_steps", ("100", "300")),
        ("data", "train/data", ("x1", "x2")),
        ("result", "step", ("100 of 100", "300 of 300")),
        ("result", "test loss", ("0.5000", None)),
        ("result", "samples_per_s", ("10.0", "10,000.0")),
    ]
    assert differences([a, a]) == []


def test_the_commands(record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["runs"]).exit_code == 2
    rows = [measured(step, 1 / step) for step in (1, 2, 3)]
    record("a", status="completed", samples_per_s=1234.5, test={"loss": 0.5}, rows=[*rows, measured(3, 0.5, "test")])
    record("b", 300, status="failed", step=7, rows=rows)
    (record("torn", status="completed").workspace.folder / "job.conf").write_text("name: ")
    (tmp_path / "runs" / "torn" / "summary.json").write_text("{")
    done = CliRunner().invoke(main, ["runs"])
    assert done.exit_code == 0
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert rows["runs/a"][1:6] == ["digits", "allreduce", "completed", "100/100", "1,234"]
    assert rows["runs/a"][-3:] == ["test", "loss", "0.5000"] and rows["runs/b"][3:5] == ["failed", "7/300"]
    assert rows["runs/torn"][1] == "damaged" and "summary.json: is damaged, and left out." in done.stderr
    compared = CliRunner().invoke(main, ["compare", "a", "b", "--out", "both.svg"])
    assert compared.exit_code == 0
    assert ["job", "train_steps", "100", "300"] in [line.split() for line in compared.stdout.splitlines()]
    picture = (tmp_path / "both.svg").read_text()
    assert picture.startswith("<?xml") and "</svg>" in picture
    for wrong, says in (
        (["a"], "two runs or more"),
        (["a", "a"], "given twice"),
        (["a", "x"], "there is no x or runs/x"),
        (["a", "b", "--out", "x.pdf"], "Use --out x.svg"),
    ):
        done = CliRunner().invoke(main, ["compare", *wrong])
        assert done.exit_code == 2 and says in done.stderr
