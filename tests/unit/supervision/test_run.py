"""A run from its start point to its record, with Dask workers, a supervisor and a display that the test plays."""

import json
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from types import SimpleNamespace

import numpy as np
import pytest
from support.views import OtherMachine

from singa_dask.cluster.formation import WorkersInUse
from singa_dask.cluster.leases import same_run
from singa_dask.cluster.workers import WorkerInfo
from singa_dask.errors import CheckpointError, ClusterError, ConfigError, Problem, TrainingError
from singa_dask.job import Job, job_to_text
from singa_dask.supervision import queue, sight
from singa_dask.supervision import run as module
from singa_dask.supervision.callbacks import Callbacks
from singa_dask.supervision.events import Progress, RecordOutdated, StopAsked
from singa_dask.supervision.members import GENERATIONS, Restart
from singa_dask.supervision.run import Run
from singa_dask.training import checkpoint as checkpoints
from singa_dask.training.prepare import prepare
from singa_dask.training.workspace import Workspace

JOB = """
name: "points" train_steps: 8 seed: 5
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.1 } }
cluster { nworker_groups: 2 }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "nowhere" shape: 4 batchsize: 10 } }
  layer { name: "scores" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "scores" srclayers: "data" }
}
"""


def report(group, **more):
    return {
        "step": 8,
        "interrupted": False,
        "metrics": {"test": {"loss": 0.5}} if group == 0 else {},
        "samples_per_s": 40.04,
        "samples": 80,
        "seconds": 2.0 + group,
        "wait": [0.12344],
        "loading": [0.0],
        "operations": {"all_reduce": {"bytes": 10.0, "seconds": 0.12344}},
        "exchanged_bytes": 100,
        "overflows": 1,
        "server": {"stall": 0.12344} if group else None,
        **more,
    }


class Display:
    lost = False

    def __init__(self):
        self.notes, self.events, self.open = [], [], False

    def __enter__(self):
        self.open = True

    def __exit__(self, *exc):
        self.open = False

    def note(self, text):
        self.notes.append(text)

    say = note

    def handle(self, event):
        assert self.open
        self.events.append(event)


class Client:
    def __init__(self):
        self.topics = {}

    def subscribe_topic(self, topic, receive):
        self.topics[topic] = receive

    def unsubscribe_topic(self, topic):
        del self.topics[topic]

    def run(self, function, *args, workers, **options):
        return {address: function(*args) for address in workers}


class Played:
    """A run. events: what the groups emit; ends: reports by group, or what the supervisor raises. shares: whether
    checkpoints are on this disk. given: the client that is given to the run."""

    def __init__(self, monkeypatch, folder):
        self.client, self.display, self.workspace = Client(), Display(), Workspace(folder)
        self.prepared = prepare(Job.from_text(JOB), with_data=False)
        self.events, self.ends = [], {0: report(0), 1: report(1)}
        self.posted, self.waited, self.drawn, self.rewinds = [], [], [], []
        self.stopped, self.restarts, self.callbacks = "", [], []
        monkeypatch.setattr(module, "Supervisor", self._supervisor)
        monkeypatch.setattr(queue, "wait_workers", self._wait_workers)
        monkeypatch.setattr(module, "load_drawing", lambda: None)
        monkeypatch.setattr(module, "files_named", lambda prepared: self.files)
        monkeypatch.setattr(sight, "SEEN_S", 0.2)
        self.files, self.shares = [], True
        monkeypatch.setattr(module, "draw_curves", lambda rows, path, title: self.drawn.append((rows, path, title)))
        monkeypatch.setattr(module, "local_cluster", self._local_cluster)
        self.local, self.given = None, self.client

    def _wait_workers(self, client, count, patience_s):
        assert client in (self.client, self.given)
        self.waited.append((count, patience_s))
        return [WorkerInfo(f"tcp://a:{i}", pid=i) for i in range(count)]

    @contextmanager
    def _local_cluster(self, nworkers):
        self.local = nworkers
        yield self.client

    def _supervisor(self, state, launcher, *, note, newest, rewound, restarted, outdated, giving_up, seeing):
        self.state, self.launcher, self.newest, self.outdated = state, launcher, newest, outdated
        self.giving_up = giving_up
        state = SimpleNamespace(stopped=self.stopped, restarts=self.restarts)
        return SimpleNamespace(state=state, post=self.posted.append, run=lambda: self._run(rewound, restarted))

    def _run(self, rewound, restarted):
        for event in self.events:
            if event["kind"] == "checkpoint":
                event = {**event, "path": str(self.workspace.checkpoints / event["path"])}
                if self.shares:
                    Path(event["path"]).touch()
            self.client.topics[self.launcher.topic]((0.0, event))
        for groups, step in self.rewinds:
            rewound(groups, step)
        for restart in self.restarts:
            restarted(restart)
        for item in self.posted:
            if callable(item):
                item()
        if isinstance(self.ends, BaseException):
            raise self.ends
        return self.ends

    def to_end(self, *, client=True, resume=False):
        callbacks = Callbacks(self.callbacks, "points", self.workspace.folder, 8)
        run = Run(self.prepared, self.workspace, self.display, callbacks, max_restarts=3, patience_s=7.0)
        return run.to_end(self.given if client else None, resume)

    def save(self, step=4, **more):
        values = {name: np.zeros(shape, np.float32) for name, shape in self.prepared.shapes.items()}
        whole = {
            "seed": 5,
            "job": job_to_text(self.prepared.job),
            "parameters": values,
            "updater": {"velocity": values},
            "data": {},
            **more,
        }
        return checkpoints.save(
            checkpoints.Checkpoint(step, **whole), checkpoints.path_of(self.workspace.checkpoints, step)
        )


@pytest.fixture
def played(monkeypatch, tmp_path):
    return Played(monkeypatch, tmp_path / "run")


def test_a_run_ends_if_another_one_has_taken_its_workspace(played, monkeypatch):
    played.events = [{"kind": "metrics", "group": 0, "step": 8, "phase": "train", "metrics": {"loss": 0.5}}]

    def taken(self, row):
        raise ConfigError(Problem("workspace", "was removed, and another run has taken it"))

    monkeypatch.setattr(Workspace, "append", taken)
    with pytest.raises(ConfigError, match="another run has taken it"):
        played.to_end()


def test_a_run_leaves_its_record(played):
    metrics = {"kind": "metrics", "group": 0, "step": 8, "phase": "train", "metrics": {"loss": 0.5}}
    path = checkpoints.path_of(played.workspace.checkpoints, 8)
    saved = {"kind": "checkpoint", "group": 0, "step": 8, "path": str(path), "host": "far"}
    played.events = [{"kind": "progress", "group": 1, "step": 3}, metrics, saved]
    summary = played.to_end()
    assert (summary["status"], summary["error"], summary["step"]) == ("completed", None, 8)
    assert summary["test"] == {"loss": 0.5} and summary["train"] == summary["validate"] == {}
    assert summary["samples_per_s"] == pytest.approx(160 / 3.0, abs=0.05), (
        "of the groups together, in the longest time"
    )
    assert (summary["exchanged_bytes"], summary["overflows"], summary["checkpoint"]) == (200, 2, str(path))
    assert summary["groups"][0] == {
        "step": 8,
        "samples_per_s": 40.0,
        "wait": [0.1234],
        "loading": [0.0],
        "operations": {"all_reduce": {"bytes": 10, "seconds": 0.1234}},
    }
    assert summary["groups"][1]["server"] == {"stall": 0.1234}
    assert (summary["restarts"], summary["restarted"], summary["seed"]) == (0, [], 5)
    assert list(played.workspace.rows()) == [{"group": 0, "phase": "train", "step": 8, "loss": 0.5}]
    assert summary["run"] == played.workspace.id != ""
    assert played.display.events == played.events and not played.display.open
    assert played.posted[:3] == [Progress(1, 3), Progress(0, 8), Progress(0, 8)]
    ((rows, path, title),) = played.drawn
    assert len(rows) == 1 and path == played.workspace.curves and title.startswith("points, ")
    assert played.display.notes == ["forming 2 worker groups of 1 on Dask workers"]
    assert played.waited == [(2, 7.0), (2, 7.0)] and played.local is None and not played.client.topics
    assert played.workspace.summary.exists() and played.workspace.job.read_text().startswith("name")


def test_a_group_that_is_formed_again_knows_what_evaluations_have_decided(played):
    played.events = [{"kind": "decided", "group": 0, "step": 8, "state": {"reductions": 2}}]
    played.to_end()
    assert played.launcher.worker_plan.decided == {"reductions": 2}
    played.rewinds = [((1,), 3), ((0,), None)]
    played.to_end()
    assert played.launcher.worker_plan.decided == {}, "it makes the evaluations again"


def test_without_a_client_a_local_cluster_is_started(played):
    played.to_end(client=False)
    assert played.local == 2 and played.waited == [(2, 7.0)]
    assert played.display.notes[0] == "starting a local Dask cluster of 2 workers"


@pytest.mark.parametrize(
    ("error", "lead_stopped", "status", "text"),
    [
        (ClusterError("lost too often"), None, "failed", "lost too often"),
        (KeyboardInterrupt(), None, "interrupted", "KeyboardInterrupt"),
        (None, True, "interrupted", None),
        (None, False, "completed", None),
    ],
)
def test_the_record_says_how_a_run_ended(played, error, lead_stopped, status, text):
    played.events = [{"kind": "progress", "group": 0, "step": 3}]
    if error is not None:
        played.ends = error
        with pytest.raises(type(error)):
            played.to_end()
    else:
        played.stopped = "SIGTERM"
        played.ends = {0: report(0, interrupted=lead_stopped), 1: report(1)}
        played.to_end()
    summary = json.loads(played.workspace.summary.read_text())
    assert (summary["status"], summary["error"], summary["step"]) == (status, text, 3 if error else 8)
    by = ("Ctrl-C" if error else "SIGTERM") if status == "interrupted" else None
    assert summary["stopped_by"] == by
    assert summary["samples_per_s"] == (0.0 if error else pytest.approx(53.3))


@pytest.mark.parametrize("moment", ["the cluster closes", "curves are drawn", "callbacks are told"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_does_not_cut_off_the_end_of_a_run(played, monkeypatch, moment, number):
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
        monkeypatch.setattr(module, "draw_curves", told)
    else:
        played.callbacks = [lambda event: told() if event.kind == "end" else None]
    before = signal.signal(number, signal.default_int_handler)
    try:
        assert played.to_end(client=False)["status"] == "completed"
    except KeyboardInterrupt:
        pytest.fail("it was cut off")
    finally:
        signal.signal(number, before)
    assert json.loads(played.workspace.summary.read_text())["status"] == "completed"


def test_restarts_are_recorded_and_metrics_measured_again_are_forgotten(played):
    rows = [{"kind": "metrics", "group": g, "step": s, "phase": "test", "metrics": {}} for g in (0, 1) for s in (2, 4)]
    played.events, played.rewinds = rows, [((1,), 3), ((0,), None)]
    played.restarts = [Restart((1,), 4, "its process died")]
    summary = played.to_end()
    assert [(row["group"], row["step"]) for row in played.workspace.rows()] == [(1, 2)]
    assert summary["restarts"] == 1 and len(summary["restarted"]) == 1
    assert summary["samples_per_s"] == 80.1, "the sum of the rates since"
    restart = {"event": "restart", "groups": [1], "step": 4, "cause": "its process died"}
    restart |= {"servers": [], "whole": []}
    back = [{"event": "rewound", "groups": [group], "step": step} for group, step in ((1, 3), (0, None))]
    assert played.workspace.told() == [{"event": "start", "step": 0}, *back, restart]


EVENTS = [
    {"kind": "metrics", "group": 0, "step": 4, "phase": "train", "metrics": {"loss": 0.5}},
    {"kind": "checkpoint", "group": 0, "step": 4, "path": "step-00000004.h5", "host": "far"},
]


def test_callbacks_are_told_of_the_run_to_its_very_end(played):
    told = []

    def tell(event):
        there = played.workspace.summary.exists(), len(list(played.workspace.rows()))
        told.append((event.kind, event.group, event.step, there))

    played.events, played.callbacks, played.restarts = EVENTS, [tell], [Restart((1,), 4, "its process died")]
    summary = played.to_end()
    assert told == [
        ("step", 0, 4, (False, 1)),
        ("checkpoint", 0, 4, (False, 1)),
        ("restart", 1, 4, (False, 1)),
        ("end", 0, 8, (True, 1)),
    ], "metrics and the record are written before"
    assert summary["status"] == "completed" and StopAsked("a callback failed") not in played.posted


@pytest.mark.parametrize("end", [None, ClusterError("lost too often"), KeyboardInterrupt()])
def test_callbacks_are_told_how_it_ended(played, end):
    ends = []
    played.events, played.callbacks = EVENTS, [lambda event: ends.append(event) if event.kind == "end" else None]
    if end is None:
        played.to_end()
    else:
        played.ends = end
        with pytest.raises(type(end)):
            played.to_end()
    (event,) = ends
    expected = {None: ("completed", ""), ClusterError: ("failed", "lost too often")}
    assert (event.status, event.cause) == expected.get(end and type(end), ("interrupted", "KeyboardInterrupt"))
    assert event.path == played.workspace.checkpoints / "step-00000004.h5"


def test_a_callback_that_raises_ends_the_run_which_is_recorded_as_failed(played):
    def boom(event):
        raise ValueError("boom")

    played.events, played.callbacks, played.stopped = EVENTS, [boom], "a callback failed"
    played.ends = {0: report(0, interrupted=True), 1: report(1)}
    with pytest.raises(
        TrainingError, match=r"boom raised ValueError at step 4 .*: boom\..*checkpoint /.*/step-00000004"
    ) as caught:
        played.to_end()
    assert isinstance(caught.value.__cause__, ValueError)
    assert StopAsked("a callback failed") in played.posted
    summary, path = json.loads(played.workspace.summary.read_text()), played.workspace.checkpoints / "step-00000004.h5"
    assert (summary["status"], summary["stopped_by"], summary["checkpoint"]) == ("failed", None, str(path))
    assert summary["error"] == str(caught.value)


@pytest.mark.parametrize("lost", [False, True])
def test_a_callback_that_raises_at_the_end_hides_nothing(played, caplog, lost):
    def boom(event):
        if event.kind == "end":
            raise ValueError("boom")

    played.callbacks = [boom]
    if lost:
        played.ends = ClusterError("lost too often")
    with pytest.raises(ClusterError if lost else TrainingError, match="lost too often" if lost else "boom"):
        played.to_end()
    assert json.loads(played.workspace.summary.read_text())["status"] == ("failed" if lost else "completed")
    assert ("boom" in caplog.text) == lost


def test_a_group_whose_tasks_were_cancelled_reports_with_its_last_event(played):
    played.events = [{"kind": "end", "group": 0, "step": 5, "record": report(0, step=5, interrupted=True)}]
    played.ends, played.stopped = {}, "cancelled from Dask"
    summary = played.to_end()
    assert (summary["status"], summary["stopped_by"], summary["step"]) == ("interrupted", "cancelled from Dask", 5)
    assert summary["samples_per_s"] == 40.0 and summary["test"] == {"loss": 0.5}


def test_metrics_that_cannot_be_recorded_end_the_run_with_an_error(played, monkeypatch):
    def full(row):
        raise OSError("disk full")

    monkeypatch.setattr(played.workspace, "append", full)
    played.events = [{"kind": "metrics", "group": 0, "step": 8, "phase": "train", "metrics": {}}]
    with pytest.raises(TrainingError, match="not all of its metrics could be recorded: disk full"):
        played.to_end()


def test_a_picture_that_cannot_be_drawn_does_not_hide_the_result(played, monkeypatch, caplog):
    monkeypatch.setattr(module, "draw_curves", lambda *args: (_ for _ in ()).throw(ValueError("no font")))
    assert played.to_end()["status"] == "completed" and "no font" in caplog.text


def test_a_resumed_run_begins_at_the_newest_valid_checkpoint(played):
    path = played.save(4)
    checkpoints.path_of(played.workspace.checkpoints, 6).write_bytes(b"damaged")
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


def test_a_run_to_which_another_one_was_faster_queues_again(played, monkeypatch):
    supervisor, tries = module.Supervisor, []

    def busy_once(*args, **options):
        tries.append(args)
        made = supervisor(*args, **options)
        if len(tries) < 3:
            made.run = lambda: (_ for _ in ()).throw(WorkersInUse("w1 by other-group"))
        return made

    monkeypatch.setattr(module, "Supervisor", busy_once)
    assert played.to_end()["status"] == "completed" and len(tries) == 3
    assert len(played.waited) == 4, "and before anything is moved"


def test_a_run_that_has_begun_does_not_queue_again(played):
    played.events, played.ends = EVENTS, WorkersInUse("w1 by other-group")
    with pytest.raises(WorkersInUse):
        played.to_end()


def test_nothing_is_moved_or_written_while_a_run_queues(played, monkeypatch):
    path = played.save(4)

    def interrupted(*args):
        assert played.display.open
        raise KeyboardInterrupt

    monkeypatch.setattr(queue, "wait_workers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        played.to_end()
    assert path.exists() and not played.workspace.summary.exists() and not played.display.open


def test_there_must_be_something_to_resume(played):
    with pytest.raises(CheckpointError, match=r"no valid checkpoint to resume from\. Run without --resume"):
        played.to_end(resume=True)
    assert not played.workspace.summary.exists() and not played.waited


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"step": 9}, "it is from step 9, beyond train_steps, 8"),
        ({"parameters": {"w": np.zeros(2, np.float32)}}, "parameter 'w'"),
        ({"updater": {}}, "updater state: none in the checkpoint, velocity in this job"),
        ({"data": {"train/data": "other"}}, "was made with other data"),
    ],
)
def test_a_checkpoint_of_another_job_is_not_resumed(played, more, fault):
    played.save(**more)
    with pytest.raises(CheckpointError, match=fault):
        played.to_end(resume=True)


def test_parameters_to_start_from_must_lie_elsewhere(played):
    path = played.save(4)
    for given in (path, played.workspace.folder):
        played.prepared.job.checkpoint_path[:] = [str(given)]
        with pytest.raises(ConfigError, match="lies in the workspace that this run replaces"):
            played.to_end()
    assert path.exists()


def test_parameters_to_start_from_must_fit(played, tmp_path):
    other = Workspace(tmp_path / "other")
    path = checkpoints.path_of(other.checkpoints, 4)
    checkpoints.save(checkpoints.Checkpoint(4, 5, "", {"else": np.zeros(2, np.float32)}), path)
    played.prepared.job.checkpoint_path[:] = [str(path)]
    with pytest.raises(CheckpointError, match="its parameters do not fit"):
        played.to_end()


def test_the_summary_of_a_stopped_run_is_written_before_ranks_are_given_up(played):
    recorded = []

    def give_up():
        played.giving_up()
        recorded.append(json.loads(played.workspace.summary.read_text()))

    played.stopped, played.posted = "SIGTERM", [give_up]
    played.to_end()
    assert [(told["status"], told["stopped_by"]) for told in recorded] == [("interrupted", "SIGTERM")]


def test_each_start_of_a_run_has_higher_generations_and_knows_outdated_replicas(played):
    played.to_end()
    run, first = played.workspace.id, played.launcher.topic
    assert played.state.members.before == 0 and not played.launcher.resumes
    played.outdated(RecordOutdated(0, 3, 1, 2))
    played.workspace.append({"group": 0, "phase": "train", "step": 6, "loss": 0.5})
    played.events = [{"kind": "start", "group": 0, "step": 5, "samples": 0}]
    played.to_end(resume=True)
    assert played.workspace.id == run and same_run(first, played.launcher.topic) and played.launcher.resumes
    assert played.state.members.before == GENERATIONS
    assert played.state.members.server_groups[0].outdated == {(3, 1): 2}
    assert list(played.workspace.rows()) == [], "the worker group begins before that"
    played.to_end()
    assert played.workspace.id != run and not same_run(first, played.launcher.topic)
    assert played.state.members.before == 0 and played.state.members.server_groups[0].outdated == {}


# What this process and the workers see of each other's files


def test_workers_that_do_not_see_the_workspace_end_a_run_before_anything_is_moved(played):
    path = played.save(4)
    played.given = OtherMachine(played.client, played.workspace.folder)
    with pytest.raises(ClusterError) as caught:
        played.to_end()
    said = (
        f"{played.workspace.folder}: the Dask workers on {gethostname()} (tcp://a:0) do not share this folder. Name "
    )
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
    assert path.exists() and not played.workspace.summary.exists()
    assert sorted(item.name for item in played.workspace.folder.iterdir()) == ["checkpoint"], "nothing is left"
    assert played.given.asked == [["tcp://a:0", "tcp://a:1"]]


@pytest.mark.parametrize("name", ["shards", "mean.h5", "vocab.txt"])
def test_workers_that_do_not_see_a_file_of_the_job_end_a_run_before_it_begins(played, tmp_path, name):
    (tmp_path / name).write_text("what the job reads")
    played.files = [tmp_path / name]
    played.given = OtherMachine(played.client, tmp_path / name)
    with pytest.raises(ClusterError, match=rf"/{name}: the Dask workers on .* do not see it .*copy it to this path"):
        played.to_end()
    assert not played.workspace.folder.exists(), "nothing is left"


def test_a_run_that_goes_on_asks_too_and_loses_nothing(played):
    path = played.save(4)
    played.given = OtherMachine(played.client, played.workspace.folder)
    with pytest.raises(ClusterError, match="do not share this folder"):
        played.to_end(resume=True)
    assert path.exists() and played.workspace.told() == []


def test_a_checkpoint_that_is_elsewhere_is_an_error_and_never_saved(played):
    seen = []
    played.events, played.callbacks, played.shares = EVENTS, [seen.append], False
    with pytest.raises(
        CheckpointError, match=r"step-00000004\.h5: host far has saved this checkpoint, and .* not see"
    ):
        played.to_end()
    assert [event.kind for event in seen] == ["step", "end"] and seen[-1].status == "failed"
    assert "checkpoint" not in [event["kind"] for event in played.display.events]
    assert json.loads(played.workspace.summary.read_text())["checkpoint"] is None
    assert {"event": "saves", "host": "far"} in played.workspace.told()


def test_a_best_checkpoint_that_is_elsewhere_is_none(played):
    best = {
        "metric": "test.loss",
        "value": 0.5,
        "step": 4,
        "checkpoint": str(played.workspace.checkpoints / "best.h5"),
    }
    played.events = [{"kind": "best", "group": 0, "step": 4, "best": best, "host": "far"}]
    with pytest.raises(CheckpointError, match=r"best\.h5: host far has saved this checkpoint"):
        played.to_end()
    assert json.loads(played.workspace.summary.read_text())["best"] is None


def test_a_checkpoint_may_come_in_sight_late(played):
    played.events, played.shares = EVENTS, False
    late = checkpoints.path_of(played.workspace.checkpoints, 4)
    played.posted.append(lambda: threading.Timer(0.05, late.touch).start())
    assert played.to_end()["checkpoint"] == str(late)


def test_a_checkpoint_that_made_way_for_a_later_one_counts(played):
    played.events, played.shares = EVENTS, False
    later = checkpoints.path_of(played.workspace.checkpoints, 8)
    played.posted.append(later.touch)
    assert played.to_end()["checkpoint"] == str(checkpoints.path_of(played.workspace.checkpoints, 4))
