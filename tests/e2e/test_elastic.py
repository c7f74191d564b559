"""Worker groups go on with fewer workers, and take in others when they come."""

import os
import re
import signal

import psutil
import pytest
from distributed import Client
from support.commands import audited, cluster, example, said, sets, started, summary, wait_until

from singa_dask.cluster.workers import answering

SETTINGS = sets(train_steps=100_000, test_freq=0, test_steps=0, checkpoint_freq=0, disp_freq=20)


def lose_worker(dask):
    """Kill a process with a rank, and its nanny."""
    with Client(scheduler_file=str(dask.file), timeout=30) as client:
        workers, silent = answering(client, 10.0)
    assert not silent
    process = psutil.Process(next(info.pid for info in workers if info.group.startswith("train-")))
    (command,) = {parent.pid for parent in process.parents()} & {parent.pid for parent in dask.processes}
    os.kill(command, signal.SIGKILL)
    process.kill()


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "workers", "whole"), [("allreduce", 3, 3), ("sandblaster", 5, 3), ("downpour", 6, 2)]
)
def test_a_group_shrinks_and_grows(dask, environment, tmp_path, no_leaks, name, workers, whole):
    for _ in range(workers):
        dask.workers()
    options = ("train", example(), "--cluster", cluster(name), "--scheduler-file", dask.file)
    options = (*options, "--workspace", tmp_path / "run", *SETTINGS)

    def steps():
        return sum(int(step) for step in re.findall(r"step +(\d+)/.*train ", said(tmp_path))[-1:])

    with started(*options, folder=tmp_path, env=environment) as driver:
        wait_until(lambda: steps() >= 100, driver, tmp_path, within=120)
        lose_worker(dask)
        wait_until(lambda: f"goes on with {whole - 1} of {whole} workers" in said(tmp_path), driver, tmp_path)
        dask.workers()
        wait_until(lambda: f"goes on with all {whole} workers" in said(tmp_path), driver, tmp_path)
        reached = steps()
        wait_until(lambda: steps() >= reached + 100, driver, tmp_path)
        os.killpg(driver.pid, signal.SIGINT)
        assert driver.wait(timeout=60) == 130, said(tmp_path)
    assert summary(tmp_path / "run")["restarts"] == 1, "taking in a worker is none"
    gaps = [gap for group in audited(tmp_path / "run") for gap in group["missing"]]
    assert len(gaps) <= (name == "downpour"), "at most the step in which the worker was lost"
    assert all(gap["partly"] and gap["stop"] - gap["first"] == 1 for gap in gaps)
