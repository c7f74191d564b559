"""Clusters that mpiexec starts: all of a run in one MPI job (--mpi), or its workers (dask-mpi)."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from distributed import Client
from support.commands import COMMAND, Ran, cluster, example, said, sets, summary, wait_until
from support.launch import is_open_mpi, launched, mpiexec

TWO = sets(cluster__nworkers_per_group=2, cluster__nservers_per_group=2)
LONG = sets(train_steps=100_000, test_freq=0, test_steps=0, checkpoint_freq=50, disp_freq=20)


@pytest.fixture
def train_mpi(environment, tmp_path):
    """Run `mpiexec -n RANKS singa-dask train ARGS --mpi` to its end."""

    def run(ranks: int, *args: object) -> Ran:
        command = [*mpiexec(ranks), *COMMAND, "train", *map(str, args), "--mpi"]
        done = subprocess.run(
            command, cwd=tmp_path, env=launched(environment), capture_output=True, text=True, timeout=100
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@contextmanager
def started(environment, tmp_path, *more):
    """A long run in the background that has saved a checkpoint."""
    command = [*mpiexec(3), *COMMAND, "train", str(example()), "--cluster", str(cluster()), "--workspace", "run"]
    command += [*TWO, *LONG, "--mpi", *more]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=launched(environment), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: "saved" in said(tmp_path), process, tmp_path)
        yield process
    finally:
        if process.poll() is None:
            kill_all(process)
        process.wait()


@pytest.fixture
def running(environment, tmp_path):
    """A long run in the background that has saved its first checkpoint."""
    with started(environment, tmp_path) as process:
        yield process


def ranks_of(process: subprocess.Popen) -> list[psutil.Process]:
    """The ranks of an MPI job, in order."""
    trees = psutil.Process(process.pid).children(recursive=True)
    found = [child for child in trees if "singa_dask" in child.cmdline() and "-n" not in child.cmdline()]
    variables = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
    return sorted(
        found, key=lambda rank: next(int(rank.environ()[name]) for name in variables if name in rank.environ())
    )


def kill_all(process: subprocess.Popen) -> None:
    for child in (*psutil.Process(process.pid).children(recursive=True), process):
        child.kill()


@pytest.mark.timeout(150)
def test_one_mpi_job_trains_as_a_local_cluster_does(train_mpi, singa_dask, tmp_path, no_leaks):
    short = sets(train_steps=60, test_freq=30)
    args = (example(), "--cluster", cluster(), *short)
    ran = train_mpi(3, *args, *TWO, "--workspace", "mpi")
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.count("2 workers ready") == 1, "only rank 0 prints"
    assert "done at step 60" in ran.last_line
    assert ran.err.count("\n") <= 1, "on standard error, only that the data set is made"
    alone = sets(cluster__nworkers_per_group=1, cluster__nservers_per_group=1)
    local = singa_dask("train", *args, *alone, "--workspace", "local")
    assert local.code == 0, local.err
    assert summary(tmp_path / "mpi")["test"] == pytest.approx(summary(tmp_path / "local")["test"], rel=1e-3)


@pytest.mark.timeout(150)
def test_groups_of_one_mpi_job_train_side_by_side(train_mpi, tmp_path, no_leaks):
    ran = train_mpi(5, example(), "--cluster", cluster("hybrid"), *sets(train_steps=60, test_freq=30))
    assert ran.code == 0, ran.out + ran.err
    told = summary(tmp_path / "runs" / "digits-hybrid")
    assert told["step"] == 60 and told["test"]["accuracy"] > 0.5


def test_a_local_cluster_under_open_mpi_points_to_mpi_jobs(singa_dask, no_leaks):
    if not is_open_mpi():
        pytest.skip("this environment's MPI can start inside Dask workers")
    ran = singa_dask("train", example(), "--cluster", cluster())
    assert ran.code == 1
    assert ran.err.count("error:") == 1 and "Traceback" not in ran.err
    assert re.search(r"Open MPI v\S+ cannot form groups inside running Dask workers.* --mpi`.*dask-mpi", ran.err)


@pytest.mark.timeout(150)
def test_too_few_ranks_and_wrong_jobs_end_before_anything_starts(train_mpi, tmp_path, no_leaks):
    ran = train_mpi(2, example(), "--cluster", cluster(), *TWO)
    assert ran.code == 2
    assert ran.err.count("error:") == 1, ran.err
    assert "the job needs 2 workers. Received: 2. Run it as `mpiexec -n 3 " in ran.err
    (tmp_path / "bad.conf").write_text("trainsteps: 3\n")
    ran = train_mpi(2, "bad.conf")
    assert ran.code == 2
    assert "bad.conf:1:1: trainsteps: there is no such field" in ran.err
    ran = train_mpi(2, example(), "--interface", "nosuch0")
    assert ran.code == 2
    assert "error: --interface: " in ran.err and "'nosuch0' is not a valid network interface" in ran.err
    ran = train_mpi(2, example(), "--scheduler", "tcp://127.0.0.1:9")
    assert ran.code == 2
    assert "--mpi starts its own Dask cluster" in ran.err
    assert "Traceback" not in ran.err
    assert not (tmp_path / "runs").exists()


def test_mpiexec_without_mpi_trains_nothing_several_times(environment, tmp_path, no_leaks):
    command = [*mpiexec(2), *COMMAND, "train", str(example())]
    ran = subprocess.run(command, cwd=tmp_path, env=launched(environment), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert re.search(
        r"error: \w+SIZE: says that mpiexec has started this several times.* Received: 2\. Give --mpi", ran.stderr
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.timeout(150)
def test_a_run_that_fails_gives_mpiexec_its_exit_code(train_mpi, tmp_path, no_leaks):
    ran = train_mpi(3, example(), "--cluster", cluster(), *TWO, *sets(updater__learning_rate__base_lr=1e9))
    assert ran.code == 1
    assert "training diverged" in ran.err and "Traceback" not in ran.err
    assert summary(tmp_path / "runs" / "digits-allreduce")["status"] == "failed"


@pytest.mark.timeout(150)
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGUSR1])
def test_a_stopped_job_ends_with_a_checkpoint(running, tmp_path, no_leaks, number):
    running.send_signal(number)
    ends_with_a_checkpoint(running, tmp_path, number)


def ends_with_a_checkpoint(process, tmp_path, number):
    """The summary of a job that was sent a signal."""
    code = process.wait(timeout=40)
    told = summary(tmp_path / "run")
    assert told["status"] == "interrupted", said(tmp_path)
    assert told["checkpoint"].endswith(f"step-{told['step']:08d}.h5") and Path(told["checkpoint"]).exists()
    # Open MPI's mpiexec answers these two itself: it ends with 1, and kills the ranks after a second.
    own = is_open_mpi() and number != signal.SIGUSR1
    assert code == (1 if own else 130), said(tmp_path)
    return told


@pytest.mark.timeout(150)
def test_a_dead_rank_ends_the_job_and_the_next_one_resumes(running, environment, tmp_path, no_leaks):
    ranks_of(running)[2].kill()
    assert running.wait(timeout=30) != 0
    saved = int(re.findall(r"step +(\d+)/\d+  saved", said(tmp_path))[-1])
    with started(environment, tmp_path, "--resume") as resumed:
        assert f"from step {saved}" in said(tmp_path)
        resumed.send_signal(signal.SIGTERM)
        assert ends_with_a_checkpoint(resumed, tmp_path, signal.SIGTERM)["step"] > saved


@pytest.mark.long
@pytest.mark.timeout(150)
def test_workers_that_dask_mpi_starts(environment, singa_dask, tmp_path, no_leaks):
    file = tmp_path / "scheduler.json"
    dask_mpi = [Path(sys.executable).with_name("dask-mpi"), "--worker-class", "distributed.Worker", "--nthreads", "1"]
    options = ["--memory-limit", "0", "--no-dashboard", "--interface", "lo", "--scheduler-file", file]
    with open(tmp_path / "log", "w") as log:
        command = [*mpiexec(4), *map(str, (*dask_mpi, *options))]
        started = subprocess.Popen(
            command, cwd=tmp_path, env=launched(environment), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_until(file.exists, started, tmp_path, within=40)
        args = ("train", example(), "--cluster", cluster(), *sets(train_steps=60), "--scheduler-file", file)
        for _ in range(2):
            ran = singa_dask(*args)
            assert ran.code == 0, ran.err + said(tmp_path)
            assert "3 workers ready" in ran.out and "done at step 60" in ran.last_line
        with Client(scheduler_file=str(file)) as client:
            client.shutdown()
        assert started.wait(timeout=30) == 0, said(tmp_path)
    finally:
        if started.poll() is None:
            kill_all(started)
        started.wait()
