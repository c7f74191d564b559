"""A run from its start point to its record, with Dask workers, a supervisor and a display that the test plays."""

import json
import signal
import threading
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import asdict
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from support.played_runs import METRICS, SAVED, Played, report
from support.views import OtherMachine

from singa_dask.cluster.formation import WorkersInUse
from singa_dask.errors import CheckpointError, ClusterError, ConfigError, Problem, TrainingError
from singa_dask.memory.owner import same_run
from singa_dask.supervision import record
from singa_dask.supervision import run as module
from singa_dask.supervision.events import Progress, RecordOutdated, StopAsked
from singa_dask.supervision.members import GENERATIONS, Restart
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.workspace import Workspace

RESTART = Restart((1,), 4, "its process died")


@pytest.fixture
def played(monkeypatch, tmp_path):
    return Played(monkeypatch, tmp_path / "run")


def test_what_a_run_prints_belongs_to_the_cell_that_trains():
    """Notebooks keep the cell in a context variable; the client's thread has that of the cell that made the client."""
    cell, seen, topics = ContextVar("cell", default="that made the client"), [], {}
    client = SimpleNamespace(subscribe_topic=topics.__setitem__, unsubscribe_topic=topics.pop)

    def trains():
        cell.set("that trains")
        with module._events(client, "topic", lambda event: seen.append((event, cell.get()))):
            thread = threading.Thread(target=topics["topic"], args=((0.0, "event"),))
            thread.start()
            thread.join()

    copy_context().run(trains)
    assert seen == [("event", "that trains")] and not topics


def test_a_run_leaves_its_record(played):
    played.events = [{"kind": "progress", "group": 1, "step": 3}, METRICS, SAVED]
    played.display.lost = True
    summary = played.to_end()
    assert (summary["status"], summary["error"], summary["step"]) == ("completed", None, 8)
    assert summary["test"] == {"loss": 0.5} and summary["train"] == summary["validate"] == {}
    assert summary["samples_per_s"] == pytest.approx(160 / 3.0, abs=0.05), "of all groups, in the longest time"
    assert (summary["exchanged_bytes"], summary["overflows"]) == (200, 2)
    assert summary["checkpoint"] == str(played.path(4))
    assert summary["groups"][0] == {
        "step": 8,
        "steps": 8,
        "samples": 80,
        "seconds": 2.0,
        "evaluating_s": 0.5,
        "saving_s": 0.1234,
        "began": 7.0,
        "exchange": "none",
        "processes": [{"host": "here", "cores": [0]}],
        "samples_per_s": 40.0,
        "wait": [0.1234],
        "loading": [0.0],
        "operations": {"all_reduce": {"bytes": 10, "seconds": 0.1234}},
    }
    assert summary["groups"][1]["server"] == {"stall": 0.1234} and summary["groups"][1]["gpu_memory"] == 1000
    assert (summary["restarts"], summary["restarted"], summary["seed"]) == (0, [], 5)
    assert list(played.workspace.rows()) == [{"group": 0, "phase": "train", "step": 4, "loss": 0.5}]
    assert summary["run"] == played.workspace.id != "" and summary["output_lost"] is True
    assert [event["kind"] for event in played.display.events] == ["progress", "metrics", "checkpoint"]
    assert played.posted[:3] == [Progress(1, 3), Progress(0, 4), Progress(0, 4)]
    ((rows, path, title),) = played.drawn
    assert len(rows) == 1 and path == played.workspace.curves and title.startswith("points, ")
    assert played.display.notes == ["forming 2 worker groups of 1 on Dask workers"]
    assert played.waited == [(True, 2, 7.0)] * 2 and not played.local and not played.client.topics
    assert played.recorded()["status"] == "completed" and played.workspace.job.read_text().startswith("name")


@pytest.mark.parametrize(
    ("rewinds", "knows"), [([], {"reductions": 2}), ([((1,), 3)], {"reductions": 2}), ([((0,), None)], {})]
)
def test_a_group_that_is_formed_again_knows_what_evaluations_have_decided(played, rewinds, knows):
    played.events, played.rewinds = [{"kind": "decided", "group": 0, "step": 8, "state": {"reductions": 2}}], rewinds
    played.to_end()
    assert played.launcher.worker_plan.decided == knows


def test_without_a_client_a_local_cluster_is_started(played):
    played.to_end(client=False)
    assert played.local == [2] and played.waited == [(True, 2, 7.0)]
    assert played.display.notes[0] == "starting a local Dask cluster of 2 workers"


def raising(error):
    return Mock(side_effect=error, __qualname__="raising")


STOPPED = {0: report(0, interrupted=True), 1: report(1)}
CANCELLED = {"kind": "end", "group": 0, "step": 5, "record": report(0, step=5, interrupted=True)}
BEST = {"metric": "test.loss", "value": 0.5, "step": 4, "checkpoint": "best.h5"}
# What is played, the error with which the run ends, and what is recorded.
ENDS = {
    "it fails": (
        {"events": [{"kind": "progress", "group": 0, "step": 3}, SAVED], "ends": ClusterError("lost too often")},
        (ClusterError, "lost too often"),
        {"status": "failed", "error": "lost too often", "stopped_by": None, "step": 4, "samples_per_s": 0.0},
    ),
    "it is aborted": (
        {"events": [{"kind": "progress", "group": 0, "step": 3}], "ends": KeyboardInterrupt()},
        (KeyboardInterrupt,),
        {"status": "interrupted", "error": "KeyboardInterrupt", "stopped_by": "Ctrl-C", "step": 3},
    ),
    "it is stopped": (
        {"stopped": "SIGTERM", "ends": STOPPED},
        None,
        {"status": "interrupted", "error": None, "stopped_by": "SIGTERM", "step": 8},
    ),
    "it is stopped at its end": (
        {"stopped": "SIGTERM"},
        None,
        {"status": "completed", "stopped_by": None, "samples_per_s": pytest.approx(53.3)},
    ),
    "its tasks are cancelled, and it reports with its last event": (
        {"events": [CANCELLED], "ends": {}, "stopped": "cancelled from Dask"},
        None,
        {"status": "interrupted", "stopped_by": "cancelled from Dask", "step": 5, "samples_per_s": 40.0},
    ),
    "it was restarted, and has the sum of the rates since": (
        {"restarts": [RESTART]},
        None,
        {
            "status": "completed",
            "restarts": 1,
            "restarted": [json.loads(json.dumps(asdict(RESTART)))],
            "samples_per_s": 80.1,
        },
    ),
    "a callback raises": (
        {
            "events": [METRICS, SAVED],
            "stopped": "a callback failed",
            "ends": STOPPED,
            "callbacks": [raising(OSError("boom"))],
        },
        (TrainingError, r"boom.*step-00000004\.h5"),
        {"status": "failed", "stopped_by": None},
    ),
    "another run was faster twice": ({"busy": 2}, None, {"status": "completed"}),
    "another run has its workers once it has begun": (
        {"events": [METRICS], "ends": WorkersInUse("w1 by other-group")},
        (WorkersInUse,),
        {"status": "failed"},
    ),
    "a checkpoint is elsewhere": (
        {"events": [SAVED], "shares": False},
        (CheckpointError, r"step-00000004\.h5: host far has saved this checkpoint, and .* not see"),
        {"status": "failed", "checkpoint": None},
    ),
    "a best checkpoint is elsewhere": (
        {"events": [{"kind": "best", "group": 0, "step": 4, "best": BEST, "host": "far"}]},
        (CheckpointError, "best.h5"),
        {"best": None},
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_record_says_how_a_run_ended_and_callbacks_are_told(played, case):
    given, error, expected = ENDS[case]
    ends = []
    vars(played).update(given)
    played.callbacks = [*played.callbacks, lambda event: ends.append(event) if event.kind == "end" else None]
    played.fails(*error) if error else played.to_end()
    summary = played.recorded()
    assert {name: summary[name] for name in expected} == expected
    told = [(event.status, event.cause, event.path and str(event.path)) for event in ends]
    assert told == [(summary["status"], summary["error"] or "", summary["checkpoint"])]
    assert (StopAsked("a callback failed") in played.posted) == (case == "a callback raises")


@pytest.mark.parametrize("moment", ["the cluster closes", "curves are drawn", "callbacks are told"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_does_not_cut_off_the_end_of_a_run(played, monkeypatch, python_handles_signals, moment, number):
    def told(*args):
        signal.raise_signal(number)
        signal.raise_signal(number)

    @contextmanager
    def closing(nworkers):
        yield played.client
        told()

    if moment == "the cluster closes":
        monkeypatch.setattr(module, "local_cluster", closing)
    elif moment == "curves are drawn":
        monkeypatch.setattr(record, "draw_curves", told)
    else:
        played.callbacks = [lambda event: told() if event.kind == "end" else None]
    try:
        played.to_end(client=False)
    except KeyboardInterrupt:
        pytest.fail("it was cut off")
    assert played.recorded()["status"] == "completed"


def test_restarts_are_recorded_and_metrics_measured_again_are_forgotten(played):
    rows = [{"kind": "metrics", "group": g, "step": s, "phase": "test", "metrics": {}} for g in (0, 1) for s in (2, 4)]
    played.events, played.rewinds, played.restarts = rows, [((1,), 3), ((0,), None)], [RESTART]
    played.to_end()
    assert [(row["group"], row["step"]) for row in played.workspace.rows()] == [(1, 2)]
    restart = {"event": "restart", "groups": [1], "step": 4, "cause": "its process died", "servers": [], "whole": []}
    back = [{"event": "rewound", "groups": [group], "step": step} for group, step in ((1, 3), (0, None))]
    assert played.workspace.told() == [{"event": "start", "step": 0}, *back, restart]


def test_callbacks_are_told_of_the_run_to_its_very_end(played):
    told = []

    def tell(event):
        there = played.workspace.summary.exists(), len(list(played.workspace.rows()))
        told.append((event.kind, event.group, event.step, *there))

    played.events, played.callbacks, played.restarts = [METRICS, SAVED], [tell], [RESTART]
    played.to_end()
    before = [("step", 0, 4, False, 1), ("checkpoint", 0, 4, False, 1), ("restart", 1, 4, False, 1)]
    assert told == [*before, ("end", 0, 8, True, 1)], "metrics and the record are written before"
    assert played.page.told == [("restart", asdict(RESTART)), ("over", "completed")], "the page of the dashboard too"


@pytest.mark.parametrize("lost", [False, True])
def test_a_callback_that_raises_at_the_end_hides_nothing(played, caplog, lost):
    played.callbacks = [lambda event: raising(ValueError("boom"))(event) if event.kind == "end" else None]
    if lost:
        played.ends = ClusterError("lost too often")
    _, summary = played.fails(ClusterError if lost else TrainingError, "lost too often" if lost else "boom")
    assert summary["status"] == ("failed" if lost else "completed")
    assert ("boom" in caplog.text) == lost


@pytest.mark.parametrize(
    ("fault", "raised", "says"),
    [
        (OSError("disk full"), TrainingError, "metrics could be recorded: disk full"),
        (ConfigError(Problem("workspace", "was taken")), ConfigError, "workspace"),  # another run has it
    ],
)
def test_metrics_that_cannot_be_recorded_end_the_run(played, monkeypatch, fault, raised, says):
    monkeypatch.setattr(Workspace, "append", raising(fault))
    played.events = [METRICS]
    played.fails(raised, says)


def test_a_picture_that_cannot_be_drawn_does_not_hide_the_result(played, monkeypatch, caplog):
    monkeypatch.setattr(record, "draw_curves", raising(ValueError("no font")))
    assert played.to_end()["status"] == "completed" and "no font" in caplog.text


# Start points


def test_a_resumed_run_begins_at_the_newest_valid_checkpoint(played):
    path = played.save(4)
    played.path(6).write_bytes(b"damaged")
    played.ends = {}
    summary = played.to_end(resume=True)
    assert (summary["step"], summary["checkpoint"]) == (4, str(path)) and path.exists()
    assert played.display.notes[0].startswith("passed over: ") and "step-00000006" in played.display.notes[0]
    assert played.newest().step == 4


def test_a_fresh_run_moves_an_earlier_one_aside(played):
    played.save(4)
    played.to_end()
    aside = played.workspace.folder.with_name("run-1")
    assert played.display.notes[0] == f"the earlier run in this workspace is now {aside}"
    assert checkpoints.path_of(aside / "checkpoint", 4).exists() and played.newest() is None


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (None, "no valid checkpoint to resume from. Run without --resume"),
        ({"step": 9}, "it is from step 9, beyond train_steps, 8"),
        ({"parameters": {"w": np.zeros(2, np.float32)}}, "parameter 'w'"),
        ({"updater": {}}, "updater state: none in the checkpoint, velocity in this job"),
        ({"data": {"train/data": "other"}}, "data"),
    ],
)
def test_without_a_checkpoint_of_the_job_nothing_is_resumed(played, more, fault):
    if more is not None:
        played.save(**more)
    _, recorded = played.fails(CheckpointError, fault, resume=True)
    assert recorded is None and not played.waited


def test_parameters_to_start_from_must_lie_elsewhere_and_fit(played, tmp_path):
    path = played.save(4)
    for given in (path, played.workspace.folder):
        played.prepared.job.checkpoint_path[:] = [str(given)]
        played.fails(ConfigError, "lies in the workspace")
    assert path.exists()
    other = checkpoints.path_of(Workspace(tmp_path / "other").checkpoints, 4)
    checkpoints.save(checkpoints.Checkpoint(4, 5, "", {"else": np.zeros(2, np.float32)}), other)
    played.prepared.job.checkpoint_path[:] = [str(other)]
    played.fails(CheckpointError, "do not fit")


def test_nothing_is_moved_or_written_while_a_run_queues(played):
    path = played.save(4)
    played.asked = lambda: signal.default_int_handler(signal.SIGINT, None)
    _, recorded = played.fails(KeyboardInterrupt)
    assert path.exists() and recorded is None


def test_the_summary_of_a_stopped_run_is_written_before_ranks_are_given_up(played):
    recorded = []

    def give_up():
        played.giving_up()
        recorded.append(played.recorded())

    played.stopped, played.posted = "SIGTERM", [give_up]
    played.to_end()
    assert [(told["status"], told["stopped_by"]) for told in recorded] == [("interrupted", "SIGTERM")]


def test_each_start_of_a_run_has_higher_generations_and_knows_outdated_replicas(played):
    played.to_end()
    run, first = played.workspace.id, played.launcher.topic
    assert played.members.before == 0 and not played.launcher.resumes
    played.outdated(RecordOutdated(0, 3, 1, 2))
    played.workspace.append({"group": 0, "phase": "train", "step": 6, "loss": 0.5})
    played.events = [{"kind": "start", "group": 0, "step": 5, "samples": 0}]
    played.to_end(resume=True)
    assert played.workspace.id == run and same_run(first, played.launcher.topic) and played.launcher.resumes
    assert played.members.before == GENERATIONS
    assert played.members.server_groups[0].outdated == {(3, 1): 2}
    assert list(played.workspace.rows()) == [], "the worker group begins before that"
    played.to_end()
    assert played.workspace.id != run and not same_run(first, played.launcher.topic)
    assert played.members.before == 0 and played.members.server_groups[0].outdated == {}


# What this process and the workers see of each other's files


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("hidden", ["run", "shards"])
def test_workers_that_do_not_see_a_file_end_a_run_before_anything_is_moved(played, tmp_path, hidden, resume):
    path = played.save(4)
    (tmp_path / "shards").touch()
    played.files, played.given = [tmp_path / "shards"], OtherMachine(played.client, tmp_path / hidden)
    error, recorded = played.fails(ClusterError, f"{tmp_path / hidden}: the Dask workers on ", resume=resume)
    assert "\n" not in str(error) and recorded is None and played.workspace.told() == []
    assert path.exists() and [item.name for item in played.workspace.folder.iterdir()] == ["checkpoint"]
    assert played.given.asked == [["tcp://a:0", "tcp://a:1"]]


def test_a_checkpoint_that_is_elsewhere_is_not_told_of(played):
    seen = []
    played.events, played.callbacks, played.shares = [METRICS, SAVED], [seen.append], False
    played.fails(CheckpointError)
    assert [event.kind for event in seen] == ["step", "end"]
    assert [event["kind"] for event in played.display.events] == ["metrics"]
    assert {"event": "saves", "host": "far"} in played.workspace.told()


@pytest.mark.parametrize("step", [4, 8])
def test_a_checkpoint_may_come_in_sight_late_or_have_made_way_for_a_later_one(played, step):
    played.events, played.shares = [METRICS, SAVED], False
    played.posted.append(lambda: threading.Timer(0.05, played.path(step).touch).start())
    assert played.to_end()["checkpoint"] == str(played.path(4))
