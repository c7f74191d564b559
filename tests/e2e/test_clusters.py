"""Training on Dask clusters that are already there."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner
from distributed import Client, LocalCluster
from support.commands import cluster, example, said, sets, started, summary, wait_until

from singa_dask import ClusterTopology, Job, cli, layers, train, updaters
from singa_dask.cli import options as cli_options
from singa_dask.errors import ClusterError
from singa_dask.monitor.progress import Display


def job_in_python(nworkers, **fields):
    return Job(
        name="python",
        layers=[
            layers.RecordInput("data", backend="hdf5", path="dataset:digits/train", batchsize=32, std_value=16),
            layers.InnerProduct("hidden", "data", num_output=24),
            layers.ReLU("relu", "hidden"),
            layers.InnerProduct("scores", "relu", num_output=10),
            layers.SoftmaxLoss("loss", ["scores", "data"]),
        ],
        updater=updaters.SGD(lr=0.05, momentum=0.9),
        cluster=ClusterTopology.allreduce(nworkers),
        train_steps=80,
        disp_freq=20,
        **fields,
    )


def test_a_client_is_used_again_and_never_closed(environment, tmp_path, monkeypatch, no_leaks):
    monkeypatch.setenv("SINGA_DASK_CACHE", environment["SINGA_DASK_CACHE"])
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        kept = client.scatter(np.arange(10))
        losses = []
        for attempt in range(2):
            result = train(job_in_python(2), client, workspace=tmp_path / str(attempt), display=Display())
            assert result.summary["status"] == "completed"
            assert result.checkpoint.exists()
            losses.append(result.train["loss"])
        assert losses[0] == losses[1] < 0.4
        assert client.status == "running"
        assert kept.result(timeout=10).sum() == 45, "what the user has on the workers is still there"
        too_many = job_in_python(3)
        with pytest.raises(ClusterError, match="only 2 of 3 Dask workers"):
            train(too_many, client, workspace=tmp_path / "x", display=Display(), patience_s=1)


@pytest.mark.long
def test_a_scheduler_file_and_an_address(environment, singa_dask, tmp_path, no_leaks):
    file = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file), "--nworkers", "2"]
    options = {"cwd": tmp_path, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [
        subprocess.Popen(
            [*dask, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)], **options
        )
    ]
    try:
        while not file.exists():
            assert started[0].poll() is None
            time.sleep(0.05)
        started.append(
            subprocess.Popen([*worker, "--nthreads", "1", "--host", "127.0.0.1", "--no-dashboard"], **options)
        )
        two = sets(cluster__nworkers_per_group=2, cluster__nservers_per_group=2, train_steps=30)
        ran = singa_dask("train", example(), "--cluster", cluster(), *two, "--scheduler-file", file)
        assert ran.code == 0, ran.err
        assert "2 workers ready" in ran.out
        with Client(scheduler_file=str(file)) as client:
            address = client.scheduler.address
        again = singa_dask("train", example(), "--cluster", cluster(), *two, "--scheduler", address)
        assert again.code == 0, again.err
        assert summary(tmp_path / "runs" / "digits-allreduce")["step"] == 30
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=20)


@pytest.mark.long
def test_two_runs_share_a_cluster(environment, singa_dask, tmp_path, no_leaks):
    with LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None) as dask:
        here = ("--scheduler", dask.scheduler_address, "--cluster", cluster())
        two = sets(cluster__nworkers_per_group=2, cluster__nservers_per_group=2)
        long = sets(train_steps=100_000, test_freq=0, test_steps=0)
        first = ("train", example(), *here, *two, *long, "--workspace", "first")
        with started(*first, folder=tmp_path, env=environment) as run:
            wait_until(lambda: "2 workers ready" in said(tmp_path), run, tmp_path)
            ran = singa_dask("train", example(), *here, *two, *sets(train_steps=30), "--workspace", "second")
            assert ran.code == 0, ran.err
            assert run.poll() is None
            run.send_signal(signal.SIGTERM)
            assert run.wait(timeout=30) == 130
    assert summary(tmp_path / "first")["restarts"] == 0


def test_no_scheduler_there(tmp_path, monkeypatch):
    monkeypatch.setattr(cli_options, "CONNECT_S", 0.3)  # it is 30 times as long
    monkeypatch.setattr(sys, "path", list(sys.path))
    options = (["--scheduler-file", tmp_path / "none.json"], ["--scheduler", "tcp://127.0.0.1:9"])
    for option, told in zip(
        options,
        ("none.json: no scheduler wrote this file within 0.3 s", "No Dask scheduler answers at tcp://127.0.0.1:9"),
        strict=True,
    ):
        ran = CliRunner().invoke(cli.main, ["train", str(example()), *map(str, option)])
        assert ran.exit_code == 1 and isinstance(ran.exception, SystemExit)
        assert told in ran.output
        assert "Traceback" not in ran.output
