"""What an audit says of the files of a run."""

from __future__ import annotations

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.monitor.audit_table import print_audit
from singa_dask.supervision.audit import Missing, audit
from singa_dask.training.checkpoint import Checkpoint, path_of, save
from singa_dask.training.workspace import Workspace


class Run:
    """The folder of a run that played."""

    def __init__(self, folder):
        self.workspace = Workspace(folder)
        self.workspace.open("job")
        self.workspace.tell("start", step=0)

    def save(self, step, encoded):
        rows = np.frombuffer(json.dumps(encoded).encode(), np.uint8)[None]
        save(Checkpoint(step, 0, "", {"w": np.zeros(1)}, ledgers=rows), path_of(self.workspace.checkpoints, step))

    def end(self, status="completed", **steps):
        groups = {group[1:]: {"step": step} for group, step in steps.items()}
        self.workspace.write_summary({"status": status, "groups": groups})

    def trains(self, group, *steps):
        for step in steps:
            self.workspace.append({"group": group, "phase": "train", "step": step})

    def audit(self):
        return audit(self.workspace.folder)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run")


def whole(group, *bounds):
    return [group, list(bounds), list(bounds), []]


def text_of(made):
    console = Console(file=StringIO(), width=119)
    print_audit(console, made)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_run_that_lost_nothing_is_clean(run):
    run.save(50, [[2, 0, [whole(0, 0, 50)]]])
    run.save(100, [[2, 0, [whole(0, 0, 100), whole(1, 0, 90)]]])
    run.end(g0=100, g1=90)
    made = run.audit()
    assert (made.step, made.status, made.clean) == (100, "completed", True)
    assert [(g.group, g.start, g.trained, g.contained) for g in made.groups] == [
        (0, 0, 100, ((0, 100),)),
        (1, 0, 90, ((0, 90),)),
    ]
    assert made.verdict == str(made) == "clean: 190 mini-batches contained once"
    assert text_of(made)[2:] == [
        "group  trained  contained  missing  twice",
        "0      0-99     0-99       -        -",
        "1      0-89     0-89       -        -",
        "",
        made.verdict,
    ]
    told = json.loads(made.to_json())
    assert told["clean"] and told["groups"][1]["deal"] == {"groups": 2, "first": 0}


@pytest.mark.parametrize(
    ("of", "missing", "verdict"),
    [
        (
            whole(0, 0, 40, 45, 100),
            [(40, 45, False)],
            "not clean: 95 mini-batches contained once, 5 mini-batches missing",
        ),
        (whole(0, 0, 97), [(97, 100, False)], "not clean: 97 mini-batches contained once, 3 mini-batches missing"),
        (whole(0, 1, 100), [(0, 1, False)], "not clean: 99 mini-batches contained once, 1 mini-batch missing"),
        (
            [0, [0, 40, 41, 100], [0, 100], []],
            [(40, 41, True)],
            "not clean: 99 mini-batches contained once, 1 mini-batch",
        ),
        ([0, [0, 100], [0, 100], [7, 9]], [], "not clean: 100 mini-batches contained, 2 mini-batches more than once"),
    ],
)
def test_what_is_missing_without_a_reason_or_twice_is_a_fault(run, of, missing, verdict):
    run.save(100, [[1, 0, [of]]])
    run.end(g0=100)
    made = run.audit()
    assert not made.clean and made.verdict.startswith(verdict)
    assert made.groups[0].missing == tuple(Missing(*gap, "") for gap in missing)
    assert any("no reason is known" in line for line in text_of(made)) == bool(missing)


def test_a_group_of_which_nothing_is_contained_is_missed(run):
    run.save(100, [[2, 0, [whole(0, 0, 100)]]])
    run.end(g0=100, g1=100)
    assert run.audit().groups[1].missing == (Missing(0, 100, partly=False, why=""),)


def test_a_restart_explains_what_its_groups_lost_until_then_and_nothing_else(run):
    run.save(100, [[2, 0, [whole(0, 0, 100), [1, [0, 20, 30, 60, 61, 100], [0, 20, 30, 100], []]]]])
    run.end(g0=100, g1=100)
    run.workspace.tell("restart", groups=[1], step=58, cause="its process died", servers=[])
    before, partly = run.audit().groups[1].missing
    assert before == Missing(20, 30, partly=False, why="")
    assert partly == Missing(60, 61, partly=True, why="worker group 1 was restarted at step 58: its process died")


def test_a_restart_explains_nothing_that_its_groups_made_later(run):
    bounds = [0, 60, 61, 80, 81, 100]
    run.save(100, [[2, 0, [whole(0, 0, 100), whole(1, *bounds)]]])
    run.end(g0=100, g1=100)
    run.workspace.tell("restart", groups=[1], step=58, cause="its process died", servers=[])
    run.workspace.tell("begun", group=1, steps=[[0, 63], [1, 61]])
    lost, later = run.audit().groups[1].missing
    assert lost.why == "worker group 1 was restarted at step 58: its process died"
    assert later == Missing(80, 81, partly=False, why="")


def test_groups_that_are_lost_together_begin_one_after_the_other(run):
    run.save(100, [[2, 0, [whole(0, 0, 60, 61, 100), whole(1, 0, 58, 59, 100)]]])
    run.end(g0=100, g1=100)
    run.workspace.tell("restart", groups=[0, 1], step=57, cause="their host died", servers=[])
    run.workspace.tell("begun", group=0, steps=[[0, 61], [1, 57]])
    run.workspace.tell("begun", group=1, steps=[[0, 66], [1, 59]])
    assert run.audit().clean


def test_a_restart_does_not_explain_what_a_single_group_lacks(run):
    run.save(100, [[1, 0, [whole(0, 0, 60, 61, 100)]]])
    run.end(g0=100)
    run.workspace.tell("restart", groups=[0], step=58, cause="its process died", servers=[])
    assert run.audit().groups[0].missing == (Missing(60, 61, partly=False, why=""),)


def test_a_lost_server_group_explains_nothing_that_other_groups_made_later(run):
    run.save(100, [[2, 0, [whole(0, 0, 80, 81, 90, 91, 100), whole(1, 0, 100)]]])
    run.end(g0=100, g1=100)
    run.workspace.tell("restart", groups=[1], step=84, cause="it died", servers=[1])
    run.workspace.tell("begun", group=1, steps=[[0, 86], [1, 85]])
    lost, later = run.audit().groups[0].missing
    assert lost.why.startswith("server group 1 was lost") and later == Missing(90, 91, partly=False, why="")


def test_a_lost_server_group_explains_what_its_neighbours_groups_lost(run):
    run.save(100, [[2, 0, [whole(0, 0, 90, 92, 100), whole(1, 0, 80, 85, 100)]]])
    run.end(g0=100, g1=100)
    run.workspace.tell("restart", groups=[1], step=84, cause="it died", servers=[1])
    made = run.audit()
    assert made.clean and made.verdict.endswith("7 mini-batches missing for the reasons above")
    assert [gap.why for group in made.groups for gap in group.missing] == [
        "server group 1 was lost, with updates that no other had: it died",
        "worker group 1 was restarted at step 84: it died",
    ]
    assert "group 0, 90-91: missing: server group 1 was lost, with updates that no other had: it died" in text_of(made)


@pytest.mark.parametrize("status", ["unfinished", "failed", "interrupted"])
def test_what_was_trained_after_the_newest_checkpoint_of_a_broken_run_is_explained(run, status):
    run.save(50, [[1, 0, [[0, [0, 49], [0, 50], []]]]])
    run.trains(0, 40, 60)
    if status != "unfinished":
        run.end(status)
    made = run.audit()
    why = f"not in the newest checkpoint of a run that is {status}"
    assert made.clean and made.groups[0].missing == (Missing(49, 50, True, why), Missing(50, 60, False, why))


def test_a_group_that_joined_is_missed_from_its_first_step_on(run):
    run.save(100, [[1, 0, [whole(0, 0, 100), whole(1, 62, 100)]]])
    run.trains(1, 62, 70, 80)
    run.trains(2, 71, 80)
    run.end(g0=100, g1=100, g2=90)
    groups = run.audit().groups
    assert [(g.start, g.trained, g.missing) for g in groups[1:]] == [
        (61, 100, (Missing(61, 62, partly=False, why=""),)),
        (70, 90, (Missing(70, 90, partly=False, why=""),)),
    ]


def test_every_deal_of_a_resumed_run_is_on_its_own(run):
    """Two groups, of which group 1 is ahead, then one, then two again."""
    deals = [[2, 0, [whole(0, 0, 50), whole(1, 0, 55)]], [1, 50, [whole(0, 50, 52)]]]
    run.save(80, [*deals, [2, 52, [whole(0, 52, 80), whole(1, 55, 80)]]])
    run.trains(1, 50)
    run.end(g0=80, g1=80)
    made = run.audit()
    assert made.clean and not any(group.missing for group in made.groups)
    assert [(g.deal.groups, g.group, g.start, g.trained) for g in made.groups] == [
        (2, 0, 0, 50),
        (2, 1, 0, 55),
        (1, 0, 50, 52),
        (2, 0, 52, 80),
        (2, 1, 55, 80),
    ]
    assert "1 of 2  55-79    55-79      -        -" in text_of(made)


@pytest.mark.parametrize("event", [{"event": "start"}, {"event": "rewound", "groups": [0, 1]}])
def test_a_checkpoint_during_training_explains_what_only_some_parameters_contain(run, event):
    run.workspace.tell(step=50, **event)
    run.workspace.tell("restart", groups=[0, 1], step=70, cause="the host died", servers=[0])
    run.save(80, [[2, 0, [whole(0, 0, 80), [1, [0, 48, 49, 80], [0, 80], []]]]])
    run.end(g0=80, g1=80)
    why = "the run went on from a checkpoint that was made during training (step 50)"
    assert run.audit().groups[1].missing == (Missing(48, 49, partly=True, why=why),)


def test_a_run_is_found_by_its_folder_its_name_and_its_result(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run.save(1, [[1, 0, [whole(0, 0, 1)]]])
    Workspace(tmp_path / "runs" / "small").open("job")
    with pytest.raises(CheckpointError, match="runs/small/checkpoint: no valid checkpoint to audit"):
        audit("small")
    Workspace(tmp_path / "runs" / "small").tell("saves", host="nodeb")
    with pytest.raises(
        CheckpointError, match=r"to audit\. The last one was saved on host nodeb, and is not here: run"
    ):
        audit("small")
    assert audit("run").workspace == run.workspace.folder
    with pytest.raises(ConfigError, match="RUN: neither other nor runs/other is the folder of a run"):
        audit("other")


def test_a_checkpoint_without_a_ledger_cannot_be_audited(run):
    save(Checkpoint(3, 0, "", {"w": np.zeros(1)}), path_of(run.workspace.checkpoints, 3))
    with pytest.raises(CheckpointError, match=r"step-00000003.h5: has no ledger"):
        run.audit()
