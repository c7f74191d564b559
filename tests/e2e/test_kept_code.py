"""Code of a script's own layers is kept with the run: other processes load the model when the script is gone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.commands import run

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
# The mean of the test data's probabilities tells FACTOR.
LOADED = """
import sys
import numpy as np
from singa_dask import load_model
x = np.linspace(0, 1, 640, dtype=np.float32).reshape(10, 64)
print(load_model("run", trust_code="trust" in sys.argv).predict(x).std())
"""


@pytest.fixture(scope="module")
def folder(environment, tmp_path_factory):
    """Where a script trained a net with a layer of its own. The script has changed since, and its module is gone."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("FACTOR = 0.5\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "script.py").write_text("")
    (folder / "beside.py").unlink()
    return folder


def loaded(folder, environment, *more, **changed):
    command = [sys.executable, "-c", LOADED, *more]
    env = {**environment, **changed}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=50)


def test_another_process_loads_the_model(folder, environment):
    done = loaded(folder, environment)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 1


def test_code_of_another_user_is_run_only_when_it_is_trusted(folder, environment, tmp_path):
    other = {"XDG_CONFIG_HOME": str(tmp_path)}
    refused = loaded(folder, environment, **other)
    assert refused.returncode == 1
    assert "keeps Python code (__main__:Times) that another user" in refused.stderr
    assert "If you trust its origin, give --trust-code (in Python trust_code=True)." in refused.stderr
    assert loaded(folder, environment, "trust", **other).stdout == loaded(folder, environment).stdout
    arguments = "test", "run/job.conf", "--checkpoint", "run"
    env = {**environment, **other}
    refused = run(*arguments, cwd=folder, env=env)
    assert refused.code == 1 and "give --trust-code" in refused.err
    assert run(*arguments, "--trust-code", cwd=folder, env=env).code == 0


def test_commands_find_the_code_in_the_checkpoint(folder, environment):
    tested = run("test", "run/job.conf", "--checkpoint", "run", cwd=folder, env=environment)
    assert tested.code == 0 and tested.out.startswith("test "), tested.err
    arguments = "predict", "run/job.conf", "--checkpoint", "run", "--out", "p.csv"
    predicted = run(*arguments, cwd=folder, env=environment)
    assert predicted.code == 0, predicted.err
