"""SINGA_DASK_KERNELS=numpy: everything runs on the NumPy reference."""

import os
import subprocess
import sys

import numpy as np
import pytest

from singa_dask.errors import ConfigError
from singa_dask.ops import KERNELS, Ops, get_ops
from singa_dask.ops.cpu.ops import CpuOps

TRAINING = """
import sys
import numpy as np
from singa_dask import layers
from singa_dask.comm import SoloCommunicator
from singa_dask.job import Job
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica
from singa_dask.updaters import Adam

chain = [
    layers.RecordInput("data", backend="hdf5", path="none", batchsize=20, shape=[3, 12, 12]),
    layers.Convolution(num_filters=8, kernel=3, pad=1),
    layers.ReLU(),
    layers.LRN(local_size=3),
    layers.Pooling(pool="MAX", kernel=2, stride=2),
    layers.Dropout(dropout_ratio=0.3),
    layers.InnerProduct(num_output=16),
    layers.Tanh(),
    layers.InnerProduct(num_output=10),
    layers.SoftmaxLoss("loss"),
]
job = Job(name="small", layers=chain, updater=Adam(lr=0.01), train_steps=1).proto
replica = Replica.form(job, SoloCommunicator(), get_ops("cpu", threads=2))
replica.group_state.initialise()
draw = np.random.default_rng(0)
batch = Batch(draw.random((20, 12, 12, 3), np.float32), draw.integers(0, 10, 20))
losses = []
for number in range(10):
    metrics = replica.train_step({"data": batch}, Step(Phase.kTrain, number, total_rows=20))
    losses.append(metrics["loss"].mean)
np.savez(sys.argv[1], losses=losses, values=replica.net.flat.values)
print(any(module.partition(".")[0] in ("numba", "llvmlite") for module in sys.modules))
"""


def train(kernels, path):
    """The losses and parameters of a small net, and whether the process imported Numba."""
    environment = {**os.environ, KERNELS: kernels}
    command = [sys.executable, "-c", TRAINING, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return np.load(path), done.stdout.strip()


@pytest.mark.timeout(240)
def test_a_net_trains_without_numba_and_as_with_it(tmp_path):
    reference, imported = train("numpy", tmp_path / "numpy.npz")
    assert imported == "False"  # so that no kernel was compiled or called
    compiled, imported = train("numba", tmp_path / "numba.npz")
    assert imported == "True"
    assert reference["losses"][-1] < 0.9 * reference["losses"][0]
    np.testing.assert_allclose(reference["losses"], compiled["losses"], rtol=1e-4)
    np.testing.assert_allclose(reference["values"], compiled["values"], rtol=1e-3, atol=1e-4)
    assert not np.array_equal(reference["values"], compiled["values"])  # else both ran the same kernels


@pytest.mark.parametrize(("value", "kind"), [(None, CpuOps), ("", CpuOps), ("numba", CpuOps), ("numpy", Ops)])
def test_the_environment_selects_the_kernels(monkeypatch, value, kind):
    monkeypatch.delenv(KERNELS, raising=False)
    if value is not None:
        monkeypatch.setenv(KERNELS, value)
    assert type(get_ops("cpu", np.float64)) is kind
    assert get_ops("cpu", np.float64).dtype == np.float64


def test_unknown_kernels_are_refused(monkeypatch):
    monkeypatch.setenv(KERNELS, "numpyy")
    with pytest.raises(ConfigError, match=r"SINGA_DASK_KERNELS: must be numba or numpy.*'numpyy'"):
        get_ops("cpu")
