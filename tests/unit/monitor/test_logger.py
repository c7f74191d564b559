"""What an experiment tracker is told of a run."""

import sys

import pytest
from support.logged import trained

from singa_dask import Logger, MlflowTracker
from singa_dask.errors import ConfigError
from singa_dask.supervision.callbacks import RunEvent


class Tracker:
    def __init__(self):
        self.calls = []

    def log_hyperparams(self, params):
        self.calls.append(("params", dict(params)))

    def log_metrics(self, metrics, step):
        self.calls.append((step, dict(metrics)))

    def finalize(self, status):
        self.calls.append(("end", status))


def test_a_run_is_logged_with_its_job(tmp_path):
    tracker = Tracker()
    trained(tmp_path, tracker)
    (first, params), *metrics, last = tracker.calls
    assert first == "params" and params["train_steps"] == "4"
    assert params["neuralnet.layer[out].innerproduct_conf.num_output"] == "2"
    assert {step for step, _ in metrics} == {0, 2, 4}
    names = {name for _, values in metrics for name in values}
    assert names == {"train/loss", "train/samples_per_s", "test/loss", "train/accuracy", "test/accuracy"}
    assert last == ("end", "success")


def test_groups_have_names_and_a_failure_is_logged(tmp_path):
    tracker = Tracker()
    trained(tmp_path, Tracker())
    logger = Logger(tracker)
    event = {"job": "points", "workspace": tmp_path / "run", "steps": 4}
    logger.on_step(RunEvent("step", **event, group=1, step=2, phase="train", metrics={"loss": 2.0}))
    logger.on_end(RunEvent("end", **event, status="failed"))
    assert [what for what, _ in tracker.calls] == ["params", 2, "end"]
    assert tracker.calls[1][1] == {"group-1/train/loss": 2.0, "group-1/train/samples_per_s": 0.0}
    assert tracker.calls[2] == ("end", "failed")


def test_an_object_that_cannot_log_is_refused():
    with pytest.raises(ConfigError, match="tracker: has no method log_hyperparams"):
        Logger(print)


def test_without_mlflow_its_tracker_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"mlflow: cannot be imported .*pip install 'singa-dask\[mlflow\]'"):
        MlflowTracker()
