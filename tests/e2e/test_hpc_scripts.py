"""The batch scripts of examples/hpc, with mpiexec in place of SLURM's srun, or with a command in place of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, cluster, example, summary, wait_until
from support.launch import is_open_mpi, launched, mpiexec

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
    processes = []

    def start(script: str, **more: str) -> subprocess.Popen:
        with open(tmp_path / "log", "a") as log:
            processes.append(
                subprocess.Popen(
                    ["bash", SCRIPTS / script],
                    cwd=tmp_path,
                    env=launched(environment) | variables | more,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.name)
def test_bash_reads_them(script):
    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True, timeout=20)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.long
@pytest.mark.timeout(150)
def test_a_job_that_runs_out_of_time_is_queued_again_and_resumes(submit, tmp_path, no_leaks):
    log = tmp_path / "log"
    job = submit("mpi.sbatch")
    wait_until(lambda: log.exists() and "saved" in log.read_text(), job, tmp_path)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=40) == 130, log.read_text()
    assert (tmp_path / "scontrol.log").read_text() == "requeue 77\n"
    stopped = summary(tmp_path / "run")
    assert stopped["status"] == "interrupted" and stopped["step"] < 200
    again = submit("mpi.sbatch")
    assert again.wait(timeout=80) == 0, log.read_text()
    assert f"from step {stopped['step']}" in log.read_text()
    assert summary(tmp_path / "run")["step"] == 200


@pytest.mark.timeout(150)
def test_workers_by_dask_mpi_and_a_driver_beside_them(submit, tmp_path, no_leaks):
    job = submit("dask-mpi.sbatch")
    assert job.wait(timeout=100) == 0, (tmp_path / "log").read_text()
    assert summary(tmp_path / "run")["step"] == 200
    assert not list(tmp_path.glob("scheduler-*.json"))


@pytest.mark.timeout(150)
def test_slurm_signals_a_job_twice_before_it_kills_it(submit, tmp_path, no_leaks):
    """It signals mpiexec and the ranks, and mpiexec passes it on; the script waits for them."""
    log = tmp_path / "log"
    job = submit("mpi.sbatch")
    wait_until(lambda: log.exists() and "saved" in log.read_text(), job, tmp_path)
    for _ in range(2):
        os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(timeout=40) == (1 if is_open_mpi() else 130), log.read_text()
    told = summary(tmp_path / "run")
    assert told["status"] == "interrupted" and told["step"] > 0
    assert (tmp_path / "run" / "checkpoint" / f"step-{told['step']:08d}.h5").exists(), log.read_text()
    assert not (tmp_path / "scontrol.log").exists(), "Slurm itself queues it again"


@pytest.mark.timeout(150)
def test_the_driver_beside_dask_mpi_is_told_that_time_runs_out(submit, tmp_path, no_leaks):
    log = tmp_path / "log"
    job = submit("dask-mpi.sbatch")
    wait_until(lambda: log.exists() and "saved" in log.read_text(), job, tmp_path)
    job.send_signal(signal.SIGUSR1)
    os.killpg(job.pid, signal.SIGTERM)  # of all processes only the driver heeds it
    assert job.wait(timeout=40) == 130, log.read_text()
    told = summary(tmp_path / "run")
    assert told["status"] == "interrupted" and told["step"] > 0
    assert (tmp_path / "run" / "checkpoint" / f"step-{told['step']:08d}.h5").exists(), log.read_text()
    assert "Traceback" not in log.read_text() and " - INFO - " not in log.read_text()
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
        subprocess.run(["bash", "-c", before], cwd=tmp_path, check=True, timeout=20)
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
    assert played(does, before, tell) == code, (tmp_path / "log").read_text()
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
    job = submit(script, LAUNCH="nosuch -n 4")
    assert job.wait(timeout=20) == 127
    said = (tmp_path / "log").read_text()
    assert said == "nosuch is not in PATH: load its module or activate its environment\n"


@pytest.mark.skipif(is_open_mpi(), reason="its workers start MPI by themselves")
def test_the_jobs_of_dask_jobqueue(environment, tmp_path):
    command = [sys.executable, SCRIPTS / "jobqueue.py", example(), cluster(), "--interface", "lo", "--show"]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50)
    assert shown.returncode == 0, shown.stderr
    assert "#SBATCH --cpus-per-task=4" in shown.stdout
    assert "distributed.cli.dask_worker" in shown.stdout and "--nanny" in shown.stdout
