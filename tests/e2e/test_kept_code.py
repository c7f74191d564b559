"""Code of a script's own layers is kept with the run: other processes load the model when the script is gone."""

import sys

import numpy as np
import pytest
from support.commands import run_command, run_here

from singa_dask import load_model
from singa_dask.errors import CheckpointError

SCRIPT = """
import numpy as np
from beside import FACTOR
from singa_dask import Job, layers, train, updaters


class Times(layers.Layer):
    def setup(self, *src):
        return self.sources(src)[0]

    def forward(self, ctx, *x):
        return x[0] * np.float32(FACTOR)

    def backward(self, ctx, dy):
        return dy * np.float32(FACTOR)


if __name__ == "__main__":
    net = [
        layers.RecordInput(path="dataset:digits/train", batchsize=96, std_value=16),
        layers.InnerProduct("ip", num_output=10),
        Times(),
        layers.SoftmaxLoss(),
    ]
    job = Job(name="own", layers=net, updater=updaters.SGD(lr=0.1), train_steps=5, test_steps=2)
    train(job, workspace="run")
"""
# Its standard deviation tells FACTOR.
X = np.linspace(0, 1, 640, dtype=np.float32).reshape(10, 64)
COMMANDS = [("test", "run/job.conf", "--checkpoint", "run"), ("predict", "run", "--data", "x.npz", "--out", "p.csv")]


@pytest.fixture(scope="module")
def folder(environment, tmp_path_factory):
    """Where a script trained a net with a layer of its own. The script has changed since, and its module is gone."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("FACTOR = 0.5\n")
    run_command([sys.executable, "script.py"], cwd=folder, env=environment)
    (folder / "script.py").write_text("")
    (folder / "beside.py").unlink()
    np.savez(folder / "x.npz", x=X)
    return folder


def test_another_process_finds_the_code_in_the_checkpoint(folder, environment):
    likely = load_model(folder / "run").predict(X)
    assert 0 < likely.std() < 1
    for command in COMMANDS:
        run_here(*command, cwd=folder, env=environment, code=0)
    shown = np.loadtxt(folder / "p.csv", delimiter=",", skiprows=1)[:, -10:]
    np.testing.assert_allclose(shown, likely, rtol=1e-4)


def test_code_of_another_user_is_run_only_when_it_is_trusted(folder, environment, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(
        CheckpointError, match=r"keeps Python code \(__main__:Times\) that another user, .*--trust-code"
    ):
        load_model(folder / "run")
    assert load_model(folder / "run", trust_code=True).predict(X).std() > 0
    env = {**environment, "XDG_CONFIG_HOME": str(tmp_path)}
    for command in COMMANDS:
        assert "give --trust-code" in run_here(*command, cwd=folder, env=env, code=1).err
        run_here(*command, "--trust-code", cwd=folder, env=env, code=0)
