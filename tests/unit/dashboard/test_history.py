"""What is known of runs from their events, and that it stays bounded."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singa_dask.dashboard.history import MARKS, ROWS, ROWS_AFTER, RUNS, Mark, Row, RunHistory


def start(group, step=0, groups=2):
    return {"kind": "start", "group": group, "step": step, "steps": 600, "groups": groups}


def progress(group, step, *, server=None, sent=0.0, ranks=2, kind="progress", **metrics):
    shares = {"wait": [0.25] * ranks, "loading": [0.1] * ranks}
    event = {"kind": kind, "group": group, "step": step, "metrics": metrics, "samples_per_s": 50.0, "sent": sent}
    return event | shares | ({} if server is None else {"server": server})


def test_measurements_become_rows_and_evaluations(begin):
    run = begin()
    assert (run.state, run.step, run.active) == ("starting", 0, True)
    run.take(start(0), 101.0)
    run.take(progress(0, 4, loss=2.0, accuracy=0.5), 102.0)
    run.take(progress(0, 6, sent=10.0, server={"staleness": 1.5, "bytes": 100.0}, loss=1.0), 103.0)
    run.take({"kind": "metrics", "group": 0, "phase": "test", "step": 6, "metrics": {"loss": 0.5}}, 104.0)
    assert run.rows == [
        Row(2.0, 0, 4, {"loss": 2.0, "accuracy": 0.5}, starts=True, samples_per_s=50.0),
        Row(3.0, 0, 6, {"loss": 1.0}, samples_per_s=50.0, staleness=1.5, nbytes=120.0),
    ]
    assert run.latest[0].wait == (0.25, 0.25) and run.latest[0].loading == (0.1, 0.1)
    assert [(row.phase, row.at, row.metrics) for row in run.evaluations] == [("test", 4.0, {"loss": 0.5})]
    assert (run.state, run.step, run.metrics, run.result) == ("running", 6, ["loss", "accuracy"], "test loss 0.5000")


def test_a_metric_without_a_value_is_left_out(begin):
    run = begin()
    run.take(progress(0, 1, loss=math.nan, accuracy=math.inf), 101.0)
    assert run.rows[0].metrics == {} and run.metrics == []


def test_what_happens_is_marked_with_its_time(begin):
    run = begin()
    for now, event in (
        (101, start(0)),
        (102, start(1)),
        (103, {"kind": "restart", "groups": (1,), "step": 8, "cause": "its process died"}),
        (104, start(1, 8)),
        (105, start(2, 9)),
        (106, {"kind": "checkpoint", "group": 0, "step": 9, "path": "x"}),
        (107, {"kind": "decision", "group": 0, "step": 9, "text": "learning rate reduced to 0.1"}),
        (108, {"kind": "end", "group": 2, "step": 9, "record": {}}),
    ):
        run.take(event, now)
    assert [*run.marks] == [
        Mark(3, "restart", "step 8, group 1: its process died"),
        Mark(4, "back", "group 1 is back at step 8"),
        Mark(5, "join", "group 2 joins at step 9"),
        Mark(6, "checkpoint", "checkpoint of step 9"),
        Mark(7, "note", "step 9: learning rate reduced to 0.1"),
        Mark(8, "end", "group 2 ends at step 9"),
    ]
    assert run.restarts == 1


def test_no_line_leads_over_a_restart(begin):
    run = begin()
    for now, event in ((101, start(0)), (102, progress(0, 1)), (103, start(0)), (103.1, progress(0, 1))):
        run.take(event, now)
    assert [row.starts for row in run.rows] == [True, True]


@given(st.integers(1, 70), st.lists(st.integers(0, 400), max_size=8), st.floats(0.01, 3.0))
def test_a_run_keeps_a_bounded_part_of_each_line(groups, restarts, every_s):
    """Each group's line begins where it began, goes forward, and is broken where the group began anew."""
    run = RunHistory("j", "s", "w", 9, "c", 0.0)
    for turn in range(401):
        for group in range(groups):
            if turn in (0, *restarts):
                run.take(start(group, turn), turn * every_s)
            run.take(progress(group, turn, ranks=1, loss=1.0), turn * every_s)
        assert len(run.rows) <= ROWS
    for group in range(groups):
        line = [row for row in run.rows if row.group == group]
        assert line[0].at == 0 and line[0].starts and line == sorted(line, key=lambda row: row.at)
        assert sum(row.starts for row in line) <= 1 + len(restarts)
    run.over("completed")
    assert groups <= len(run.rows) <= max(ROWS_AFTER, groups)
    assert {row.group for row in run.rows} == {*range(groups)}


def test_marks_are_bounded(begin):
    run = begin()
    for step in range(MARKS + 5):
        run.take({"kind": "checkpoint", "step": step}, 101.0)
    assert len(run.marks) == MARKS and run.marked == MARKS + 5


def test_a_run_ends_as_its_driver_says_or_is_lost_with_it(runs, begin):
    completed, lost, other = begin("a"), begin("b"), begin("c", client="other")
    completed.take({"kind": "over", "status": "completed", "result": ""}, 102.0)
    runs.lose("c")
    assert [run.state for run in (completed, lost, other)] == ["completed", "lost", "starting"]


def test_the_oldest_run_that_has_ended_is_forgotten(runs, begin):
    active = begin("active")
    for number in range(RUNS + 2):
        begin(f"{number}").over("completed")
    names = [topic for topic, _ in runs.newest_first()]
    assert len(names) == RUNS and names[0] == f"{RUNS + 1}" and names[-1] == "active" and "2" not in runs
    assert runs["active"] is active


def test_active_runs_are_bounded_too(runs, begin):
    for number in range(RUNS + 1):
        begin(f"{number}")
    assert "0" not in runs and "1" in runs


@pytest.mark.parametrize("event", [start(0), progress(0, 1), {"kind": "over", "status": "failed", "result": "why"}])
def test_each_event_changes_the_version(runs, begin, event):
    before = runs.version
    run = begin()
    begun = runs.version
    run.take(event, 101.0)
    assert before < begun < runs.version
