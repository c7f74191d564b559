"""A module in the folder of a run that somebody else has made does not run, wherever the command is typed."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from support.commands import Ran, example, run_here
from support.planted import plant, ran

from singa_dask.cli.scheduler import Scheduler
from singa_dask.errors import ClusterError
from singa_dask.job import Job
from singa_dask.job.code_bundle import pack
from singa_dask.layers import InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.monitor.progress import Display
from singa_dask.supervision import driver
from singa_dask.updaters import SGD

OWN = """
from singa_dask.layers import Layer
class Same(Layer):
    def setup(self, *src):
        return self.sources(src)[0]
    def forward(self, ctx, *x):
        return x[0]
    def backward(self, ctx, dy):
        return dy
"""
# One sentence of `code_of`, or of the search for the module.
REFUSED = ("--trust-code", "no module named")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Path:
    """A folder with the run of a layer of its own, signed by another user, and the module in `home`."""
    folder = tmp_path_factory.mktemp("foreign")
    home = folder / "home"
    home.mkdir()
    (home / "strange_layers.py").write_text(OWN)
    data = np.random.default_rng(0).normal(size=(60, 3)).astype("f4"), np.arange(60) % 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "other"))
        patch.syspath_prepend(home)
        patch.chdir(home)
        own = importlib.import_module("strange_layers").Same()
        layers = [RecordInput(batchsize=30), InnerProduct(num_output=2), own, SoftmaxLoss()]
        job = Job(name="points", layers=layers, updater=SGD(lr=0.1), train_steps=2, checkpoint_freq=2)
        driver.train(job, data=data, processes=False, workspace=folder / "run", display=Display(), curves=False)
    del sys.modules["strange_layers"]
    return folder


@pytest.fixture
def strange(foreign, tmp_path, monkeypatch) -> Path:
    """The run, beside whose files lie modules of that name."""
    shutil.copytree(foreign, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "mine"))
    plant(tmp_path / "run", ["strange_layers"])
    plant(tmp_path / "run" / "checkpoint", ["strange_layers"])
    return tmp_path / "run"


@pytest.fixture
def attached(monkeypatch) -> list[bool]:
    """`attach` gets as far as the code that it would send to the workers: whether there is some."""
    sent = []

    def train(job, client, **_):
        sent.append(pack(job.proto, job.folder) is not None)
        raise ClusterError("as far as this")

    monkeypatch.setattr(Scheduler, "fork_workers", lambda *_: None)
    monkeypatch.setattr(driver, "train", train)
    return sent


def command(*args: object, cwd: Path) -> Ran:
    try:
        return run_here(*args, cwd=cwd, env={})
    finally:
        sys.modules.pop("strange_layers", None)


def planted(run: Path) -> list[str]:
    return ran(run) + ran(run / "checkpoint")


@pytest.mark.parametrize(
    ("args", "cwd"),
    [
        (("predict", "."), "run"),
        (("test", "."), "run"),
        (("export", ".", "--onnx", "net.onnx"), "run"),
        (("predict", "../run"), "run"),
        (("predict", "."), "link"),
        (("predict", ".."), "run/checkpoint"),
        (("predict", "step-00000002.h5"), "run/checkpoint"),
        (("predict", "../home/job.conf", "--checkpoint", "."), "run"),
        (("sample", "../home/text.conf", "--checkpoint", "."), "run"),
        (("train", "../home/job.conf", "--resume", "--workspace", "."), "run"),
        (("attach", "run"), "."),
        (("attach", "."), "run"),
    ],
)
def test_it_is_refused_as_any_code_of_others(strange, attached, tmp_path, args, cwd):
    (tmp_path / "link").symlink_to(strange)
    (tmp_path / "home" / "job.conf").write_text((strange / "job.conf").read_text())
    text = example("char-rnn").read_text().replace("type: kUniform low", 'user_type: "strange_layers:Same" low', 1)
    (tmp_path / "home" / "text.conf").write_text(text)
    (tmp_path / "home" / "strange_layers.py").unlink()
    done = command(*args, cwd=tmp_path / cwd)
    assert planted(strange) == []
    assert done.code in (1, 2) and any(text in done.err for text in REFUSED), done.err
    assert done.err.count("\n") == 1 + done.err.count("No --scheduler"), done.err


def test_attach_takes_the_code_that_the_checkpoint_keeps(strange, attached, tmp_path):
    trusted = command("attach", "run", "--trust-code", cwd=tmp_path)
    assert "as far as this" in trusted.err and attached == [True], trusted.err
    assert planted(strange) == []


def test_code_in_the_current_folder_is_the_user_s_choice(strange, attached, tmp_path):
    for args in (("predict", tmp_path / "run"), ("attach", tmp_path / "run")):
        done = command(*args, cwd=tmp_path / "home")
        assert done.code == 0 or "as far as this" in done.err, done.err
    assert attached == [True] and planted(strange) == []
