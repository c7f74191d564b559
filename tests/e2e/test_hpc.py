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
from support import commands
from support.commands import COMMAND, Ran, cluster, example, run_command, said, sets, summary, wait_until
from support.launch import is_open_mpi, launched, mpiexec

TWO = sets(cluster__nworkers_per_group=2, cluster__nservers_per_group=2)
pytestmark = pytest.mark.timeout(150)

LONG = sets(train_steps=100_000, test_freq=0, test_steps=0, checkpoint_freq=50, disp_freq=20)


@pytest.fixture
def train_mpi(environment, tmp_path):
    """Run `mpiexec -n RANKS singa-dask train ARGS` to its end."""

    def run(ranks: int, *args: object, code: int = 0) -> Ran:
        command = [*mpiexec(ranks), *COMMAND, "train", *args]
        return run_command(command, cwd=tmp_path, env=launched(environment), code=code)

    return run


@contextmanager
def started(environment, tmp_path, *command):
    """A command of mpiexec in the background. Its output is in the file `log`; all of it ends with the context."""
    with commands.started(folder=tmp_path, env=launched(environment), command=command) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                for child in (*psutil.Process(process.pid).children(recursive=True), process):
                    child.kill()


@contextmanager
def saved(environment, tmp_path, *more):
    """A long run of two workers in the background that has saved a checkpoint."""
    command = [*mpiexec(3), *COMMAND, "train", example(), "--cluster", cluster(), "--workspace", "run", *TWO, *LONG]
    with started(environment, tmp_path, *command, "--mpi", *more) as process:
        wait_until(lambda: "saved" in said(tmp_path), process, tmp_path)
        yield process


def ranks_of(process: subprocess.Popen) -> list[psutil.Process]:
    """The ranks of an MPI job, in order."""
    trees = psutil.Process(process.pid).children(recursive=True)
    found = [child for child in trees if "singa_dask" in child.cmdline() and "-n" not in child.cmdline()]
    variables = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
    return sorted(
        found, key=lambda rank: next(int(rank.environ()[name]) for name in variables if name in rank.environ())
    )


def test_one_mpi_job_trains_as_a_local_cluster_does(train_mpi, here, tmp_path, no_leaks):
    args = (example(), *sets(train_steps=60, test_freq=30))
    ran = train_mpi(3, *args, "--cluster", cluster(), *TWO, "--mpi", "--workspace", "mpi")
    assert ran.out.count("2 workers ready") == 1, "only rank 0 prints"
    assert "done at step 60" in ran.last_line
    assert ran.err.count("\n") <= 1, "on standard error, only that the data set is made"
    here("train", *args, "--workspace", "local")
    assert summary(tmp_path / "mpi")["test"] == pytest.approx(summary(tmp_path / "local")["test"], rel=1e-3)


@pytest.mark.long
def test_groups_of_one_mpi_job_train_side_by_side(train_mpi, tmp_path, no_leaks):
    train_mpi(5, example(), "--cluster", cluster("hybrid"), "--mpi", *sets(train_steps=60, test_freq=30))
    told = summary(tmp_path / "runs" / "digits-hybrid")
    assert told["step"] == 60 and told["test"]["accuracy"] > 0.5


def test_a_local_cluster_under_open_mpi_points_to_mpi_jobs(singa_dask, no_leaks):
    if not is_open_mpi():
        pytest.skip("this environment's MPI can start inside Dask workers")
    ran = singa_dask("train", example(), "--cluster", cluster(), code=1)
    assert ran.err.count("error:") == 1 and "Traceback" not in ran.err
    assert re.search(r"Open MPI v\S+ cannot form groups inside running Dask workers.* --mpi`.*dask-mpi", ran.err)


@pytest.mark.parametrize(
    ("args", "times", "says"),
    [
        (["--cluster", cluster(), *TWO, "--mpi"], 1, r"needs 2 workers\. Received: 2\. Run it as `mpiexec -n 3 "),
        ([], 2, r"\w+SIZE: says that mpiexec has started this several times.* Received: 2\. Give --mpi"),
        (["--mpi", "--set", "trainsteps=3"], 1, "trainsteps: there is no such field"),
        (["--mpi", "--interface", "nosuch0"], 1, "--interface: .*'nosuch0' is not a valid network interface"),
        (["--mpi", "--scheduler", "tcp://127.0.0.1:9"], 1, "--mpi starts its own Dask cluster"),
    ],
    ids=["too few ranks", "no --mpi", "a wrong job", "no such interface", "a scheduler"],
)
def test_what_is_wrong_is_said_before_anything_starts(train_mpi, tmp_path, no_leaks, args, times, says):
    ran = train_mpi(2, example(), *args, code=2)
    assert len(re.findall(f"(?i)^error: .*{says}", ran.err, re.MULTILINE)) == times, ran.err
    assert "Traceback" not in ran.err and not (tmp_path / "runs").exists()


def test_a_run_that_fails_gives_mpiexec_its_exit_code(train_mpi, tmp_path, no_leaks):
    diverging = sets(updater__learning_rate__base_lr=1e9)
    ran = train_mpi(3, example(), "--cluster", cluster(), *TWO, *diverging, "--mpi", code=1)
    assert "training diverged" in ran.err and "Traceback" not in ran.err
    assert summary(tmp_path / "runs" / "digits-allreduce")["status"] == "failed"


def ends_with_a_checkpoint(process, tmp_path, number):
    """The summary of a job after this signal."""
    process.send_signal(number)
    code = process.wait(timeout=40)
    told = summary(tmp_path / "run")
    assert told["status"] == "interrupted", said(tmp_path)
    assert told["checkpoint"].endswith(f"step-{told['step']:08d}.h5") and Path(told["checkpoint"]).exists()
    # Open MPI's mpiexec answers these two itself: it ends with 1, and kills the ranks after a second.
    own = is_open_mpi() and number != signal.SIGUSR1
    assert code == (1 if own else 130), said(tmp_path)
    return told


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGUSR1])
def test_a_stopped_job_ends_with_a_checkpoint(environment, tmp_path, no_leaks, number):
    with saved(environment, tmp_path) as running:
        ends_with_a_checkpoint(running, tmp_path, number)


def test_a_dead_rank_ends_the_job_and_the_next_one_resumes(environment, tmp_path, no_leaks):
    with saved(environment, tmp_path) as running:
        ranks_of(running)[2].kill()
        assert running.wait(timeout=30) != 0
    step = int(re.findall(r"step +(\d+)/\d+  saved", said(tmp_path))[-1])
    with saved(environment, tmp_path, "--resume") as resumed:
        assert f"from step {step}" in said(tmp_path)
        assert ends_with_a_checkpoint(resumed, tmp_path, signal.SIGTERM)["step"] > step


@pytest.mark.long
def test_workers_that_dask_mpi_starts(environment, here, tmp_path, no_leaks):
    file = tmp_path / "scheduler.json"
    dask_mpi = [Path(sys.executable).with_name("dask-mpi"), "--worker-class", "distributed.Worker", "--nthreads", "1"]
    options = ["--memory-limit", "0", "--no-dashboard", "--interface", "lo", "--scheduler-file", file]
    with started(environment, tmp_path, *mpiexec(4), *dask_mpi, *options) as dask:
        wait_until(file.exists, dask, tmp_path, within=40)
        for _ in range(2):
            few = sets(train_steps=60)
            ran = here("train", example(), "--cluster", cluster(), *few, "--scheduler-file", file)
            assert "3 workers ready" in ran.out and "done at step 60" in ran.last_line
        with Client(scheduler_file=str(file)) as client:
            client.shutdown()
        assert dask.wait(timeout=30) == 0, said(tmp_path)
