"""Servers that are killed come back with everything that they had acknowledged, and their workers wait for them."""

import re

import numpy as np
import psutil
import pytest
from support.commands import (
    audited,
    cluster,
    example,
    metrics,
    parameters,
    run,
    said,
    sets,
    started,
    summary,
    wait_until,
)

SETTINGS = {"disp_freq": 1, "test_freq": 0, "test_steps": 0, "checkpoint_freq": 0}


def servers(process):
    """The processes with servers: the Dask workers that are in no MPI world."""
    (forks,) = (child for child in psutil.Process(process.pid).children() if "forkserver" in " ".join(child.cmdline()))
    return [child for child in forks.children() if "libmpi" not in _maps(child)]


def _maps(process):
    with open(f"/proc/{process.pid}/maps") as maps:
        return maps.read()


def steps(folder):
    """The last step shown of every worker group."""
    shown = re.findall(r"^(?:group (\d+)  )?step +(\d+)/\d+  train", said(folder), re.MULTILINE)
    return {int(group or 0): int(step) for group, step in shown}


def killed(process, folder, number, at):
    """Kill a server once every worker group has made so many steps, and wait until all go on."""
    groups = len(steps(folder))
    wait_until(lambda: len(steps(folder)) >= groups and min(steps(folder).values(), default=0) >= at, process, folder)
    before = said(folder).count("with everything that it had acknowledged")
    servers(process)[number].kill()
    wait_until(lambda: said(folder).count("with everything that it had acknowledged") > before, process, folder)
    reached = steps(folder)
    wait_until(lambda: all(step >= reached[group] + 5 for group, step in steps(folder).items()), process, folder)


@pytest.mark.timeout(150)
def test_killed_servers_of_downpour_lose_no_update(environment, tmp_path, no_leaks):
    options = ("train", example(), "--cluster", cluster("downpour"), "--workspace", tmp_path / "run")
    with started(*options, *sets(train_steps=300, **SETTINGS), folder=tmp_path, env=environment) as process:
        wait_until(lambda: len(steps(tmp_path)) == 2, process, tmp_path)
        for number, at in enumerate((50, 120)):
            killed(process, tmp_path, number, at)
        assert process.wait(timeout=60) == 0, said(tmp_path)
    told = summary(tmp_path / "run")
    assert [restart["groups"] for restart in told["restarted"]] == [[], []], "no worker group is restarted"
    assert [restart["whole"] for restart in told["restarted"]] == [[0], [0]]
    assert [group["contained"] for group in audited(tmp_path / "run")] == [[[0, 300]]] * 2
    for number in range(2):
        made = [row["step"] for row in metrics(tmp_path / "run") if (row["group"], row["phase"]) == (number, "train")]
        assert made == list(range(1, 301)), "every step is made once"


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_killed_server_of_sandblaster_leaves_no_trace(environment, tmp_path, no_leaks):
    few = sets(train_steps=200, **SETTINGS)
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    options = ("train", example(), "--cluster", cluster("sandblaster"), *few)
    run(*options, "--workspace", calm, cwd=tmp_path, env=environment)
    with started(*options, "--workspace", hit, folder=tmp_path, env=environment) as process:
        for number, at in enumerate((40, 100)):
            killed(process, tmp_path, number, at)
        assert process.wait(timeout=60) == 0, said(tmp_path)
    told = summary(hit)
    assert [restart["groups"] for restart in told["restarted"]] == [[], []], "no worker group is restarted"
    assert [group["contained"] for group in audited(hit)] == [[[0, 200]]]
    expected = parameters(calm)
    for name, values in parameters(hit).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-7, err_msg=name)
