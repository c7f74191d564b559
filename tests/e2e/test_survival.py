"""What users and machines do to a running job."""

import os
import re
import signal
from contextlib import suppress

import numpy as np
import psutil
import pytest
from support.commands import audited, cluster, example, parameters, run, said, sets, started, summary, wait_until

LONG = sets(train_steps=100_000, test_freq=0, test_steps=0, checkpoint_freq=50, disp_freq=20)


@pytest.fixture
def running(environment, tmp_path):
    """A long run in a process group of its own, as a terminal would start it, that has made its first 50 steps."""
    options = ("train", example(), "--cluster", cluster(), "--workspace", tmp_path / "run", *LONG)
    (tmp_path / "tmp").mkdir()
    environment = environment | {"TMPDIR": str(tmp_path / "tmp")}
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
    """The Dask worker processes of a run, the busiest first: all that the local cluster's fork server has made."""
    spent = []
    for server in psutil.Process(process.pid).children():
        for child in server.children():
            with suppress(psutil.NoSuchProcess):
                spent.append((sum(child.cpu_times()[:2]), child.pid, child))
    return [child for _, _, child in sorted(spent, reverse=True)]


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_run_that_a_batch_system_or_a_closed_terminal_stops_saves(running, tmp_path, number, no_leaks):
    for sent in (number, signal.SIGALRM, signal.SIGUSR1, number):  # reach the workers too
        os.killpg(running.pid, sent)
    by = ends_with_a_checkpoint(running, tmp_path)["stopped_by"]
    assert by in (signal.Signals(number).name, "SIGALRM", "SIGUSR1"), "Python handles them in an order of its own"
    assert not list((tmp_path / "tmp").glob("pymp-*"))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_killed_workers_cost_no_step_of_a_run(environment, tmp_path, no_leaks):
    """The last one dies while its group forms again. The run ends with the parameters of an undisturbed one."""
    few = sets(train_steps=900, test_freq=0, test_steps=0, checkpoint_freq=0, disp_freq=20)
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    calmly = ("train", example(), "--cluster", cluster(), "--workspace", calm, *few)
    run(*calmly, cwd=tmp_path, env=environment, timeout=120)
    options = ("train", example(), "--cluster", cluster(), "--workspace", hit, *few)
    with started(*options, folder=tmp_path, env=environment) as process:
        for number, step in enumerate((100, 400), 1):
            wait_for_step(process, tmp_path, step)
            training_processes(process)[number].kill()
            wait_until(lambda: said(tmp_path).count("have left in memory") == number, process, tmp_path)  # noqa: B023
        training_processes(process)[0].kill()
        assert process.wait(timeout=90) == 0, said(tmp_path)
    shown, begun = [0], 0
    for again, step in re.findall(r"(from )?step +(\d+)", said(tmp_path)):
        if again:
            begun += 1
            assert int(step) >= shown[-1] - 1, "at most one step is repeated"
        else:
            shown.append(int(step))
    assert begun >= 2 and shown == sorted(shown), "no step is shown twice"
    assert summary(hit)["restarts"] >= 2
    audited(hit)
    expected = parameters(calm)
    for name, values in parameters(hit).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_ctrl_c_stops_a_run(running, tmp_path, no_leaks):
    os.killpg(running.pid, signal.SIGINT)  # a terminal interrupts the whole group
    ends_with_a_checkpoint(running, tmp_path)
