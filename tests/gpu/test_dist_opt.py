"""A training loop of one's own with a GPU for every rank, against the same loop on the CPU."""

import sys

import numpy as np
import pytest

from singa_dask import DistOpt, Model
from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.layers import LSTM, BatchNorm, EuclideanLoss, InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.loops.distopt.stages import SumStages
from singa_dask.updaters import SGD

pytestmark = pytest.mark.timeout(240)
ROWS, TIME, STEPS = 12, 5, 3


METHODS = {
    "full": lambda opt, loss: opt.backward_and_update(loss, threshold=16),
    "half": lambda opt, loss: opt.backward_and_update_half(loss, threshold=16, clipping=True, clip_Value=0.05),
    "partial": lambda opt, loss: opt.backward_and_partial_update(loss, threshold=64),
    "top k": lambda opt, loss: opt.backward_and_sparse_update(loss, spars=0.2, topK=True),
    "threshold": lambda opt, loss: opt.backward_and_sparse_update(loss, spars=1e-3),
}


def trained(comm, device, method="full", sharing=False):
    """The parameters after a few steps on sequences, and the bytes that travelled between GPUs and between hosts."""
    layers = [
        RecordInput(shape=[4], sequence=TIME),
        LSTM(dim_hidden=6, unroll_len=TIME),
        BatchNorm(unroll_len=TIME),
        InnerProduct(num_output=3, unroll_len=TIME),
        SoftmaxLoss(unroll_len=TIME),
    ]
    model = Model(layers, seed=3, device=device, device_id=0 if sharing else comm.rank)
    opt = DistOpt(SGD(lr=0.1, momentum=0.9), model, comm)
    own = slice(ROWS * comm.rank // comm.size, ROWS * (comm.rank + 1) // comm.size)
    for number in range(STEPS):
        draw = np.random.default_rng(number)
        x, y = draw.random((ROWS, TIME, 4), np.float32), draw.integers(0, 3, (ROWS, TIME))
        METHODS[method](opt, model(x[own], y[own]))
    between_gpus = {} if opt.device_comm is None else dict(opt.device_comm.nbytes)
    return model.state_dict(), between_gpus, dict(comm.nbytes)


def test_ranks_with_a_gpu_each_equal_one_on_a_cpu(gpus, monkeypatch):
    used = {rank: set() for rank in range(gpus)}  # the GPUs from which gradients came
    prepare = SumStages.prepare

    def noted(stages, bucket):
        prepare(stages, bucket)
        used[stages.exchange.comm.rank].add(sys.modules["cupy"].cuda.runtime.getDevice())

    monkeypatch.setattr(SumStages, "prepare", noted)
    expected, *_ = trained(SoloCommunicator(), "cpu")
    for rank, (values, *_) in enumerate(run_threads(gpus, trained, "gpu", timeout_s=120)):
        assert used[rank] == ({rank} if gpus > 1 else set())  # one rank stages nothing
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_computes_on_gpus_what_it_does_on_cpus(gpus, method):
    if gpus < 2:
        pytest.skip("needs two GPUs")
    on_cpus = run_threads(gpus, trained, "cpu", method, timeout_s=120)
    on_gpus = run_threads(gpus, trained, "gpu", method, timeout_s=120)
    for (expected, *_), (values, between_gpus, between_hosts) in zip(on_cpus, on_gpus, strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
        assert "all_reduce" in between_gpus, "sums of batch normalisation"
        gradients = {"reduce_scatter", "all_to_all"}
        assert gradients & between_gpus.keys() and not gradients & between_hosts.keys()


def test_ranks_that_share_a_gpu_exchange_through_the_host(gpus):
    expected, *_ = trained(SoloCommunicator(), "cpu")
    for values, between_gpus, between_hosts in run_threads(2, trained, "gpu", "full", True, timeout_s=120):
        assert not between_gpus and "reduce_scatter" in between_hosts
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_sums_of_a_loop_of_ones_own_travel_between_the_gpus(gpus):
    if gpus < 2:
        pytest.skip("needs two GPUs")

    def member(comm):
        model = Model([RecordInput(shape=[4]), InnerProduct(num_output=2), SoftmaxLoss()], device="gpu",
                      device_id=comm.rank)  # fmt: skip
        opt, xp = DistOpt(SGD(lr=0.1), model, comm), model.ops.xp
        before = dict(opt.device_comm.nbytes), comm.nbytes["all_reduce"]
        turned = xp.arange(6, dtype=np.float32).reshape(2, 3).T
        assert opt.all_reduce(turned) is turned
        on_host = opt.all_reduce(np.full(2, comm.rank, np.float32))
        between = opt.device_comm.nbytes["all_reduce"] - before[0].get("all_reduce", 0)
        number, booleans = opt.all_reduce(1.5), opt.all_reduce(xp.ones(2, np.int16))
        return turned.get().tolist(), on_host.tolist(), between, float(number), booleans.get().tolist()

    for turned, on_host, between, number, counts in run_threads(gpus, member, timeout_s=60):
        assert turned == [[0, 3 * gpus], [gpus, 4 * gpus], [2 * gpus, 5 * gpus]]
        assert on_host == [sum(range(gpus))] * 2 and between == 4 * (6 + 2)
        assert number == 1.5 * gpus and counts == [gpus] * 2, "which NCCL cannot add up"


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
