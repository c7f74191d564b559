"""Paths that cannot be sent to workers, or written down: one sentence before anything starts."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest
from support.commands import COMMAND
from support.shards import write_shards

from singa_dask import Job, layers, train, updaters
from singa_dask.errors import ConfigError
from singa_dask.job import job_to_text

STRANGE = os.fsdecode(b"w\xfc")  # Latin-1


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    write_shards(tmp_path / "data", np.ones((20, 4), "f4"), np.arange(20) % 2, 1)
    monkeypatch.chdir(tmp_path)
    net = [layers.RecordInput(path="data", batchsize=10), layers.InnerProduct(num_output=2), layers.SoftmaxLoss()]
    return Job(name="x", layers=net, updater=updaters.SGD(lr=0.1), train_steps=2)


@pytest.mark.parametrize(
    ("settings", "moved", "folder"),
    [
        ({"workspace": STRANGE}, "", "."),
        ({"workspace": f"{STRANGE}/w"}, "", "."),
        ({"workspace": "w"}, "data", STRANGE),
        ({"workspace": "w", "data": f"{STRANGE}/data"}, "data", "."),
    ],
    ids=["workspace", "folder of the workspace", "current folder", "data"],
)
def test_what_workers_must_be_told_is_text(job, tmp_path, monkeypatch, settings, moved, folder):
    monkeypatch.setattr("singa_dask.supervision.driver.Run", lambda *_: pytest.fail("has begun"))
    os.mkdir(STRANGE)
    if moved:
        os.rename(moved, f"{STRANGE}/{moved}")
    if "data" in settings:
        job.proto.neuralnet.layer[0].store_conf.ClearField("path")
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"is not UTF-8 text\. Received: '.*w\\udcfc.*'\. Rename it"):
        train(job, **settings)
    assert not list(tmp_path.rglob("*.lock"))


def test_one_process_trains_in_any_folder(job):
    assert train(job, workspace=STRANGE, processes=False, curves=False).checkpoint.is_file()


def test_a_process_whose_text_is_ascii(job, tmp_path):
    """The path is UTF-8, but this process, and so its workers, cannot know that."""
    (tmp_path / "job.conf").write_text(job_to_text(job.proto))
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(
        [*COMMAND, "train", "job.conf", "--workspace", "wü"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert ran.returncode == 2 and ran.stderr.count("\n") == 1, ran.stderr
    assert ran.stderr.startswith("error: workspace: is not ASCII text. Received: ")
    assert "/w\\udcc3\\udcbc'. Set LC_ALL=C.UTF-8, or rename it." in ran.stderr
    assert sorted(os.listdir(tmp_path)) == ["data", "job.conf"]
