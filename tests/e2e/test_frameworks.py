"""Every framework, by the command that users type; groups that are killed, join and leave."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from support.commands import audited, cluster, example, metrics, said, sets, started, summary, wait_until

from singa_dask.training import checkpoint as checkpoints

SHORT = sets(train_steps=60, disp_freq=20, test_freq=0, test_steps=0, checkpoint_freq=0)
ENDLESS = sets(train_steps=100_000, disp_freq=10, test_freq=0, test_steps=0, checkpoint_freq=0)


@pytest.mark.parametrize(
    ("name", "steps"), [("sandblaster", 300), ("downpour", 300), ("hogwild", 600), ("hybrid", 600)]
)
def test_an_example_cluster_trains_the_digits(singa_dask, tmp_path, no_leaks, name, steps):
    ran = singa_dask("train", example(), "--cluster", cluster(name), *sets(train_steps=steps), timeout=100)
    assert ran.code == 0, ran.out + ran.err
    told = summary(tmp_path / "runs" / f"digits-{name}")
    assert (told["status"], told["step"], told["framework"]) == ("completed", steps, name)
    groups = told["topology"]["nworker_groups"]
    # The result of several groups depends on the order of messages.
    assert told["test"]["accuracy"] >= (0.97 if groups == 1 else 0.9)
    assert sorted(told["groups"]) == [str(g) for g in range(groups)]
    assert all(group["step"] == steps and group["server"]["update_ms"] > 0 for group in told["groups"].values())
    separate = told["topology"]["server_worker_separate"]
    assert all((group["server"]["bytes"] > 0) == separate for group in told["groups"].values())
    if groups > 1:
        assert {row["group"] for row in metrics(tmp_path / "runs" / f"digits-{name}")} == set(range(groups))
    found = audited(tmp_path / "runs" / f"digits-{name}")
    assert [group["contained"] for group in found] == [[[0, steps]]] * groups


def test_sandblaster_equals_allreduce(singa_dask, tmp_path, no_leaks):
    reached = {}
    for name in ("allreduce", "sandblaster"):
        ran = singa_dask("train", example(), "--cluster", cluster(name), *SHORT, "--workspace", name)
        assert ran.code == 0, ran.out + ran.err
        reached[name] = checkpoints.load(checkpoints.path_of(tmp_path / name / "checkpoint", 60))
    for parameter, value in reached["allreduce"].parameters.items():
        np.testing.assert_allclose(reached["sandblaster"].parameters[parameter], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "numbers",
    [
        {"nworkers_per_group": 2, "nservers_per_group": 2, "nservers_per_procs": 2},
        {"nworkers_per_group": 2, "nservers_per_group": 3},
        {"nworker_groups": 2, "max_staleness": 1, "one_behind": "true"},
    ],
    ids=["two servers in a process", "more servers than workers", "two groups beside one server"],
)
def test_unusual_topologies(singa_dask, tmp_path, no_leaks, numbers):
    settings = sets(**{f"cluster__{name}": v for name, v in numbers.items()})
    ran = singa_dask("train", example(), *settings, *SHORT, "--workspace", "run")
    assert ran.code == 0, ran.out + ran.err
    told = summary(tmp_path / "run")
    assert told["status"] == "completed"
    assert all(group["step"] == 60 for group in told["groups"].values())
    assert told["train"]["loss"] < 2.25


def training(tmp_path, environment, *options):
    """A run of the digits in the background."""
    options = ("train", example(), "--workspace", tmp_path / "run", *options)
    return started(*options, folder=tmp_path, env=environment)


def steps(folder):
    """The last step shown of every group."""
    return {int(group): int(step) for group, step in re.findall(r"group (\d+)  step +(\d+)/\d+  train", said(folder))}


def worker_processes(run):
    """Those of the run's Dask workers; all are forked from one process."""
    (server,) = (child for child in psutil.Process(run.pid).children() if "forkserver" in " ".join(child.cmdline()))
    return server.children()


def holds_mpi(process):
    with open(f"/proc/{process.pid}/maps") as maps:
        return "libmpi" in maps.read()


@pytest.mark.timeout(150)
def test_a_killed_group_of_downpour_is_restarted_and_the_other_never_stops(
    environment, singa_dask, tmp_path, no_leaks
):
    every_step = sets(disp_freq=1)
    with training(tmp_path, environment, "--cluster", cluster("downpour"), *ENDLESS, *every_step) as run:
        wait_until(lambda: len(steps(tmp_path)) == 2 and min(steps(tmp_path).values()) >= 50, run, tmp_path)
        processes = worker_processes(run)
        victim = next(p for p in processes if holds_mpi(p))
        victim.kill()
        killed = time.time()
        wait_until(lambda: "Restart 1 of 3" in said(tmp_path), run, tmp_path)
        dead, restarted = int(re.search(r"Restart 1 of 3 of worker group (\d)", said(tmp_path))[1]), time.time()
        before = steps(tmp_path)[dead]
        wait_until(lambda: steps(tmp_path)[dead] >= before + 50, run, tmp_path)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(timeout=30) == 130, said(tmp_path)
    told = summary(tmp_path / "run")
    assert told["restarts"] == 1
    assert told["restarted"][0]["groups"] == [dead]
    assert told["restarted"][0]["step"] >= 40
    assert "its worker process was killed by SIGKILL" in told["restarted"][0]["cause"]
    assert int(re.findall(rf"group {dead} .*from step (\d+)", said(tmp_path))[-1]) >= 40
    trained = [row for row in metrics(tmp_path / "run") if row["phase"] == "train" and row["time"] > killed]
    again = next(row["time"] for row in trained if row["group"] == dead and row["time"] > restarted)
    meanwhile = [row for row in trained if row["group"] != dead and row["time"] < again]
    assert len(meanwhile) >= 20, "while the killed one came back"
    found = audited(tmp_path / "run")
    for group in found:
        lost = sum(gap["stop"] - gap["first"] for gap in group["missing"])
        assert lost <= (group["group"] == dead), "more than the step in which the worker died"

    # It goes on, first as it was, then with one group: each group where it stood, and none twice.
    last = max(group["trained"] for group in found) + 20
    for name, until in (("downpour", last), ("allreduce", last + 5)):
        settings = ["--cluster", cluster(name), *ENDLESS, *sets(train_steps=until)]
        ran = singa_dask("train", example(), *settings, "--workspace", "run", "--resume")
        assert ran.code == 0, ran.out + ran.err
    *before, alone = audited(tmp_path / "run")
    assert [(group["deal"]["groups"], group["start"], group["trained"]) for group in before] == [(2, 0, last)] * 2
    assert alone["deal"] == {"groups": 1, "first": last} and alone["contained"] == [[last, last + 5]]


@pytest.mark.timeout(150)
def test_a_killed_hogwild_process_goes_on_with_its_copy_of_the_parameters(environment, tmp_path, no_leaks):
    with training(tmp_path, environment, "--cluster", cluster("hogwild"), *ENDLESS) as run:
        wait_until(lambda: len(steps(tmp_path)) == 3 and min(steps(tmp_path).values()) >= 50, run, tmp_path)
        processes = worker_processes(run)
        processes[1].kill()
        wait_until(lambda: "with everything that it had acknowledged" in said(tmp_path), run, tmp_path)
        dead = int(re.search(r"Restart 1 of 3 of worker group (\d)", said(tmp_path))[1])
        before = steps(tmp_path)[dead]
        wait_until(lambda: steps(tmp_path)[dead] >= before + 50, run, tmp_path)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(timeout=30) == 130, said(tmp_path)
    (restart,) = summary(tmp_path / "run")["restarted"]
    assert (restart["groups"], restart["servers"], restart["whole"]) == ([dead], [], [dead])
    found = audited(tmp_path / "run")
    assert [group["group"] for group in found] == [0, 1, 2]
    assert all(group["missing"] == [] or group["contained"][-1][1] < group["trained"] for group in found)


@pytest.mark.long
@pytest.mark.timeout(150)
def test_a_group_joins_a_running_job_and_one_leaves(environment, singa_dask, tmp_path, no_leaks):
    file = tmp_path / "scheduler.json"
    options = {"cwd": tmp_path, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    module = [sys.executable, "-m"]
    where = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    dask = [
        subprocess.Popen([*module, "distributed.cli.dask_scheduler", "--port", "0", *where], **options),
        subprocess.Popen(
            [*module, "distributed.cli.dask_worker", "--nworkers", "4", "--nthreads", "1", *where], **options
        ),
    ]
    here = ["--scheduler-file", file]
    numbers = sets(cluster__nworker_groups=2, cluster__server_worker_separate="true")
    try:
        with training(tmp_path, environment, *numbers, *ENDLESS, *here) as run:
            wait_until(lambda: len(steps(tmp_path)) == 2, run, tmp_path)
            joined = singa_dask("join", *here)
            assert "worker group 2 joins" in joined.out, joined.err
            wait_until(lambda: steps(tmp_path).get(2, 0) >= 20, run, tmp_path)
            refused = singa_dask("join", *here)
            assert refused.code == 1
            assert "1 free Dask workers are needed, 0 are there" in refused.err
            assert "leaves after its step" in singa_dask("leave", 1, *here).out
            wait_until(lambda: re.search(r"group 1 .*ended", said(tmp_path)), run, tmp_path)
            at = steps(tmp_path)[2]
            wait_until(lambda: steps(tmp_path)[2] > at, run, tmp_path)
            assert "tests and saves for the whole run" in singa_dask("leave", 0, *here).err
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(timeout=30) == 130, said(tmp_path)
        assert sorted(summary(tmp_path / "run")["groups"]) == ["0", "1", "2"]
        found = audited(tmp_path / "run")
        assert [len(group["contained"]) for group in found] == [1, 1, 1] and found[2]["start"] > 0
    finally:
        for process in reversed(dask):
            process.terminate()
            process.wait(timeout=20)
