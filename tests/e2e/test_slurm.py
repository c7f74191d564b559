"""The scripts of examples/hpc on a real Slurm: `make test-slurm`, `SLURM_TIMES=20 make test-slurm`.

Whatever ends a job, its work is kept, the next start resumes from there, and no node is held.
"""

from __future__ import annotations

import os
import re
import sys
from itertools import product
from pathlib import Path

import pytest
from support import slurm as module
from support.commands import ROOT, cluster, example, said, summary, wait_for

from singa_dask.training.checkpoint import newest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPTS = ROOT / "examples" / "hpc"
TIMES = int(os.environ.get("SLURM_TIMES", "1"))
MPIEXEC = {"LAUNCH": "mpiexec -n 4"}
SRUN: dict[str, str] = {}
OFI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory, environment):
    if why := module.missing():
        pytest.skip(why)
    own = str(Path(sys.executable).parent)
    with module.slurm(tmp_path_factory.mktemp("slurm"), environment) as made:
        made.environment["PATH"] = f"{own}:{made.environment['PATH']}"
        yield made


class Batch:
    """Jobs of a script, in a folder of their own. They end with the test."""

    def __init__(self, slurm, folder, script, launch, *options, steps=1_000_000):
        self.slurm, self.folder, self.script, self.launch, self.options = slurm, folder, script, launch, options
        text = example().read_text()
        for name, value in {"train_steps": steps, "test_freq": 0, "checkpoint_freq": 100}.items():
            text = re.sub(rf"{name}: \d+", f"{name}: {value}", text)
        (folder / "job.conf").write_text(text)
        self.job = ""

    def submit(self) -> str:
        variables = {"JOB": "job.conf", "CLUSTER": str(cluster()), "WORKSPACE": "run", **self.launch}
        exported = ",".join(["ALL", *(f"{name}={value}" for name, value in variables.items())])
        options = ["--parsable", "--chdir", self.folder, "--output=log", "--cpus-per-task=1", "--nodes=1", "--time=5"]
        self.job = self.slurm.call(
            "sbatch", *options, f"--export={exported}", *self.options, SCRIPTS / f"{self.script}.sbatch"
        )
        return self.job

    def said(self) -> str:
        return said(self.folder)

    def wait(self, condition, within=90.0) -> None:
        wait_for(condition, lambda: f"{self.slurm.about(self.job)}\n{self.said()[-5000:]}", within)

    def wait_for_end(self, within=90.0) -> None:
        self.wait(lambda: self.slurm.ended(self.job), within)

    def starts(self) -> list[int]:
        """The steps from which it has gone on."""
        return [int(step) for step in re.findall(r", from step (\d+)", self.said())]

    def saves(self) -> None:
        before = self.said().count("saved")
        self.wait(lambda: self.said().count("saved") > before)


@pytest.fixture
def batch(slurm, tmp_path):
    made = []

    def make(*args, **options):
        made.append(Batch(slurm, tmp_path, *args, **options))
        made[-1].submit()
        return made[-1]

    yield make
    for each in made:
        slurm.call("scancel", each.job)
        each.wait_for_end()


def preempted(batch):
    options = ["--parsable", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"]
    batch.slurm.call("sbatch", *options)


def out_of_time(batch):
    """Slurm looks every 30 s for jobs whose time is nearly over: the signal must come before the end."""
    minutes, _, seconds = batch.slurm.about(batch.job)["RunTime"].rpartition(":")
    left = int(minutes.rpartition(":")[2]) + 1 + (int(seconds) > 25)
    batch.slurm.call("scontrol", "update", f"JobId={batch.job}", f"TimeLimit={left}")


def requeued(batch):
    batch.slurm.call("scontrol", "requeue", batch.job)


def told(batch):
    batch.slurm.call("scancel", "--batch", "--signal=USR1", batch.job)


def cancelled(batch):
    batch.slurm.call("scancel", batch.job)


def cancelled_in_full(batch):
    batch.slurm.call("scancel", "--signal=TERM", "--full", batch.job)


QUEUED_AGAIN = (preempted, out_of_time, requeued, told)
ENDS = (*QUEUED_AGAIN, cancelled, cancelled_in_full)
LAUNCHERS = {"srun": SRUN, "mpiexec": MPIEXEC}
STARTS = [*product(("mpi", "dask-mpi"), LAUNCHERS), ("dask-worker", "srun")]


@pytest.fixture(autouse=True, params=range(TIMES))
def again(request):
    """Each test runs so many times."""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("script", "launcher"), STARTS)
def test_work_is_kept_and_the_next_start_goes_on(batch, tmp_path, script, launcher, end):
    run = batch(script, LAUNCHERS[launcher], "--signal=B:USR1@60")
    run.saves()
    end(run)
    job = run.job
    if end in QUEUED_AGAIN:
        run.wait(lambda: run.slurm.about(job)["Restarts"] == "1")
        run.wait(lambda: run.slurm.state(job) in ("PENDING", "RUNNING"), 60)
        run.slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=5")
    else:
        run.wait_for_end(60)
    killed = end is cancelled_in_full and launcher == "srun"  # Slurm kills the step
    stopped = summary(tmp_path / "run") if (tmp_path / "run" / "summary.json").exists() else {}
    saved = newest(tmp_path / "run" / "checkpoint")[0].step
    if not killed:
        assert (stopped["status"], stopped["step"]) == ("interrupted", saved), run.said()
    if end not in QUEUED_AGAIN:
        run.submit()
    run.wait(run.starts)
    assert run.starts() == [saved], run.said()
    assert "Traceback" not in run.said() and " - INFO - " not in run.said()


@pytest.mark.parametrize(("script", "launcher"), STARTS)
def test_a_lost_rank_holds_no_node(batch, slurm, tmp_path, script, launcher):
    run = batch(script, LAUNCHERS[launcher], steps=3000)
    after = ["--parsable", f"--dependency=afterok:{run.job}", "--output=/dev/null", "--wrap=true"]
    follower = slurm.call("sbatch", *after)
    run.saves()
    slurm.processes(run.job, 2)[-1].kill()  # of a worker and its nanny, the worker
    run.wait_for_end(180)
    if launcher == "mpiexec":  # ends all ranks
        assert slurm.state(run.job) == "FAILED"
        slurm.call("scancel", follower)
        saved = newest(tmp_path / "run" / "checkpoint")[0].step
        run.submit()
        run.wait(run.starts)
        assert run.starts() == [saved]
        return
    assert slurm.about(run.job)["ExitCode"] == "0:0", run.said()
    assert summary(tmp_path / "run")["status"] == "completed" and summary(tmp_path / "run")["step"] == 3000
    run.wait(lambda: slurm.state(follower) == "COMPLETED")


@pytest.mark.parametrize(
    ("script", "launch"),
    [
        ("mpi", OFI),
        ("mpi", MPIEXEC),
        ("dask-mpi", OFI),
        ("dask-worker", SRUN),
    ],
)
def test_an_undisturbed_job_on_two_nodes(batch, slurm, tmp_path, script, launch):
    run = batch(script, launch, "--nodes=2", steps=300)
    run.wait_for_end(180)
    assert slurm.about(run.job)["ExitCode"] == "0:0", run.said()
    assert summary(tmp_path / "run")["step"] == 300
    assert "Traceback" not in run.said() and " - INFO - " not in run.said()


def test_jobs_of_an_array_train_side_by_side(batch, slurm, tmp_path):
    run = batch("mpi", {"WORKSPACE": ""}, "--array=1-2", steps=300)
    run.wait(lambda: run.said().count("done at step 300") == 2, 180)
    assert {folder.name for folder in (tmp_path / "runs").iterdir() if folder.is_dir()} == {"digits-1", "digits-2"}


def test_a_cancelled_job_of_dask_jobqueue_is_replaced(slurm, tmp_path):
    command = [sys.executable, SCRIPTS / "jobqueue.py", "job.conf", cluster(), "--cores-per-worker=1"]
    run = Batch(slurm, tmp_path, "", {})
    line = " ".join(map(str, command))
    options = ["--parsable", "--chdir", tmp_path, "--output=log", "--cpus-per-task=1", f"--wrap=exec {line}"]
    run.job = slurm.call("sbatch", *options)
    run.saves()
    workers = [job for job in slurm.call("squeue", "-h", "-t", "RUNNING", "-o", "%i").split() if job != run.job]
    assert len(workers) == 3, run.said()
    slurm.call("scancel", workers[1])
    run.wait(lambda: "2 of 3 workers" in run.said())
    run.wait(lambda: run.said().count("3 workers ready") == 2)
    slurm.call("scancel", "--full", "--signal=TERM", run.job)
    run.wait_for_end()
    assert summary(tmp_path / "runs" / "digits-allreduce")["status"] == "interrupted", run.said()
