"""A run with Dask workers, a supervisor and a display that a test plays."""

import json
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.views import Here

from singa_dask.cluster.formation import WorkersInUse
from singa_dask.cluster.workers import WorkerInfo
from singa_dask.job import Job, job_to_text
from singa_dask.monitor.progress import Display
from singa_dask.supervision import queue, record, sight
from singa_dask.supervision import run as module
from singa_dask.supervision.callbacks import Callbacks
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
METRICS = {"kind": "metrics", "group": 0, "step": 4, "phase": "train", "metrics": {"loss": 0.5}}
SAVED = {"kind": "checkpoint", "group": 0, "step": 4, "path": "step-00000004.h5", "host": "far"}


def report(group, **more):
    return {
        "step": 8,
        "interrupted": False,
        "metrics": {"test": {"loss": 0.5}} if group == 0 else {},
        "samples_per_s": 40.04,
        "steps": 8,
        "samples": 80,
        "seconds": 2.0 + group,
        "evaluating_s": 0.5,
        "saving_s": 0.12344,
        "began": 7.0,
        "exchange": "none",
        "processes": [{"host": "here", "cores": [group]}],
        "wait": [0.12344],
        "loading": [0.0],
        "gpu_memory": 1000 * group,
        "operations": {"all_reduce": {"bytes": 10.0, "seconds": 0.12344}},
        "exchanged_bytes": 100,
        "overflows": 1,
        "server": {"stall": 0.12344} if group else None,
        **more,
    }


class Recorder(Display):
    def __init__(self):
        self.notes, self.events = [], []
        self.note = self.say = self.notes.append
        self.handle = self.events.append


class Page:
    """The page of a run. told: what it is told."""

    def __init__(self):
        self.told = []

    def tell(self, kind, **about):
        self.told.append((kind, about))

    def over(self, summary):
        self.told.append(("over", summary["status"]))


class Played:
    """A run. events: what the groups emit; ends: reports by group, or what the supervisor raises. shares: whether
    checkpoints are on this disk. given: the client that is given to the run; asked: what is asked for workers."""

    def __init__(self, monkeypatch, folder):
        self.client, self.display, self.workspace = Here(), Recorder(), Workspace(folder)
        self.prepared = prepare(Job.from_text(JOB), with_data=False)
        self.events, self.ends, self.files, self.shares = [], {0: report(0), 1: report(1)}, [], True
        self.posted, self.waited, self.drawn, self.rewinds, self.local = [], [], [], [], []
        self.stopped, self.restarts, self.callbacks = "", [], []
        self.page = Page()
        self.given, self.busy, self.asked = self.client, 0, lambda: None
        monkeypatch.setattr(queue, "wait_workers", self._wait_workers)
        monkeypatch.setattr(sight, "SEEN_S", 0.2)
        for name, value in {
            "Supervisor": self._supervisor,
            "files_named": lambda prepared: self.files,
            "local_cluster": self._local_cluster,
            "Watched": lambda *given: self.page,
        }.items():
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(record, "load_drawing", lambda: None)
        monkeypatch.setattr(record, "draw_curves", lambda *drawn: self.drawn.append(drawn))

    def _wait_workers(self, client, count, patience_s):
        self.waited.append((client in (self.client, self.given), count, patience_s))
        self.asked()
        return [WorkerInfo(f"tcp://a:{i}", pid=i) for i in range(count)]

    @contextmanager
    def _local_cluster(self, nworkers):
        self.local.append(nworkers)
        yield self.client

    def _supervisor(self, supervision, launcher, *, note, newest, rewound, restarted, outdated, giving_up, seeing):
        self.members, self.launcher, self.newest, self.outdated = supervision.run.members, launcher, newest, outdated
        self.giving_up = giving_up
        told = SimpleNamespace(stopped=self.stopped)
        return SimpleNamespace(state=told, post=self.posted.append, run=lambda: self._run(rewound, restarted))

    def _run(self, rewound, restarted):
        self.busy -= 1
        if self.busy >= 0:
            raise WorkersInUse("w1 by other-group")
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
        for item in filter(callable, self.posted):
            item()
        if isinstance(self.ends, BaseException):
            raise self.ends
        return self.ends

    def to_end(self, *, client=True, resume=False):
        callbacks = Callbacks(self.callbacks, "points", self.workspace.folder, 8)
        run = Run(self.prepared, self.workspace, self.display, callbacks, max_restarts=3, patience_s=7.0)
        return run.to_end(self.given if client else None, resume)

    def fails(self, kind, match=None, **options):
        """It ends with this error, which is returned, as well as what was recorded: None if nothing was."""
        with pytest.raises(kind, match=match) as caught:
            self.to_end(**options)
        return caught.value, self.recorded()

    def recorded(self):
        return json.loads(self.workspace.summary.read_text()) if self.workspace.summary.exists() else None

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
        return checkpoints.save(checkpoints.Checkpoint(step, **whole), self.path(step))

    def path(self, step):
        return checkpoints.path_of(self.workspace.checkpoints, step)
