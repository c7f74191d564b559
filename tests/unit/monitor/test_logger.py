"""What an experiment tracker is told of a run."""

import numpy as np
import pytest
from support.shards import write_shards

from singa_dask import Job, Logger, train
from singa_dask.errors import ConfigError
from singa_dask.layers import InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.monitor.progress import Display
from singa_dask.supervision.callbacks import RunEvent
from singa_dask.updaters import SGD


class Tracker:
    def __init__(self):
        self.calls = []

    def log_hyperparams(self, params):
        self.calls.append(("params", dict(params)))

    def log_metrics(self, metrics, step):
        self.calls.append((step, dict(metrics)))

    def finalize(self, status):
        self.calls.append(("end", status))


def trained(tmp_path):
    draw = np.random.default_rng(0)
    write_shards(tmp_path / "points", draw.normal(size=(60, 3)).astype(np.float32), draw.integers(0, 2, 60))
    data = RecordInput(path=str(tmp_path / "points"), batchsize=30)
    layers = [data, InnerProduct(num_output=2, name="out"), SoftmaxLoss()]
    steps = {"train_steps": 4, "disp_freq": 2, "test_freq": 4, "test_steps": 2}
    job = Job(name="points", layers=layers, updater=SGD(lr=0.1), **steps)
    tracker = Tracker()
    train(job, workspace=tmp_path / "run", processes=False, callbacks=[Logger(tracker)], display=Display())
    return tracker.calls


def test_a_run_is_logged_with_its_job(tmp_path):
    (first, params), *metrics, last = trained(tmp_path)
    assert first == "params" and params["train_steps"] == "4"
    assert params["neuralnet.layer[out].innerproduct_conf.num_output"] == "2"
    assert {step for step, _ in metrics} == {0, 2, 4}
    names = {name for _, values in metrics for name in values}
    assert names == {"train/loss", "train/samples_per_s", "test/loss", "train/accuracy", "test/accuracy"}
    assert last == ("end", "success")


def test_groups_have_names_and_a_failure_is_logged(tmp_path):
    tracker = Tracker()
    trained(tmp_path)
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
