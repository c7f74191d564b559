"""What users and machines do to a running job."""

import os
import re
import signal
import time

import psutil
import pytest
from support.commands import cluster, example, said, sets, started, summary, wait_until

LONG = sets(train_steps=100_000, test_freq=0, test_steps=0, checkpoint_freq=50, disp_freq=20)


@pytest.fixture
def running(environment, tmp_path):
    """A long run in a process group of its own, as a terminal would start it, that has made its first 50 steps."""
    options = ("train", example(), "--cluster", cluster(), "--workspace", tmp_path / "run", *LONG)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run below nohup
    try:
        with started(*options, folder=tmp_path, env=environment) as process:
            wait_for_step(process, tmp_path, 50)
            yield process
    finally:
        signal.signal(signal.SIGHUP, hang_up)


def last_step(folder):
    steps = re.findall(r"step +(\d+)/", said(folder))
    return int(steps[-1]) if steps else -1


def wait_for_step(process, folder, step, within=60):
    wait_until(lambda: last_step(folder) >= step, process, folder, within)


def training_processes(process):
    """The Dask worker processes of a run: those that hold an open training task are its busiest."""
    children = psutil.Process(process.pid).children(recursive=True)
    return sorted(children, key=lambda child: sum(child.cpu_times()[:2]), reverse=True)[:3]


def ends_with_a_checkpoint(process, tmp_path):
    """The summary of a run that was told to stop."""
    assert process.wait(timeout=30) == 130, said(tmp_path)
    told = summary(tmp_path / "run")
    assert told["status"] == "interrupted"
    assert told["checkpoint"].endswith(f"step-{told['step']:08d}.h5")
    assert os.path.exists(told["checkpoint"])
    assert "stopped at step" in said(tmp_path)
    assert "go on with --resume" in said(tmp_path)
    return told


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_a_batch_system_or_a_closed_terminal_stops_saves(running, tmp_path, number, no_leaks):
    os.killpg(running.pid, number)  # reaches the workers too
    ends_with_a_checkpoint(running, tmp_path)


@pytest.mark.timeout(120)
def test_a_killed_worker_costs_at_most_a_checkpoint_interval_and_ctrl_c_stops_the_run(running, tmp_path, no_leaks):
    wait_for_step(running, tmp_path, 120)
    victim = training_processes(running)[1]
    victim.kill()
    killed = time.monotonic()
    while "Restart 1 of 3" not in said(tmp_path):
        assert running.poll() is None, said(tmp_path)
        assert time.monotonic() - killed < 30, said(tmp_path)
        time.sleep(0.05)
    resumed = int(re.search(r"from step (\d+)\.", said(tmp_path))[1])
    assert resumed >= 50
    wait_for_step(running, tmp_path, resumed + 60)
    os.killpg(running.pid, signal.SIGINT)  # a terminal interrupts the whole group
    assert ends_with_a_checkpoint(running, tmp_path)["restarts"] == 1
