"""A training loop of one's own with a GPU for every rank, against the same loop on the CPU."""

import sys

import numpy as np
import pytest

from singa_dask import DistOpt, Model
from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.distopt.stages import SumStages
from singa_dask.layers import LSTM, BatchNorm, EuclideanLoss, InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.updaters import SGD

pytestmark = pytest.mark.timeout(240)
ROWS, TIME, STEPS = 12, 5, 3


def trained(comm, device):
    """The parameters after a few steps on sequences."""
    layers = [
        RecordInput(shape=[4], sequence=TIME),
        LSTM(dim_hidden=6, unroll_len=TIME),
        BatchNorm(unroll_len=TIME),
        InnerProduct(num_output=3, unroll_len=TIME),
        SoftmaxLoss(unroll_len=TIME),
    ]
    model = Model(layers, seed=3, device=device, device_id=comm.rank)
    opt = DistOpt(SGD(lr=0.1, momentum=0.9), model, comm)
    own = slice(ROWS * comm.rank // comm.size, ROWS * (comm.rank + 1) // comm.size)
    for number in range(STEPS):
        draw = np.random.default_rng(number)
        x, y = draw.random((ROWS, TIME, 4), np.float32), draw.integers(0, 3, (ROWS, TIME))
        opt.backward_and_update(model(x[own], y[own]), threshold=16)
    return model.state_dict()


def test_ranks_with_a_gpu_each_equal_one_on_a_cpu(gpus, monkeypatch):
    used = {rank: set() for rank in range(gpus)}  # the GPUs from which gradients came
    prepare = SumStages.prepare

    def noted(stages, bucket):
        prepare(stages, bucket)
        used[stages.exchange.comm.rank].add(sys.modules["cupy"].cuda.runtime.getDevice())

    monkeypatch.setattr(SumStages, "prepare", noted)
    expected = trained(SoloCommunicator(), "cpu")
    for rank, values in enumerate(run_threads(gpus, trained, "gpu", timeout_s=120)):
        assert used[rank] == ({rank} if gpus > 1 else set())  # one rank stages nothing
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_raw_arrays_are_normalised_on_the_gpu_as_on_a_cpu(gpus):
    def fitted(comm, device):
        statistics = {"mean": [1, 2, 3], "std": [4, 5, 6], "target_mean": [100, -7], "target_std": [20, 3]}
        layers = [
            RecordInput("data", shape=[3, 2, 2], target_shape=[2], **statistics),
            InnerProduct("out", num_output=2, param=[{"init": {"type": "kUniform", "low": -0.5, "high": 0.5}}]),
            EuclideanLoss("loss", ["out", "data"]),
        ]
        model = Model(layers, seed=3, device=device)
        opt = DistOpt(SGD(lr=0.05), model, comm)
        draw = np.random.default_rng(0)
        x, y = draw.normal(size=(ROWS, 2, 2, 3), scale=5), draw.normal(size=(ROWS, 2), scale=20)
        for _ in range(STEPS):
            opt.backward_and_update(model(x, y))
        return model.predict(x), model.evaluate(x, y)["loss"]

    (expected, loss), (predicted, other) = (fitted(SoloCommunicator(), device) for device in ("cpu", "gpu"))
    np.testing.assert_allclose(predicted, expected, rtol=1e-3)
    assert other == pytest.approx(loss, rel=1e-3)
