"""A worker group across two hosts: it trains, survives a killed worker, and notices that the network is cut."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.commands import COMMAND, audited, cluster, example, metrics, sets, summary
from support.hosts import CARD, Host, two_hosts
from support.launch import is_open_mpi, launched, mpiexec

FOUR = sets(cluster__nworkers_per_group=4, cluster__nservers_per_group=4)
# What docs/cluster.md recommends for a cluster of one's own.
GENTLE = {
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",
    "DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT": "1 day",
}


@dataclass
class TwoHosts:
    """A scheduler and two workers on the near host, two on the far one."""

    near: Host
    far: Host
    folder: Path
    environment: dict[str, str]

    def start(self, host: Host, log: str, *args: object) -> subprocess.Popen:
        with open(self.folder / log, "w") as file:
            return host.start(self.folder, *args, env=self.environment, stdout=file, stderr=subprocess.STDOUT)

    def start_workers(self, host: Host) -> None:
        """Two workers, with a nanny each."""
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", self.scheduler, "--no-dashboard"]
        options = ["--nworkers", "2", "--nthreads", "1", "--memory-limit", "0", "--host", host.address]
        self.start(host, f"workers-{host.name}.log", *worker, *options)

    def train(self, *args: object, framework: str = "allreduce", numbers: Sequence[str] = FOUR) -> subprocess.Popen:
        """`singa-dask train ARGS` on the near host, its output in the file `log`."""
        job = (example(), "--cluster", cluster(framework), "--workspace", self.folder / "run", *numbers)
        return self.start(self.near, "log", *COMMAND, "train", *job, "--scheduler", self.scheduler, *args)

    @property
    def scheduler(self) -> str:
        return f"tcp://{self.near.address}:8786"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def far_workers(self) -> list[psutil.Process]:
        """The worker processes of the far host, without their nannies."""
        found = [process for process in self.far.processes() if "spawn_main" in " ".join(process.cmdline())]
        return sorted(found, key=lambda process: sum(process.cpu_times()[:2]), reverse=True)


@pytest.fixture
def hosts(no_leaks, tmp_path) -> Iterator[TwoHosts]:
    environment = {**os.environ, **GENTLE, "SINGA_DASK_CACHE": str(tmp_path / "cache")}
    with two_hosts() as (near, far):
        pair = TwoHosts(near, far, tmp_path, environment)
        dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "8786"]
        pair.start(near, "scheduler.log", *dask, "--host", near.address)
        for host in (near, far):
            pair.start_workers(host)
        yield pair


def until(what: Callable[[], object], process: subprocess.Popen, hosts: TwoHosts, within: float) -> None:
    deadline = time.monotonic() + within
    while not what():
        assert process.poll() is None, hosts.log
        assert time.monotonic() < deadline, hosts.log
        time.sleep(0.05)


@pytest.mark.long
def test_a_group_trains_across_hosts(hosts, tmp_path):
    names = {host.run("hostname").strip() for host in (hosts.near, hosts.far)}
    assert names == {"near", "far"}
    before = hosts.far.received()
    run = hosts.train(*sets(train_steps=40, disp_freq=20, test_freq=40))
    assert run.wait(timeout=80) == 0, hosts.log
    assert "4 workers ready" in hosts.log
    told = summary(tmp_path / "run")
    assert told["step"] == 40
    losses = [row["loss"] for row in metrics(tmp_path / "run") if row["phase"] == "train"]
    assert losses[0] > losses[-1]
    # Two ranks there receive the group's slices of 17 thousand parameters, at every step.
    assert hosts.far.received() - before > 40 * 17_000 * 4
    assert [host.segments() for host in (hosts.near, hosts.far)] == [[], []]


@pytest.mark.timeout(150)
def test_an_mpi_job_across_hosts(no_leaks, tmp_path):
    """The launcher stands in the near host's network, so that it starts the ranks there itself."""
    if is_open_mpi():
        pytest.skip("Open MPI's launcher cannot be told how to reach a host")
    with two_hosts() as (near, far):
        launcher = ["-launcher", "ssh", "-launcher-exec", far.launcher(tmp_path)]
        where = ["-hosts", f"{near.address}:2,{far.address}:2", "-iface", CARD]
        options = ["--cluster", cluster(), "--workspace", tmp_path / "run", "--mpi", "--interface", CARD]
        command = [*mpiexec(4), *launcher, *where, *COMMAND, "train", example(), *options]
        fresh = 'mount -t sysfs sys /sys && exec "$@"'  # there MPI looks for network cards
        into = ["nsenter", "--target", near.init, "--net", "unshare", "--mount", "--ipc", "sh", "-c", fresh, "sh"]
        before = far.received()
        ran = subprocess.run(
            [*map(str, (*into, *command, *sets(train_steps=40, test_freq=40)))],
            cwd=tmp_path,
            env={**launched(), "SINGA_DASK_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "3 workers ready" in ran.stdout
        assert summary(tmp_path / "run")["test"]["loss"] < 2.2
        assert far.received() - before > 40 * 17_000 * 4


@pytest.mark.long
@pytest.mark.timeout(150)
def test_a_killed_worker_of_the_far_host_is_replaced(hosts, tmp_path):
    run = hosts.train(*sets(train_steps=500, disp_freq=20, test_freq=500, checkpoint_freq=50))
    until(lambda: "saved" in hosts.log, run, hosts, within=60)
    hosts.far_workers()[0].kill()
    killed = time.monotonic()
    until(lambda: "Restart 1 of 3" in hosts.log, run, hosts, within=60)
    noticed = time.monotonic() - killed
    assert run.wait(timeout=90) == 0, hosts.log
    assert noticed < 25, "before the deadline of a collective"
    assert "(host far, pid " in hosts.log, hosts.log
    told = summary(tmp_path / "run")
    assert (told["status"], told["step"], told["restarts"]) == ("completed", 500, 1)
    assert told["test"]["accuracy"] > 0.97


@pytest.mark.long
@pytest.mark.timeout(150)
def test_servers_survive_the_loss_of_their_host(hosts, tmp_path):
    """Both servers are on the far host, which is lost at once; their replicas are on the near one."""
    numbers = sets(cluster__nworker_groups=2, cluster__nworkers_per_group=1, cluster__nservers_per_group=2)
    settings = sets(train_steps=800, disp_freq=1, test_freq=0, test_steps=0, checkpoint_freq=0)
    run = hosts.train(*settings, framework="downpour", numbers=numbers)
    until(lambda: steps(hosts.log) >= 50, run, hosts, within=60)
    hosts.start_workers(hosts.near)  # for the servers
    until(lambda: steps(hosts.log) >= 150, run, hosts, within=60)
    hosts.far.crash()
    until(lambda: "with everything that it had acknowledged" in hosts.log, run, hosts, within=40)
    assert run.wait(timeout=80) == 0, hosts.log
    told = summary(tmp_path / "run")
    assert [(restart["groups"], restart["whole"]) for restart in told["restarted"]] == [([], [0])], told["restarted"]
    assert [group["contained"] for group in audited(tmp_path / "run")] == [[[0, 800]]] * 2
    for number in range(2):
        made = [row["step"] for row in metrics(tmp_path / "run") if (row["group"], row["phase"]) == (number, "train")]
        assert made == list(range(1, 801)), "every step is made once"


def steps(log: str) -> int:
    """The last step that any worker group has shown."""
    return max(map(int, re.findall(r"^(?:group \d+  )?step +(\d+)/\d+  train", log, re.MULTILINE)), default=0)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_cut_network_is_noticed_and_survived(hosts, tmp_path):
    run = hosts.train(*sets(train_steps=600, disp_freq=20, test_freq=600, checkpoint_freq=50))
    until(lambda: "saved" in hosts.log, run, hosts, within=60)
    hosts.far.link("down")
    until(lambda: "Restart 1 of 3" in hosts.log, run, hosts, within=30)
    assert re.search(r"\(host far, pid \d+\): does not answer \(stopped, or cut off\)", hosts.log), hosts.log
    hosts.far.link("up")
    hosts.start_workers(hosts.far)
    assert run.wait(timeout=80) == 0, hosts.log
    told = summary(tmp_path / "run")
    assert (told["status"], told["step"], told["restarts"]) == ("completed", 600, 1)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_host_that_stays_away_ends_the_run(hosts, tmp_path):
    run = hosts.train(*sets(train_steps=100_000, disp_freq=20, checkpoint_freq=50))
    until(lambda: "saved" in hosts.log, run, hosts, within=60)
    hosts.far.link("down")
    assert run.wait(timeout=90) == 1, hosts.log
    assert re.search(r"error: Dask workers were lost .*: 2 must be replaced, and 0 are free after 30 s", hosts.log), (
        hosts.log
    )
    told = summary(tmp_path / "run")
    assert told["status"] == "failed" and Path(told["checkpoint"]).exists()
