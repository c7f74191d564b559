"""What an audit says of the files of a run."""

import json
import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from singa_dask.errors import CheckpointError, ConfigError
from singa_dask.monitor.audit_table import print_audit
from singa_dask.supervision.audit import audit
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

    def end(self, *steps, status="completed"):
        """steps: of each worker group."""
        groups = {group: {"step": step} for group, step in enumerate(steps)}
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


def missing(made):
    """By group, what is missing: steps, whether some parameters contain it, and the group that explains it, if any."""
    return {
        group.group: [
            (gap.first, gap.stop, gap.partly, re.findall(r"(?:worker|server) group \d", gap.why) or bool(gap.why))
            for gap in group.missing
        ]
        for group in made.groups
        if group.missing
    }


def test_a_run_that_lost_nothing_is_clean(run):
    run.save(50, [[2, 0, [whole(0, 0, 50)]]])
    run.save(100, [[2, 0, [whole(0, 0, 100), whole(1, 0, 90)]]])
    run.end(100, 90)
    made = run.audit()
    assert (made.step, made.status, made.clean) == (100, "completed", True)
    told = [(g.group, g.start, g.trained, g.contained) for g in made.groups]
    assert told == [(0, 0, 100, ((0, 100),)), (1, 0, 90, ((0, 90),))]
    assert made.verdict == str(made) == "clean: 190 mini-batches contained once"
    assert text_of(made)[2:] == [
        "group  trained  contained  missing  twice",
        "0      0-99     0-99       -        -",
        "1      0-89     0-89       -        -",
        "",
        made.verdict,
    ]
    told = json.loads(made.to_json())
    assert told["clean"] and told["groups"][1]["assignment"] == {"groups": 2, "first": 0}


@pytest.mark.parametrize(
    ("of", "gaps", "verdict"),
    [
        (whole(0, 0, 40, 45, 100), [(40, 45, False)], "not clean: 95 mini-batches contained once, 5 mini-batches"),
        (whole(0, 0, 97), [(97, 100, False)], "not clean: 97 mini-batches contained once, 3 mini-batches"),
        (whole(0, 1, 100), [(0, 1, False)], "not clean: 99 mini-batches contained once, 1 mini-batch missing"),
        ([0, [0, 40, 41, 100], [0, 100], []], [(40, 41, True)], "not clean: 99 mini-batches contained once, 1 mini"),
        ([0, [0, 100], [0, 100], [7, 9]], [], "not clean: 100 mini-batches contained, 2 mini-batches more than once"),
    ],
)
def test_what_is_missing_without_a_reason_or_twice_is_a_fault(run, of, gaps, verdict):
    run.save(100, [[1, 0, [of]]])
    run.end(100)
    made = run.audit()
    assert not made.clean and made.verdict.startswith(verdict)
    assert missing(made) == ({0: [(*gap, False) for gap in gaps]} if gaps else {})
    assert any("no reason is known" in line for line in text_of(made)) == bool(gaps)


def restart(step, *groups, servers=()):
    return "restart", {"groups": groups, "step": step, "cause": "it died", "servers": servers}


def begun(group, *steps):
    return "begun", {"group": group, "steps": list(enumerate(steps))}


ALL, RAGGED = whole(0, 0, 100), [1, [0, 20, 30, 60, 61, 100], [0, 20, 30, 100], []]
PARTLY = [1, [0, 48, 49, 100], [0, 100], []]
GROUP_1, SERVERS_1 = ["worker group 1"], ["server group 1"]
# What two worker groups have made and what is told of a run: what is missing.
LOSSES = {
    "a group of which nothing is contained is missed": ([ALL], [], {1: [(0, 100, False, False)]}),
    "a restart explains what its groups lost until then and nothing else": (
        [ALL, RAGGED],
        [restart(58, 1)],
        {1: [(20, 30, False, False), (60, 61, True, GROUP_1)]},
    ),
    "a restart explains nothing that its groups made later": (
        [ALL, whole(1, 0, 60, 61, 80, 81, 100)],
        [restart(58, 1), begun(1, 63, 61)],
        {1: [(60, 61, False, GROUP_1), (80, 81, False, False)]},
    ),
    "groups that are lost together begin one after the other": (
        [whole(0, 0, 60, 61, 100), whole(1, 0, 58, 59, 100)],
        [restart(57, 0, 1), begun(0, 61, 57), begun(1, 66, 59)],
        {0: [(60, 61, False, ["worker group 0"])], 1: [(58, 59, False, GROUP_1)]},
    ),
    "a lost server group explains nothing that other groups made later": (
        [whole(0, 0, 80, 81, 90, 91, 100), whole(1, 0, 100)],
        [restart(84, 1, servers=[1]), begun(1, 86, 85)],
        {0: [(80, 81, False, SERVERS_1), (90, 91, False, False)]},
    ),
    "a lost server group explains what its neighbours' groups lost": (
        [whole(0, 0, 90, 92, 100), whole(1, 0, 80, 85, 100)],
        [restart(84, 1, servers=[1])],
        {0: [(90, 92, False, SERVERS_1)], 1: [(80, 85, False, GROUP_1)]},
    ),
    "a checkpoint during training explains what only some parameters contain": (
        [ALL, PARTLY],
        [("start", {"step": 50}), restart(70, 0, 1, servers=[0])],
        {1: [(48, 49, True, True)]},
    ),
    "so does a return to it": (
        [ALL, PARTLY],
        [("rewound", {"step": 50, "groups": [0, 1]}), restart(70, 0, 1, servers=[0])],
        {1: [(48, 49, True, True)]},
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_what_is_missing_is_explained(run, case):
    made, told, expected = LOSSES[case]
    run.save(100, [[2, 0, made]])
    run.end(100, 100)
    for event, about in told:
        run.workspace.tell(event, **about)
    audited = run.audit()
    assert missing(audited) == expected
    assert audited.clean == all(why for gaps in expected.values() for *_, why in gaps)


def test_a_restart_does_not_explain_what_a_single_group_lacks(run):
    run.save(100, [[1, 0, [whole(0, 0, 60, 61, 100)]]])
    run.end(100)
    run.workspace.tell("restart", groups=[0], step=58, cause="its process died", servers=[])
    assert missing(run.audit()) == {0: [(60, 61, False, False)]}


@pytest.mark.parametrize("status", ["unfinished", "failed", "interrupted"])
def test_what_was_trained_after_the_newest_checkpoint_of_a_broken_run_is_explained(run, status):
    run.save(50, [[1, 0, [[0, [0, 49], [0, 50], []]]]])
    run.trains(0, 40, 60)
    if status != "unfinished":
        run.end(status=status)
    made = run.audit()
    assert made.clean and missing(made) == {0: [(49, 50, True, True), (50, 60, False, True)]}
    assert {gap.why for gap in made.groups[0].missing} == {f"not in the newest checkpoint of a run that is {status}"}


def test_the_reasons_are_told(run):
    run.save(100, [[2, 0, [whole(0, 0, 90, 92, 100), [1, [0, 48, 49, 80, 85, 100], [0, 80, 85, 100], []]]]])
    run.end(100, 100)
    for event, about in (("start", {"step": 50}), restart(84, 1, servers=[1]), begun(1, 101, 86)):
        run.workspace.tell(event, **about)
    text = "\n".join(text_of(run.audit()))
    assert "group 0, 90-91: missing: server group 1 was lost, with updates that no other had: it died" in text
    assert "worker group 1 was restarted at step 84: it died" in text
    assert text.endswith("8 mini-batches missing for the reasons above")
    run.workspace.events.write_text('{"event": "start", "step": 50}\n')
    assert "the run resumed from a checkpoint that was made during training (step 50)" in str(run.audit().groups)


def test_a_group_that_joined_is_missed_from_its_first_step_on(run):
    run.save(100, [[1, 0, [ALL, whole(1, 62, 100)]]])
    run.trains(1, 62, 70, 80)
    run.trains(2, 71, 80)
    run.end(100, 100, 90)
    made = run.audit()
    assert [(group.start, group.trained) for group in made.groups[1:]] == [(61, 100), (70, 90)]
    assert missing(made) == {1: [(61, 62, False, False)], 2: [(70, 90, False, False)]}


def test_every_deal_of_a_resumed_run_is_on_its_own(run):
    """Two groups, of which group 1 is ahead, then one, then two again."""
    assignments = [[2, 0, [whole(0, 0, 50), whole(1, 0, 55)]], [1, 50, [whole(0, 50, 52)]]]
    run.save(80, [*assignments, [2, 52, [whole(0, 52, 80), whole(1, 55, 80)]]])
    run.trains(1, 50)
    run.end(80, 80)
    made = run.audit()
    assert made.clean and not missing(made)
    assert [(g.assignment.groups, g.group, g.start, g.trained) for g in made.groups] == [
        (2, 0, 0, 50),
        (2, 1, 0, 55),
        (1, 0, 50, 52),
        (2, 0, 52, 80),
        (2, 1, 55, 80),
    ]
    assert "1 of 2  55-79    55-79      -        -" in text_of(made)


def test_a_run_is_found_by_its_folder_and_its_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run.save(1, [[1, 0, [whole(0, 0, 1)]]])
    assert audit("run").workspace == run.workspace.folder
    Workspace(tmp_path / "runs" / "small").open("job")
    with pytest.raises(CheckpointError, match="runs/small/checkpoint: no valid checkpoint to audit"):
        audit("small")
    Workspace(tmp_path / "runs" / "small").tell("saves", host="nodeb")
    with pytest.raises(CheckpointError, match="nodeb"):
        audit("small")
    with pytest.raises(ConfigError, match="RUN: there is no other or runs/other; expected"):
        audit("other")


def test_a_checkpoint_without_a_ledger_cannot_be_audited(run):
    save(Checkpoint(3, 0, "", {"w": np.zeros(1)}), path_of(run.workspace.checkpoints, 3))
    with pytest.raises(CheckpointError, match=r"step-00000003.h5: has no ledger"):
        run.audit()
