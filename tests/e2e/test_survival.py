"""What users and machines do to a running job."""

import os
import re
import signal
import subprocess
import time

import psutil
import pytest
from support.commands import COMMAND, cluster, example, sets, summary

LONG = sets(train_steps=100_000, test_freq=0, test_steps=0, checkpoint_freq=50, disp_freq=20)


@pytest.fixture
def running(environment, tmp_path):
    """A long run in a process group of its own, as a terminal would start it, that has made its first 50 steps."""
    log = open(tmp_path / "log", "w")  # noqa: SIM115
    process = subprocess.Popen(
        [*COMMAND, "train", str(example()), "--cluster", str(cluster()), "--workspace", str(tmp_path / "run"), *LONG],
        cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        wait_for_step(process, tmp_path, 50)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def last_step(folder):
    steps = re.findall(r"step +(\d+)/", (folder / "log").read_text())
    return int(steps[-1]) if steps else -1


def wait_for_step(process, folder, step, within=60):
    deadline = time.monotonic() + within
    while last_step(folder) < step:
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)


def training_processes(process):
    """The Dask worker processes of a run: those that hold an open training task are its busiest."""
    children = psutil.Process(process.pid).children(recursive=True)
    return sorted(children, key=lambda child: sum(child.cpu_times()[:2]), reverse=True)[:3]


def press_ctrl_c(process):
    os.killpg(process.pid, signal.SIGINT)  # a terminal interrupts the whole group


def stop_as_a_batch_system(process):
    process.terminate()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stop", [press_ctrl_c, stop_as_a_batch_system])
def test_a_stopped_run_ends_with_a_checkpoint(running, tmp_path, no_leaks, stop):
    stop(running)
    assert running.wait(timeout=30) == 130, (tmp_path / "log").read_text()
    told = summary(tmp_path / "run")
    assert told["status"] == "interrupted"
    assert told["checkpoint"].endswith(f"step-{told['step']:08d}.h5")
    assert os.path.exists(told["checkpoint"])
    assert "stopped at step" in (tmp_path / "log").read_text()
    assert "go on with --resume" in (tmp_path / "log").read_text()


@pytest.mark.timeout(120)
def test_a_killed_worker_costs_at_most_a_checkpoint_interval(running, tmp_path, no_leaks):
    wait_for_step(running, tmp_path, 120)
    victim = training_processes(running)[1]
    victim.kill()
    killed = time.monotonic()
    while "Restart 1 of 3" not in (tmp_path / "log").read_text():
        assert running.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() - killed < 30, (tmp_path / "log").read_text()
        time.sleep(0.05)
    resumed = int(re.search(r"from step (\d+)\.", (tmp_path / "log").read_text())[1])
    assert resumed >= 50
    wait_for_step(running, tmp_path, resumed + 60)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(timeout=30) == 130
    assert summary(tmp_path / "run")["restarts"] == 1
