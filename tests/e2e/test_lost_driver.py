"""Runs whose driver or scheduler is killed, on a Dask cluster that their users started."""

import re
from contextlib import contextmanager

import pytest
from support.background import wait_for_step
from support.commands import audited, cluster, example, metrics, said, sets, started, summary

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

STEPS = 600
SETTINGS = sets(train_steps=STEPS, test_freq=0, test_steps=0, checkpoint_freq=0, disp_freq=20)


@pytest.fixture
def running(dask, environment, tmp_path):
    """Start a run on so many workers of `dask`, which has made 100 steps."""

    @contextmanager
    def start(name, workers):
        dask.workers(workers)
        options = ("train", example(), "--cluster", cluster(name), "--scheduler-file", dask.file, "--workspace", "run")
        with started(*options, *SETTINGS, folder=tmp_path, env=environment) as driver:
            wait_for_step(100, driver, tmp_path, within=120)
            yield driver

    return start


def trained(workspace):
    """The worker groups and steps whose metrics are recorded."""
    return sorted((row["group"], row["step"]) for row in metrics(workspace) if row["phase"] == "train")


@pytest.mark.parametrize(("name", "workers"), [("allreduce", 3), ("sandblaster", 5), ("downpour", 6), ("hogwild", 3)])
def test_attach_takes_over_a_run_whose_driver_was_killed(dask, running, singa_dask, tmp_path, no_leaks, name, workers):
    with running(name, workers) as driver:
        driver.kill()
        driver.wait()
    before = trained(tmp_path / "run")
    ended = singa_dask("attach", "run", "--scheduler-file", dask.file, timeout=150)
    assert summary(tmp_path / "run")["step"] == STEPS
    found = re.findall(r"^(?:group (\d+) )? *\d+ workers? ready.*?(?:, from step (\d+))?$", ended.out, re.MULTILINE)
    began = {int(group or 0): int(step or 0) for group, step in found}
    assert all(began[group] >= step for group, step in before), (began, before)
    after = [(group, step) for group in began for step in range(began[group] // 20 * 20 + 20, STEPS + 1, 20)]
    assert trained(tmp_path / "run") == sorted([*before, *after]), "nobody saw the others"
    for group in audited(tmp_path / "run"):  # some servers may lack the step under way
        assert all(gap["partly"] and gap["stop"] - gap["first"] == 1 for gap in group["missing"])
        assert len(group["missing"]) <= (name == "downpour")


@pytest.mark.parametrize(("name", "count"), [("allreduce", 3), ("downpour", 6)])
def test_workers_save_when_the_scheduler_is_lost(dask, running, tmp_path, no_leaks, name, count):
    with running(name, count) as driver:
        dask.scheduler.kill()
        assert driver.wait(timeout=90) == 1, said(tmp_path)
    last = said(tmp_path).rstrip().splitlines()[-1]
    (step,) = re.findall(r"^error: the Dask scheduler .*The newest checkpoint is of step (\d+)", last)
    assert int(step) >= (100 if name == "allreduce" else 1)  # of the first group, which may be behind
    assert (tmp_path / "run" / "checkpoint" / f"step-{int(step):08d}.h5").exists()
    assert "Traceback" not in said(tmp_path)
