"""The batch scripts of examples/hpc, with mpiexec in place of SLURM's srun, or with a command in place of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commands import ROOT, cluster, example, run_command, said, started, summary, wait_until
from support.launch import is_open_mpi, launched, mpiexec

pytestmark = pytest.mark.timeout(150)

SCRIPTS = ROOT / "examples" / "hpc"


@pytest.fixture
def submit(environment, tmp_path):
    """Start a script as SLURM would."""
    job = tmp_path / "job.conf"
    job.write_text(example().read_text().replace("train_steps: 600", "train_steps: 200").replace(": 300", ": 50"))
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/scontrol.log\n')
    scontrol.chmod(0o755)
    path = [str(scontrol.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    variables = {
        "PATH": ":".join(path),
        "JOB": str(job),
        "CLUSTER": str(cluster()),
        "WORKSPACE": "run",
        "INTERFACE": "lo",
        "LAUNCH": " ".join(mpiexec(4)),
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NAME": "digits",
        "SLURM_CPUS_PER_TASK": "1",
    }
    with ExitStack() as jobs:

        def start(script: str, **more: str) -> subprocess.Popen:
            env = launched(environment) | variables | more
            return jobs.enter_context(started(folder=tmp_path, env=env, command=["bash", SCRIPTS / script]))

        yield start


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)
def test_bash_reads_them(script):
    run_command(["bash", "-n", script])


@pytest.fixture
def saved(submit, tmp_path):
    """A job that has saved a checkpoint."""

    def start(script):
        job = submit(script)
        wait_until(lambda: "saved" in said(tmp_path), job, tmp_path)
        return job

    return start


def is_interrupted(job, folder, code=130):
    """The step at which a job was interrupted, and of which it has a checkpoint."""
    assert job.wait(timeout=40) == code, said(folder)
    told = summary(folder / "run")
    assert told["status"] == "interrupted" and 0 < told["step"] < 200
    assert (folder / "run" / "checkpoint" / f"step-{told['step']:08d}.h5").exists(), said(folder)
    return told["step"]


@pytest.mark.long
def test_a_job_that_runs_out_of_time_is_queued_again_and_resumes(saved, submit, tmp_path, no_leaks):
    job = saved("mpi.sbatch")
    job.send_signal(signal.SIGUSR1)
    step = is_interrupted(job, tmp_path)
    assert (tmp_path / "scontrol.log").read_text() == "requeue 77\n"
    assert submit("mpi.sbatch").wait(timeout=80) == 0, said(tmp_path)
    assert f"from step {step}" in said(tmp_path)
    assert summary(tmp_path / "run")["step"] == 200


@pytest.mark.long
def test_workers_by_dask_mpi_and_a_driver_beside_them(submit, tmp_path, no_leaks):
    assert submit("dask-mpi.sbatch").wait(timeout=100) == 0, said(tmp_path)
    assert summary(tmp_path / "run")["step"] == 200
    assert not list(tmp_path.glob("scheduler-*.json"))


def test_slurm_signals_a_job_twice_before_it_kills_it(saved, tmp_path, no_leaks):
    """It signals mpiexec and the ranks, and mpiexec passes it on; the script waits for them."""
    job = saved("mpi.sbatch")
    for _ in range(2):
        os.killpg(job.pid, signal.SIGTERM)
    is_interrupted(job, tmp_path, 1 if is_open_mpi() else 130)
    assert not (tmp_path / "scontrol.log").exists(), "Slurm itself queues it again"


def test_the_driver_beside_dask_mpi_is_told_that_time_runs_out(saved, tmp_path, no_leaks):
    job = saved("dask-mpi.sbatch")
    job.send_signal(signal.SIGUSR1)
    os.killpg(job.pid, signal.SIGTERM)  # of all processes only the driver heeds it
    is_interrupted(job, tmp_path)
    assert "Traceback" not in said(tmp_path) and " - INFO - " not in said(tmp_path)
    assert not list(tmp_path.glob("scheduler-*.json"))


FOUND = "mkdir -p run/checkpoint; touch run/checkpoint/step-00000200.h5"
COMPLETE = FOUND + """; echo '  "status": "completed",' > run/summary.json"""


@pytest.fixture
def played(submit, tmp_path):
    """Start mpi.sbatch with shell commands in place of the run; returns its exit code. Arguments are in `args`."""
    command = tmp_path / "bin" / "singa-dask"
    command.write_text(f'#!/bin/bash\necho "$@" > {tmp_path}/args\neval "$DOES"\n')
    command.chmod(0o755)

    def play(does: str, before: str = "true", tell=(), **more: str) -> int:
        run_command(["bash", "-c", before], cwd=tmp_path)
        job = submit("mpi.sbatch", LAUNCH="env", DOES=does, **more)
        for number in tell:
            wait_until((tmp_path / "ready").exists, job, tmp_path)
            job.send_signal(number)
        return job.wait(timeout=30)

    return play


WAITS = "trap 'exit 130' USR1; touch ready; while :; do sleep 0.02; done"
ENDS_LATE = "trap '' USR1; touch ready; sleep 0.5; exit 130"


@pytest.mark.parametrize(
    ("does", "before", "tell", "code", "requeued"),
    [
        ("exit 1", "true", (), 1, False),
        ("exit 130", "true", (), 130, False),
        (WAITS, "true", (signal.SIGUSR1,), 130, True),
        (ENDS_LATE, "true", (signal.SIGUSR1,), 130, True),
        (ENDS_LATE, "true", (signal.SIGTERM, signal.SIGTERM), 130, False),
        (COMPLETE + "; exit 137", "true", (), 0, False),
        ("exit 2", COMPLETE, (), 2, False),
        ("rm run/summary.json; exit 137", COMPLETE, (), 137, False),
    ],
)
def test_the_exit_code_of_a_job_is_that_of_its_run(played, tmp_path, does, before, tell, code, requeued):
    assert played(does, before, tell) == code, said(tmp_path)
    assert (tmp_path / "scontrol.log").exists() == requeued


@pytest.mark.parametrize(
    ("before", "variables", "resumes"),
    [
        ("true", {}, False),
        (FOUND, {}, True),
        (COMPLETE, {}, False),
        (COMPLETE, {"SLURM_RESTART_COUNT": "1"}, True),
        (COMPLETE, {"RESUME": "yes"}, True),
    ],
)
def test_a_job_resumes_what_is_not_complete(played, tmp_path, before, variables, resumes):
    assert played("exit 0", before, **variables) == 0
    assert ("--resume" in (tmp_path / "args").read_text()) == resumes


@pytest.mark.parametrize(
    ("variables", "folder"), [({}, "runs/digits-0"), ({"SLURM_ARRAY_TASK_ID": "7"}, "runs/digits-7")]
)
def test_jobs_of_an_array_have_a_workspace_each(played, tmp_path, variables, folder):
    assert played("exit 0", WORKSPACE="", **variables) == 0
    assert f"--workspace {folder} " in (tmp_path / "args").read_text()


@pytest.mark.parametrize("script", ["mpi.sbatch", "dask-mpi.sbatch"])
def test_a_command_that_is_not_in_path_is_named(submit, tmp_path, script):
    assert submit(script, LAUNCH="nosuch -n 4").wait(timeout=20) == 127
    assert said(tmp_path) == "nosuch is not in PATH: load its module or activate its environment\n"


@pytest.mark.skipif(is_open_mpi(), reason="its workers start MPI by themselves")
def test_the_jobs_of_dask_jobqueue(program):
    shown = program(SCRIPTS / "jobqueue.py", example(), cluster(), "--interface", "lo", "--show").out
    assert "#SBATCH --cpus-per-task=4" in shown and "distributed.cli.dask_worker" in shown and "--nanny" in shown
