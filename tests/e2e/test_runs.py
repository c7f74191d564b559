"""Runs on a cluster of two `dask worker` processes: watched, stopped, cancelled, queued, one after the other."""

import os
import signal
from contextlib import ExitStack

import numpy as np
import pytest
from distributed import Client, Future
from support.commands import cluster, example, said, sets, started, summary, wait_until
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from singa_dask import Callback, ClusterTopology, Job, TensorBoard, layers, train, updaters
from singa_dask.cli import scheduler as scheduler_options
from singa_dask.errors import ClusterError
from singa_dask.monitor.progress import Display

ENDLESS = 1_000_000
TWO = sets(cluster__nworkers_per_group=2, cluster__nservers_per_group=2)


@pytest.fixture
def client(scheduler, environment, monkeypatch):
    monkeypatch.setenv("SINGA_DASK_CACHE", environment["SINGA_DASK_CACHE"])
    with Client(scheduler_file=str(scheduler)) as client:
        yield client


def job(**fields):
    net = [
        layers.RecordInput("data", backend="hdf5", path="dataset:digits/train", batchsize=32, std_value=16),
        layers.InnerProduct("scores", "data", num_output=10),
        layers.SoftmaxLoss("loss", ["scores", "data"]),
    ]
    fields = {"name": "A", "train_steps": 20, "disp_freq": 10, "checkpoint_freq": 10, **fields}
    return Job(layers=net, updater=updaters.SGD(lr=0.05), cluster=ClusterTopology.allreduce(2), **fields)


def test_every_result_keeps_its_own_run_and_is_watched_as_it_goes_on(client, tmp_path):
    events, where, kept = [], tmp_path / "run", client.scatter(np.arange(10))
    first = train(job(), client, workspace=where, display=Display(), callbacks=[events.append, TensorBoard()])
    second = train(job(train_steps=30), client, workspace=where, display=Display())
    assert (first.workspace.name, second.workspace.name) == ("run-1", "run")
    assert (first.checkpoint.name, second.checkpoint.name) == ("step-00000020.h5", "step-00000030.h5")
    assert first.checkpoint.exists() and first.checkpoint.parent != second.checkpoint.parent
    assert "20; train loss" in repr(first) and len(repr(first)) < 300 and "topology" not in repr(first)
    assert client.status == "running"
    assert kept.result(timeout=10).sum() == 45, "what the user has on the workers is still there"

    # A checkpoint is written beside training: the next report may come before it.
    told = [(event.kind, event.step) for event in events]
    assert sorted(told[:-1]) == [("checkpoint", 10), ("checkpoint", 20), ("step", 10), ("step", 20)]
    assert told[0] == ("step", 10) and told[-1] == ("end", 20)
    assert events[-1].status == "completed" and len(events[0].wait) == 2

    history = first.history
    assert list(history.step) == [10, 20] and list(second.history.step) == [10, 20, 30]
    assert list(second.history.loss[:2]) == list(history.loss)
    assert list(history.loss) == [event.metrics["loss"] for event in events if event.kind == "step"]
    assert {"group", "phase", "time", "samples_per_s", "accuracy", "wait_rank1"} <= {*history.columns}

    for name, tag in (("train", "loss"), ("rank-1", "wait")):
        read = EventAccumulator(str(first.workspace / "tensorboard" / "group-0" / name)).Reload()
        assert [event.step for event in read.Scalars(tag)] == [10, 20]


def test_cancelling_its_tasks_from_another_client_ends_a_run_with_a_checkpoint(scheduler, client, tmp_path):
    class Cancel(Callback):
        def on_checkpoint(self, event):
            if event.step == 20:
                with Client(scheduler_file=str(scheduler)) as other:
                    keys = [key for keys in other.processing().values() for key in keys if "rank" in key]
                    assert len(keys) == 2 and all(key.startswith("train-A-") for key in keys)
                    other.cancel([Future(key, other) for key in keys], force=True)

    long = {"train_steps": ENDLESS, "checkpoint_freq": 20}
    result = train(job(**long), client, workspace=tmp_path / "run", display=Display(), callbacks=[Cancel()])
    told = result.summary
    assert (told["status"], told["stopped_by"], told["restarts"]) == ("interrupted", "cancelled from Dask", 0)
    assert 20 < told["step"] < ENDLESS and told["samples_per_s"] > 0 and told["train"]["loss"] > 0
    assert result.checkpoint.name == f"step-{told['step']:08d}.h5" and result.checkpoint.exists()
    assert f"stopped at step {told['step']} (cancelled from Dask)" in str(result)
    resumed = train(
        job(train_steps=told["step"] + 5), client, workspace=tmp_path / "run", display=Display(), resume=True
    )
    assert resumed.summary["status"] == "completed" and resumed.workspace == result.workspace


def test_more_workers_than_there_are(client, tmp_path):
    three = ClusterTopology.allreduce(3)
    with pytest.raises(ClusterError, match="only 2 of 3 Dask workers"):
        train(job(), client, cluster=three, workspace=tmp_path, display=Display(), patience_s=5)


def command(scheduler, workspace, steps, *more):
    where = ("--scheduler-file", scheduler, "--cluster", cluster(), "--workspace", workspace)
    return ("train", example(), *where, *TWO, *sets(train_steps=steps, test_freq=0, test_steps=0), *more)


def test_a_cluster_is_found_by_its_scheduler_s_file_and_by_its_address(scheduler, client, here, tmp_path):
    assert "2 workers ready" in here(*command(scheduler, "run", 10)).out
    here("train", example(), *TWO, *sets(train_steps=10), "--scheduler", client.scheduler.address)
    assert summary(tmp_path / "runs" / "digits-allreduce")["step"] == 10


def test_no_scheduler_there(here, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler_options, "CONNECT_S", 0.3)  # it is 30 times as long
    absent = here("train", example(), "--scheduler-file", tmp_path / "none.json", code=1)
    assert "none.json: no scheduler wrote this file within 0.3 s" in absent.err
    silent = here("train", example(), "--scheduler", "tcp://127.0.0.1:9", code=1)
    assert "No Dask scheduler answers at tcp://127.0.0.1:9" in silent.err


@pytest.fixture
def begin(environment, tmp_path):
    """Start `singa-dask train` in the folder of this name, with the output in its file `log`."""
    with ExitStack() as runs:

        def begin(scheduler, name, steps, *more, waits_for):
            (tmp_path / name).mkdir()
            options = command(scheduler, "run", steps, *more)
            process = runs.enter_context(started(*options, folder=tmp_path / name, env=environment))
            wait_until(lambda: waits_for in said(tmp_path / name), process, tmp_path / name, within=120)
            return process

        yield begin


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_second_training_queues_until_the_first_is_stopped(scheduler, begin, here, tmp_path):
    first = begin(scheduler, "first", ENDLESS, waits_for="train  ")
    queued = f"'digits' ({tmp_path}/first/run)"
    second = begin(scheduler, "second", 20, "--tensorboard", waits_for=queued)
    third = begin(scheduler, "third", 20, waits_for=queued)
    third.send_signal(signal.SIGINT)
    assert third.wait(timeout=30) == 130, said(tmp_path / "third")
    assert not (tmp_path / "third" / "run").exists()
    ran = here(*command(scheduler, "fourth", 20, "--max-queue", "1"), code=1)
    assert "'digits' (first/run)" in ran.err

    stopped = here("stop", "first/run", "--scheduler-file", scheduler)
    assert stopped.last_line == f"digits ({tmp_path}/first/run) was asked to stop"
    assert first.wait(timeout=30) == 130, said(tmp_path / "first")
    told = summary(tmp_path / "first" / "run")
    assert (told["status"], told["stopped_by"]) == ("interrupted", "singa-dask stop")
    assert told["checkpoint"].endswith(f"step-{told['step']:08d}.h5") and os.path.exists(told["checkpoint"])
    last = said(tmp_path / "first").splitlines()[-1]
    assert last.startswith(f"stopped at step {told['step']} (singa-dask stop); ") and "go on with --resume" in last

    assert second.wait(timeout=60) == 0, said(tmp_path / "second")
    assert summary(tmp_path / "second" / "run")["step"] == 20
    logs = tmp_path / "second" / "run" / "tensorboard"
    assert f"tensorboard --logdir {logs}" in said(tmp_path / "second") and any(logs.rglob("events.out.*"))
    assert "no run is under way" in here("stop", "--scheduler-file", scheduler, code=1).err


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_run_whose_driver_was_killed_blocks_nobody(scheduler, begin, tmp_path):
    first = begin(scheduler, "first", ENDLESS, waits_for="train  ")
    second = begin(scheduler, "second", 20, waits_for=f"'digits' ({tmp_path}/first/run)")
    first.kill()
    assert second.wait(timeout=90) == 0, said(tmp_path / "second")


@pytest.mark.long
def test_two_runs_share_a_cluster(dask, begin, here, tmp_path):
    dask.workers(4)
    first = begin(dask.file, "first", ENDLESS, waits_for="2 workers ready")
    here(*command(dask.file, "second", 30))
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 130
    assert summary(tmp_path / "first" / "run")["restarts"] == 0
