"""Worker groups go on with fewer workers, and take in others when they come; groups join and leave."""

import os
import re
import signal

import psutil
import pytest
from distributed import Client
from support.background import steps, wait_for_step
from support.commands import audited, cluster, example, said, sets, started, summary, wait_until

from singa_dask.cluster.workers import answering

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]


@pytest.fixture
def begin(dask, environment, tmp_path):
    """Start an endless run on the workers of `dask`."""
    endless = sets(train_steps=100_000, test_freq=0, test_steps=0, checkpoint_freq=0, disp_freq=20)
    options = ("train", example(), "--workspace", "run", "--scheduler-file", dask.file, *endless)
    return lambda *more: started(*options, *more, folder=tmp_path, env=environment)


def lose_worker(dask):
    """Kill a process with a rank, and its nanny."""
    with Client(scheduler_file=str(dask.file), timeout=30) as client:
        workers, silent = answering(client, 10.0)
    assert not silent
    process = psutil.Process(next(info.pid for info in workers if info.group.startswith("train-")))
    (command,) = {parent.pid for parent in process.parents()} & {parent.pid for parent in dask.processes}
    os.kill(command, signal.SIGKILL)
    process.kill()


@pytest.mark.parametrize(
    ("name", "workers", "whole"), [("allreduce", 3, 3), ("sandblaster", 5, 3), ("downpour", 6, 2)]
)
def test_a_group_shrinks_and_grows(dask, begin, tmp_path, no_leaks, name, workers, whole):
    for _ in range(workers):
        dask.workers()
    with begin("--cluster", cluster(name)) as run:
        wait_for_step(100, run, tmp_path, within=120)
        lose_worker(dask)
        wait_until(lambda: f"{whole - 1} of {whole} workers" in said(tmp_path), run, tmp_path)
        dask.workers()
        wait_until(lambda: f"all {whole} workers" in said(tmp_path), run, tmp_path)
        wait_for_step(max(steps(tmp_path).values()) + 100, run, tmp_path)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(timeout=60) == 130, said(tmp_path)
    assert summary(tmp_path / "run")["restarts"] == 1, "taking in a worker is none"
    gaps = [gap for group in audited(tmp_path / "run") for gap in group["missing"]]
    assert len(gaps) <= (name == "downpour"), "at most the step in which the worker was lost"
    assert all(gap["partly"] and gap["stop"] - gap["first"] == 1 for gap in gaps)


def test_a_group_joins_a_running_job_and_one_leaves(dask, begin, singa_dask, tmp_path, no_leaks):
    dask.workers(4)
    here = ["--scheduler-file", dask.file]
    with begin(*sets(cluster__nworker_groups=2, cluster__server_worker_separate="true")) as run:
        wait_for_step(20, run, tmp_path, groups=2)
        assert "group 2" in singa_dask("join", *here).out
        wait_for_step(20, run, tmp_path, groups=3)
        singa_dask("join", *here, code=1)
        assert "group 1" in singa_dask("leave", 1, *here).out
        wait_until(lambda: re.search(r"group 1 .*ended", said(tmp_path)), run, tmp_path)
        wait_for_step(max(steps(tmp_path).values()) + 20, run, tmp_path)
        assert "group 0" in singa_dask("leave", 0, *here, code=None).err
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(timeout=30) == 130, said(tmp_path)
    assert sorted(summary(tmp_path / "run")["groups"]) == ["0", "1", "2"]
    found = audited(tmp_path / "run")
    assert [len(group["contained"]) for group in found] == [1, 1, 1] and found[2]["start"] > 0
