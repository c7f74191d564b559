"""The batch scripts of examples/hpc, with mpiexec in place of SLURM's srun."""

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
        "SLURM_CPUS_PER_TASK": "1",
    }
    processes = []

    def start(script: str) -> subprocess.Popen:
        with open(tmp_path / "log", "a") as log:
            processes.append(
                subprocess.Popen(
                    ["bash", SCRIPTS / script],
                    cwd=tmp_path,
                    env=launched(environment) | variables,
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


@pytest.mark.skipif(is_open_mpi(), reason="its workers start MPI by themselves")
def test_the_jobs_of_dask_jobqueue(environment, tmp_path):
    command = [sys.executable, SCRIPTS / "jobqueue.py", example(), cluster(), "--interface", "lo", "--show"]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50)
    assert shown.returncode == 0, shown.stderr
    assert "#SBATCH --cpus-per-task=4" in shown.stdout
    assert "distributed.cli.dask_worker" in shown.stdout and "--nanny" in shown.stdout
