"""A worker group across two hosts: it trains, survives a killed worker, and notices that the network is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from support.background import steps, wait_for_step
from support.commands import COMMAND, audited, cluster, example, metrics, run_command, said, sets, summary, wait_until
from support.hosts import CARD, DaskOnHosts, Host, dask_on, hosts_named
from support.launch import is_open_mpi, launched, mpiexec

pytestmark = pytest.mark.timeout(200)

FOUR = sets(cluster__nworkers_per_group=4, cluster__nservers_per_group=4)
# What docs/cluster.md recommends for a cluster of one's own.
GENTLE = {
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",
    "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "1 day",
}


@pytest.fixture
def dask(no_leaks, tmp_path) -> Iterator[DaskOnHosts]:
    """A scheduler and two workers on the near host, two on the far one."""
    with dask_on(tmp_path, "near", "far", workers=2, **GENTLE) as made:
        yield made


@pytest.fixture
def train(dask, tmp_path):
    """Start `singa-dask train ARGS` on the near host."""

    def start(*args: object, strategy: str = "allreduce", numbers: Sequence[str] = FOUR):
        job = (example(), "--cluster", cluster(strategy), "--workspace", "run", *numbers)
        return dask.singa_dask("train", *job, "--scheduler", dask.scheduler, *args)

    return start


@pytest.fixture
def saved(train, tmp_path):
    """A run with checkpoints that has saved its first one, in the background."""

    def start(steps: int):
        run = train(*sets(train_steps=steps, disp_freq=20, test_freq=steps, checkpoint_freq=50))
        wait_until(lambda: "saved" in said(tmp_path), run, tmp_path)
        return run

    return start


def workers(host: Host) -> list[psutil.Process]:
    """The worker processes of a host, without their nannies."""
    found = [process for process in host.processes() if "spawn_main" in " ".join(process.cmdline())]
    return sorted(found, key=lambda process: sum(process.cpu_times()[:2]), reverse=True)


def test_an_mpi_job_across_hosts(no_leaks, tmp_path):
    """The launcher stands in the near host's network, so that it starts the ranks there itself."""
    if is_open_mpi():
        pytest.skip("Open MPI's launcher cannot be told how to reach a host")
    with hosts_named("near", "far") as (near, far):
        launcher = ["-launcher", "ssh", "-launcher-exec", far.launcher(tmp_path)]
        where = ["-hosts", f"{near.address}:2,{far.address}:2", "-iface", CARD]
        options = ["--cluster", cluster(), "--workspace", tmp_path / "run", "--mpi", "--interface", CARD]
        command = [*mpiexec(4), *launcher, *where, *COMMAND, "train", example(), *options]
        fresh = 'mount -t sysfs sys /sys && exec "$@"'  # there MPI looks for network cards
        into = ["nsenter", "--target", near.init, "--net", "unshare", "--mount", "--ipc", "sh", "-c", fresh, "sh"]
        before, few = far.received(), sets(train_steps=40, test_freq=40)
        environment = {**launched(), "SINGA_DASK_CACHE": str(tmp_path / "cache")}
        assert "3 workers ready" in run_command([*into, *command, *few], cwd=tmp_path, env=environment).out
        assert summary(tmp_path / "run")["test"]["loss"] < 2.2
        assert far.received() - before > 40 * 17_000 * 4


@pytest.mark.long
def test_a_killed_worker_of_the_far_host_is_replaced(dask, saved, tmp_path):
    run = saved(500)
    workers(dask.hosts[1])[0].kill()
    assert run.wait(timeout=90) == 0, said(tmp_path)
    assert "1 of 3" in said(tmp_path) and "(host far, pid " in said(tmp_path)
    told = summary(tmp_path / "run")
    assert (told["status"], told["step"], told["restarts"]) == ("completed", 500, 1)
    assert told["test"]["accuracy"] > 0.97
    assert [host.segments() for host in dask.hosts] == [[], []]


@pytest.mark.long
def test_servers_survive_the_loss_of_their_host(dask, train, tmp_path):
    """Both servers are on the far host, which is lost at once; their replicas are on the near one."""
    numbers = sets(cluster__nworker_groups=2, cluster__nworkers_per_group=1, cluster__nservers_per_group=2)
    settings = sets(train_steps=800, disp_freq=1, test_freq=0, test_steps=0, checkpoint_freq=0)
    run = train(*settings, strategy="downpour", numbers=numbers)
    wait_for_step(50, run, tmp_path)
    dask.workers(0, 2)  # for the servers
    wait_for_step(max(steps(tmp_path).values()) + 100, run, tmp_path)
    dask.hosts[1].crash()
    assert run.wait(timeout=120) == 0, said(tmp_path)
    assert "with everything that it had acknowledged" in said(tmp_path)
    told = summary(tmp_path / "run")
    assert [(restart["groups"], restart["whole"]) for restart in told["restarted"]] == [([], [0])], told["restarted"]
    assert [group["contained"] for group in audited(tmp_path / "run")] == [[[0, 800]]] * 2
    for number in range(2):
        made = [row["step"] for row in metrics(tmp_path / "run") if (row["group"], row["phase"]) == (number, "train")]
        assert made == list(range(1, 801)), "every step is made once"


@pytest.mark.slow
def test_a_cut_network_is_noticed_and_survived(dask, saved, tmp_path):
    run = saved(600)
    dask.hosts[1].link("down")
    wait_until(lambda: "1 of 3" in said(tmp_path), run, tmp_path)
    assert "(host far, pid " in said(tmp_path)
    dask.hosts[1].link("up")
    dask.workers(1, 2)
    assert run.wait(timeout=80) == 0, said(tmp_path)
    told = summary(tmp_path / "run")
    assert (told["status"], told["step"], told["restarts"]) == ("completed", 600, 1)


@pytest.mark.slow
def test_a_host_that_stays_away_ends_the_run(dask, saved, tmp_path):
    run = saved(100_000)
    dask.hosts[1].link("down")
    assert run.wait(timeout=120) == 1, said(tmp_path)
    assert re.search(r"error: .* 2 .* 0 .* 30 s", said(tmp_path)), said(tmp_path)
    told = summary(tmp_path / "run")
    assert told["status"] == "failed" and Path(told["checkpoint"]).exists()
