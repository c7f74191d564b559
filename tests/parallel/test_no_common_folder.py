"""Hosts without a common folder: every command says so before it works, and names the host and the path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.commands import cluster, example, sets, summary
from support.hosts import dask_on


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
        hosts.hosts[1].make_private(folder)
        code, said = hosts.run("train", *workers(2), "--workspace", "run", "--scheduler", hosts.scheduler)
        assert code == 1 and told(said, folder / "run", "far"), said
    assert not (folder / "run").exists(), "nothing is left"


# Commands, and what they look for in the folder.
CASES: list[tuple[list[object], str]] = [
    (["train", *workers(3), "--workspace", "new"], "new"),
    (["train", *workers(3), "--workspace", "run", "--resume"], "run"),
    (["predict", "run"], "cache"),
    (["predict", "run", "--data", "x.npz"], "x.npz"),
    (["shard", "csv", "--source", "t.csv", "--label", "c", "--out", "out"], ""),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_says_what_other_hosts_do_not_see(folder):
    (folder / "t.csv").write_text("a,b,c\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(40)))
    np.savez(folder / "x.npz", x=np.zeros((5, 8, 8), np.float32))
    with dask_on(folder, "near", "far", "third") as hosts:
        code, said = hosts.run("train", *workers(3), "--workspace", "run", "--scheduler", hosts.scheduler)
        assert code == 0 and (folder / "run" / "checkpoint" / "step-00000004.h5").exists(), said
        for host in hosts.hosts[1:]:
            host.make_private(folder)
        for args, path in CASES:
            code, said = hosts.run(*args, "--scheduler", hosts.scheduler)
            assert code == 1 and told(said, folder / path, "far", "third"), (args, said)
        assert not (folder / "out").exists() and not (folder / "new").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_shards_that_other_hosts_do_not_have_are_named(folder):
    with dask_on(folder, "near", "far") as hosts:
        assert hosts.run("train", *workers(1), "--workspace", "local")[0] == 0, "which fills the cache"
        hosts.hosts[1].make_private(folder / "cache")
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
        hosts.hosts[other].make_private(folder / "run" / "checkpoint")
        for args in (["test", "run"], ["audit", "run"], [*train, "--resume"]):
            code, said = hosts.run(*args, on=other)
            (line,) = (line for line in said.splitlines() if line.startswith("error: "))
            assert code == 1 and f"saved on host {saved}" in line, (args, said)
    assert summary(folder / "run")["status"] == "completed"
