"""Products whose operands are rounded to TF32 or bfloat16, against a NumPy reference that rounds likewise."""

import numpy as np
import pytest
from support.op_cases import CASES
from support.programs import imported

from singa_dask.comm import SoloCommunicator
from singa_dask.errors import ConfigError
from singa_dask.job.checks import check_job
from singa_dask.job.job_pb2 import JobProto, Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import Ops, get_ops
from singa_dask.ops.gpu.ops import GpuOps
from singa_dask.training.replica import Replica

BITS = {"kTF32": 13, "kBFloat16": 16}  # of a float32 that are rounded away
FLIPS = {"kTF32": 2**-10, "kBFloat16": 2**-8}  # between two neighbours, relative
ROWS = 2


def rounded(x, compute):
    """x in float64, rounded to nearest even."""
    bits, away = np.ascontiguousarray(x, np.float32).view(np.uint32), np.uint32(BITS[compute])
    up = bits + np.uint32((1 << BITS[compute] - 1) - 1) + (bits >> away & np.uint32(1))
    return (up >> away << away).view(np.float32).astype(np.float64)


class Rounding(Ops):
    """NumPy's products of rounded operands, added up in float64."""

    def __init__(self, compute):
        super().__init__(np.float32)
        self._compute = compute

    def matmul(self, a, b):
        return (rounded(a, self._compute) @ rounded(b, self._compute)).astype(np.float32)

    def gemm(self, a, b, out=None, accumulate=False):
        product = self.matmul(a, b)
        if out is None:
            return product
        out[...] = out + product if accumulate else product
        return out


class Checked(GpuOps):
    """The GPU's products, each of which equals that of its own operands, rounded."""

    products = 0

    def matmul(self, a, b):
        return self._checked(a, b, super().matmul(a, b), 0)

    def gemm(self, a, b, out=None, accumulate=False):
        before = self.to_host(out).copy() if accumulate else 0
        return self._checked(a, b, super().gemm(a, b, out, accumulate), before)

    def _checked(self, a, b, found, before):
        self.products += 1
        left, right = (rounded(self.to_host(each), self.compute) for each in (a, b))
        error = np.abs(self.to_host(found) - (left @ right + before))
        assert (error <= 1e-6 * (np.abs(left) @ np.abs(right) + np.abs(before))).all(), (a.shape, b.shape)
        return found


@pytest.mark.parametrize("compute", BITS)
@pytest.mark.parametrize("name", ["products", *[each for each in CASES if each.startswith("convolution")][:3]])
def test_products_round_their_operands(name, compute, cupy):
    results = [
        [np.asarray(ops.to_host(each)) for each in CASES[name](ops, np.random.default_rng(0))]
        for ops in (get_ops("gpu", compute=compute), Rounding(compute))
    ]
    for got, expected in zip(*results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compute", BITS)
@pytest.mark.parametrize(
    "name", ["attention-2x3x5x4-True", "attention-7-True-some", "cross-attention-150-6-True", "time-given"]
)
def test_every_product_rounds_its_operands(name, compute, emulated):
    ops = Checked(np.float32, compute=compute)
    emulated.counts()
    CASES[name](ops, np.random.default_rng(0))
    assert emulated.counts()["product"] == ops.products > 0


def losses_of(name, steps, ops):
    with imported("tools.workloads", "benchmarks") as workloads, imported("tools.jobs", "benchmarks") as jobs:
        workload = workloads.WORKLOADS[name]
        features, labels = (array[:ROWS] for array in workloads.data_of(workload))
        replica = Replica.form(jobs.job_of(workload), SoloCommunicator(), ops, device_comm=SoloCommunicator())
    replica.group_state.initialise()
    batch, losses = Batch(ops.asarray(features), ops.asarray(labels)), []
    for number in range(steps):
        feed = {replica.net.input_layers[0]: batch}
        losses.append(replica.train_step(feed, Step(Phase.kTrain, number, total_rows=ROWS))["loss"].mean)
    return losses


@pytest.mark.timeout(240)
@pytest.mark.parametrize("compute", BITS)
@pytest.mark.parametrize(("name", "steps", "flips"), [("mnist-cnn", 3, 0), ("resnet20-64", 2, 1)])
def test_training_equals_the_reference_that_rounds(name, steps, flips, compute, emulated):
    """Every product of the steps is one of rounded operands. The losses are those of the reference but for flips:
    where the last bits of sums differ, an operand next to a rounding boundary becomes its other neighbour, and batch
    normalisation of two rows spreads that. They stay within one flip, relative."""
    ops = Checked(np.float32, compute=compute)
    emulated.counts()
    losses = losses_of(name, steps, ops)
    assert emulated.counts()["product"] == ops.products
    np.testing.assert_allclose(losses, losses_of(name, steps, Rounding(compute)), rtol=2e-5 + flips * FLIPS[compute])


def test_float64_is_refused(cupy):
    with pytest.raises(ConfigError, match=r"compute: is for nets of float32, not of float64.*kTF32"):
        get_ops("gpu", np.float64, compute="kTF32")


@pytest.mark.parametrize("compute", BITS)
def test_cpus_refuse_it(compute):
    with pytest.raises(ConfigError, match=rf"compute: CPUs multiply in float32.*{compute}"):
        get_ops("cpu", compute=compute)
    with pytest.raises(ConfigError, match=rf"compute: needs GPUs: .*{compute}.*Leave gpu or"):
        check_job(JobProto(compute=compute, gpu=[-1]))


def test_an_unknown_type_is_named():
    with pytest.raises(ConfigError, match=r"compute: .*'kBFloat'.*kBFloat16"):
        get_ops("cpu", compute="kBFloat")
