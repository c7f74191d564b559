"""Hosts without a common folder: every command says so before it works, and names the host and the path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import COMMAND, cluster, example, sets, summary
from support.hosts import Host, hosts_named


@dataclass
class Hosts:
    """A scheduler on the first host, and a Dask worker on each. folder: of the commands."""

    all: list[Host]
    folder: Path

    @property
    def scheduler(self) -> str:
        return f"tcp://{self.all[0].address}:8786"

    def run(self, *args: object, on: int = 0) -> tuple[int, str]:
        """The exit code and the output of `singa-dask ARGS` on a host, in the folder."""
        process = self.start(on, *COMMAND, *args, stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate(timeout=200)
        return process.returncode, out

    def start(self, on: int, *args: object, **options: object) -> subprocess.Popen:
        environment = {**os.environ, "SINGA_DASK_CACHE": str(self.folder / "cache")}
        return self.all[on].start(self.folder, *args, env=environment, stderr=subprocess.STDOUT, **options)


@contextmanager
def dask_on(folder: Path, *names: str) -> Iterator[Hosts]:
    with hosts_named(*names) as hosts:
        made = Hosts(hosts, folder)
        address = ["--host", hosts[0].address, "--port", "8786", "--no-dashboard"]
        quiet = {"stdout": subprocess.DEVNULL}
        made.start(0, sys.executable, "-m", "distributed.cli.dask_scheduler", *address, **quiet)
        for i, host in enumerate(hosts):
            options = ["--nthreads", "1", "--memory-limit", "0", "--host", host.address, "--no-dashboard"]
            made.start(i, sys.executable, "-m", "distributed.cli.dask_worker", made.scheduler, *options, **quiet)
        yield made


@pytest.fixture
def folder(no_leaks, tmp_path: Path) -> Path:
    """A folder that hosts share until they make it private."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def told(said: str, path: Path, *hosts: str) -> bool:
    """Whether a command has said one sentence, which names the hosts and the path, and has made no step."""
    (line,) = (line for line in said.splitlines() if line.startswith("error: "))
    return str(path) in line and all(f"{host} (tcp" in line for host in hosts) and "step " not in said


def workers(count: int) -> list[object]:
    numbers = sets(cluster__nworkers_per_group=count, cluster__nservers_per_group=count)
    return [example(), "--cluster", cluster(), *numbers, *sets(train_steps=4, disp_freq=1, checkpoint_freq=2)]


def test_training_without_a_common_folder_ends_before_it_begins(folder):
    with dask_on(folder, "near", "far") as hosts:
        hosts.all[1].make_private(folder)
        code, said = hosts.run("train", *workers(2), "--workspace", "run", "--scheduler", hosts.scheduler)
        assert code == 1 and told(said, folder / "run", "far"), said
    assert not (folder / "run").exists(), "nothing is left"


CASES: dict[str, Callable[[Path], tuple[list[object], Path]]] = {
    "train": lambda folder: (["train", *workers(3), "--workspace", "new"], folder / "new"),
    "resume": lambda folder: (["train", *workers(3), "--workspace", "run", "--resume"], folder / "run"),
    "predict": lambda folder: (["predict", "run"], folder / "cache"),
    "predict a file": lambda folder: (["predict", "run", "--data", "x.npz"], folder / "x.npz"),
    "shard": lambda folder: (["shard", "csv", "--source", "t.csv", "--label", "c", "--out", "out"], folder),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_says_what_other_hosts_do_not_see(folder):
    (folder / "t.csv").write_text("a,b,c\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(40)))
    python = "import numpy as np; np.savez('x.npz', x=np.zeros((5, 8, 8), np.float32))"
    with dask_on(folder, "near", "far", "third") as hosts:
        assert hosts.start(0, sys.executable, "-c", python).wait(timeout=60) == 0
        code, said = hosts.run("train", *workers(3), "--workspace", "run", "--scheduler", hosts.scheduler)
        assert code == 0 and (folder / "run" / "checkpoint" / "step-00000004.h5").exists(), said
        for host in hosts.all[1:]:
            host.make_private(folder)
        for name, case in CASES.items():
            args, path = case(folder)
            code, said = hosts.run(*args, "--scheduler", hosts.scheduler)
            assert code == 1 and told(said, path, "far", "third"), (name, said)
        assert not (folder / "out").exists() and not (folder / "new").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_shards_that_other_hosts_do_not_have_are_named(folder):
    with dask_on(folder, "near", "far") as hosts:
        assert hosts.run("train", *workers(1), "--workspace", "local")[0] == 0, "which fills the cache"
        hosts.all[1].make_private(folder / "cache")
        code, said = hosts.run("train", *workers(2), "--workspace", "run", "--scheduler", hosts.scheduler)
        assert code == 1 and told(said, folder / "cache" / "shards", "far"), said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_who_looks_for_a_checkpoint_of_another_host_is_told_where_it_is(folder):
    with dask_on(folder, "near", "far") as hosts:
        train = ["train", *workers(2), "--workspace", "run", "--scheduler", hosts.scheduler]
        assert hosts.run(*train)[0] == 0
        (saved,) = (
            host for host in ("near", "far") if f'"host": "{host}"' in (folder / "run/events.jsonl").read_text()
        )
        other = 1 if saved == "near" else 0
        hosts.all[other].make_private(folder / "run" / "checkpoint")
        for args in (["test", "run"], ["audit", "run"], [*train, "--resume"]):
            code, said = hosts.run(*args, on=other)
            (line,) = (line for line in said.splitlines() if line.startswith("error: "))
            assert code == 1 and f"saved on host {saved}" in line, (args, said)
    assert summary(folder / "run")["status"] == "completed"
