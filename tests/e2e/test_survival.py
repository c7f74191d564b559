"""What users and machines do to a running job."""

import os
import re
import signal

import numpy as np
import pytest
from support.background import in_mpi, steps, wait_for_step, workers
from support.commands import (
    audited,
    cluster,
    events,
    example,
    metrics,
    parameters,
    said,
    sets,
    started,
    summary,
    wait_until,
)

QUIET = {"test_freq": 0, "test_steps": 0, "checkpoint_freq": 0}
ENDLESS = sets(train_steps=100_000, disp_freq=10, **QUIET)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def begin(environment, tmp_path, temporary):
    """Start `singa-dask train` on the digits in a process group of its own, as a terminal would."""
    environment = environment | {"TMPDIR": str(temporary)}

    def start(strategy, *options):
        options = ("train", example(), "--cluster", cluster(strategy), "--workspace", "run", *options)
        return started(*options, folder=tmp_path, env=environment)

    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run below nohup
    yield start
    signal.signal(signal.SIGHUP, hang_up)


def ends_with_a_checkpoint(run, folder):
    """The summary of a run that was told to stop."""
    assert run.wait(timeout=30) == 130, said(folder)
    told = summary(folder / "run")
    assert told["status"] == "interrupted"
    assert told["checkpoint"].endswith(f"step-{told['step']:08d}.h5") and os.path.exists(told["checkpoint"])
    assert "stopped at step" in said(folder) and "go on with --resume" in said(folder)
    return told


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_run_that_a_terminal_or_a_batch_system_stops_saves(begin, tmp_path, temporary, number, no_leaks):
    others = [] if number == signal.SIGINT else [signal.SIGALRM, signal.SIGUSR1, number]
    with begin("allreduce", *ENDLESS, *sets(checkpoint_freq=50)) as run:
        wait_for_step(50, run, tmp_path)
        for sent in (number, *others):  # reach the workers too
            os.killpg(run.pid, sent)
        by = ends_with_a_checkpoint(run, tmp_path)["stopped_by"]
    assert by in ("Ctrl-C", "SIGHUP", "SIGALRM", "SIGUSR1"), "Python handles them in an order of its own"
    assert not list(temporary.glob("pymp-*"))


def restarts(folder):
    return [event for event in events(folder / "run") if event["event"] == "restart"]


def lose(process, run, folder, groups=1, more=5):
    """Kill a process of a run, and wait until the run has replaced it and its worker groups have made more steps."""
    before = len(restarts(folder))
    process.kill()
    wait_until(lambda: len(restarts(folder)) > before, run, folder)
    wait_for_step(max(steps(folder).values()) + more, run, folder, groups)


def servers(run):
    return [process for process in workers(run) if not in_mpi(process)]


SPLIT = sets(neuralnet__partition_dim=1)
LAST = 600


@pytest.mark.parametrize(
    ("strategy", "options", "lost"),
    [
        pytest.param("allreduce", (), (workers,), id="allreduce"),
        pytest.param(
            "allreduce", (), (workers, workers, workers), id="allreduce, three times", marks=pytest.mark.long
        ),
        pytest.param("allreduce", SPLIT, (workers,), id="a net that is split", marks=pytest.mark.long),
        pytest.param("sandblaster", (), (servers, servers), id="servers of sandblaster", marks=pytest.mark.long),
    ],
)
def test_killed_processes_cost_no_step_of_a_synchronous_run(begin, here, tmp_path, no_leaks, strategy, options, lost):
    """It ends with the parameters of an undisturbed run, which is one of a single process."""
    few = sets(train_steps=LAST, disp_freq=1, **QUIET)
    here("train", example(), *few, "--workspace", "calm")
    with begin(strategy, *options, *few) as run:
        for number, of in enumerate(lost):
            wait_for_step(50 * (number + 1), run, tmp_path)
            lose(of(run)[number], run, tmp_path, more=0)  # it may end at once
        assert run.wait(timeout=90) == 0, said(tmp_path)
    shown = [row["step"] for row in metrics(tmp_path / "run")]
    assert sorted(shown) == shown and len(shown) <= LAST + len(lost), "at most one step is repeated"
    assert summary(tmp_path / "run")["restarts"] == len(lost)
    assert [group["contained"] for group in audited(tmp_path / "run")] == [[[0, LAST]]]
    expected = parameters(tmp_path / "calm")
    for name, values in parameters(tmp_path / "run").items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_downpour_loses_a_worker_and_a_server(begin, tmp_path, no_leaks):
    """The other group never stops, and no update that a server has acknowledged is lost."""
    with begin("downpour", *ENDLESS, *sets(disp_freq=1)) as run:
        wait_for_step(30, run, tmp_path, groups=2)
        lose(servers(run)[0], run, tmp_path, groups=2)
        lose(next(filter(in_mpi, workers(run))), run, tmp_path, groups=2)
        os.killpg(run.pid, signal.SIGINT)
        ends_with_a_checkpoint(run, tmp_path)
    server, worker = summary(tmp_path / "run")["restarted"]
    assert (server["groups"], server["whole"]) == ([], [0]), "no worker group is restarted for a server"
    (dead,) = worker["groups"]
    assert worker["step"] >= 30 and "killed by SIGKILL" in worker["cause"]
    begun = [event["group"] for event in events(tmp_path / "run") if event["event"] == "begun"]
    assert sorted(begun) == sorted([0, 1, dead]), "the other group never began again"
    for group in audited(tmp_path / "run"):
        lost = sum(gap["stop"] - gap["first"] for gap in group["missing"])
        assert lost <= (group["group"] == dead), "more than the step in which the worker died"
        made = [row["step"] for row in metrics(tmp_path / "run") if row["group"] == group["group"]]
        assert made == sorted({*made}), "no step is shown twice"


@pytest.mark.long
def test_a_killed_hogwild_process_goes_on_with_its_copy_of_the_parameters(begin, tmp_path, no_leaks):
    with begin("hogwild", *ENDLESS) as run:
        wait_for_step(50, run, tmp_path, groups=3)
        lose(workers(run)[1], run, tmp_path, groups=3)
        os.killpg(run.pid, signal.SIGINT)
        ends_with_a_checkpoint(run, tmp_path)
    (restart,) = summary(tmp_path / "run")["restarted"]
    (dead,) = restart["groups"]
    assert (restart["servers"], restart["whole"]) == ([], [dead])
    found = audited(tmp_path / "run")
    assert [group["group"] for group in found] == [0, 1, 2]
    assert all(group["missing"] == [] or group["contained"][-1][1] < group["trained"] for group in found)


def test_a_run_that_may_not_restart_names_the_first_rank_that_failed(begin, tmp_path, no_leaks):
    with begin("allreduce", *ENDLESS, "--max-restarts", 0) as run:
        wait_for_step(10, run, tmp_path)
        victim = workers(run)[0]
        victim.kill()
        assert run.wait(timeout=60) == 1, said(tmp_path)
    last = said(tmp_path).rstrip().splitlines()[-1]
    named = rf"error: rank \d on tcp://\S+ \(host \S+, pid {victim.pid}\): .*killed by SIGKILL.* \(step \d+\)\."
    assert re.fullmatch(named, last), last
    assert summary(tmp_path / "run")["status"] == "failed"
