"""Runs whose driver or scheduler is killed, on a Dask cluster that their users started."""

import json
import re

import pytest
from support.commands import audited, cluster, example, run, said, sets, started, summary, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

STEPS = 600
SETTINGS = sets(train_steps=STEPS, test_freq=0, test_steps=0, checkpoint_freq=0, disp_freq=20)


def begun(dask, name, folder, environment):
    """A run that is about to begin."""
    options = ("train", example(), "--cluster", cluster(name), "--scheduler-file", dask.file)
    return started(*options, "--workspace", folder / "run", *SETTINGS, folder=folder, env=environment)


def steps_of(told, pattern):
    """The last number that fits the pattern in the lines of each worker group, by the group's number."""
    found = re.findall(rf"^(?:group (\d+) )? *{pattern}", told, re.MULTILINE)
    return {int(group or 0): int(step or 0) for group, step in found}


@pytest.mark.parametrize(("name", "workers"), [("allreduce", 3), ("sandblaster", 5), ("downpour", 6), ("hogwild", 3)])
def test_attach_takes_over_a_run_whose_driver_was_killed(dask, environment, tmp_path, no_leaks, name, workers):
    dask.workers(workers)
    with begun(dask, name, tmp_path, environment) as driver:
        wait_until(lambda: f"step 100/{STEPS}" in said(tmp_path), driver, tmp_path, within=120)
        driver.kill()
        driver.wait()
    ended = run("attach", "run", "--scheduler-file", dask.file, cwd=tmp_path, env=environment, timeout=150)
    assert ended.code == 0, ended.err
    assert summary(tmp_path / "run")["step"] == STEPS
    made, began = (
        steps_of(said(tmp_path), r"step +(\d+)/"),
        steps_of(ended.out, r"\d+ workers? ready.*?(?:, from step (\d+))?$"),
    )
    assert max(made.values()) >= 100 and made.keys() <= began.keys()
    assert all(began[group] >= made[group] for group in made), (began, made)
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    shown = [(row["group"], row["step"]) for row in rows if row["phase"] == "train"]
    seen = {g: [*range(20, made.get(g, 0) + 1, 20), *range(began[g] // 20 * 20 + 20, STEPS + 1, 20)] for g in began}
    assert sorted(shown) == [(group, step) for group in sorted(seen) for step in seen[group]], "nobody saw the others"
    for group in audited(tmp_path / "run"):  # some servers may lack the step under way
        assert all(gap["partly"] and gap["stop"] - gap["first"] == 1 for gap in group["missing"])
        assert len(group["missing"]) <= (name == "downpour")


@pytest.mark.parametrize(("name", "count"), [("allreduce", 3), ("downpour", 6)])
def test_workers_save_when_the_scheduler_is_lost(dask, environment, tmp_path, no_leaks, name, count):
    dask.workers(count)
    with begun(dask, name, tmp_path, environment) as driver:
        wait_until(lambda: f"step 100/{STEPS}" in said(tmp_path), driver, tmp_path, within=120)
        dask.scheduler.kill()
        assert driver.wait(timeout=90) == 1, said(tmp_path)
    last = said(tmp_path).rstrip().splitlines()[-1]
    (step,) = re.findall(r"^error: the Dask scheduler .*The newest checkpoint is of step (\d+)", last)
    assert int(step) >= (100 if name == "allreduce" else 1)  # of the first group, which may be behind
    assert (tmp_path / "run" / "checkpoint" / f"step-{int(step):08d}.h5").exists()
    assert "Traceback" not in said(tmp_path)
