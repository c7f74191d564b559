"""How often a training step launches a kernel or a product, and waits for the device: budgets of nets."""

import sys
from collections import Counter

import numpy as np
import pytest
from support.cupy_on_cpu import ElementwiseKernel
from support.programs import imported

from singa_dask.comm import SoloCommunicator
from singa_dask.job.job_pb2 import Phase
from singa_dask.layers.context import Step
from singa_dask.net import Batch
from singa_dask.ops import get_ops
from singa_dask.training.replica import Replica

ROWS = 2  # launches do not depend on them
BUDGETS = {
    "mnist-cnn": 42,
    "cifar10-cnn": 60,
    "resnet20-64": 320,
    "transformer-12": 250,
    "gru-512": 6 * 50,
    "conv3d-8": 42,
}

counts: Counter = Counter()


class Counted(np.ndarray):
    """What CuPy launches, counted on NumPy's arrays: element-wise functions, sums, products, copies."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        counts["launches"] += 1
        outs = {"out": tuple(bare(each) for each in out)} if out else {}
        return counted(getattr(ufunc, method)(*map(bare, inputs), **outs, **options))

    def __array_function__(self, function, types, args, options):
        counts["launches"] += 1
        bared = {key: bare(value) for key, value in options.items()}
        return counted(
            function(*(type(a)(map(bare, a)) if isinstance(a, tuple | list) else bare(a) for a in args), **bared)
        )

    def __setitem__(self, where, values):
        counts["launches"] += 1
        bare(self)[where] = bare(values)

    def __float__(self):
        counts["waits"] += 1
        return float(bare(self))

    def __bool__(self):
        counts["waits"] += 1
        return bool(bare(self))


def bare(array):
    return array.view(np.ndarray) if isinstance(array, Counted) else array


def counted(result):
    return result.view(Counted) if isinstance(result, np.ndarray) else result


@pytest.fixture
def cupy(gpu_library, monkeypatch):
    if gpu_library == "cupy":
        pytest.skip("counts the calls of the stand-in")
    cupy, launch = sys.modules["cupy"], ElementwiseKernel.__call__
    for make in (np.empty, np.zeros, np.empty_like, np.arange, np.asarray):
        monkeypatch.setattr(cupy, make.__name__, lambda *args, of=make, **options: counted(of(*args, **options)))

    def noted(self, *args, **options):
        counts["launches"] += 1
        return launch(self, *args, **options)

    def asnumpy(array):
        counts["waits"] += 1
        return np.asarray(array)

    monkeypatch.setattr(ElementwiseKernel, "__call__", noted)
    monkeypatch.setattr(cupy, "asnumpy", asnumpy)
    return cupy


@pytest.mark.parametrize("name", BUDGETS)
def test_a_step_keeps_to_its_budget(name, cupy):
    with imported("tools.workloads", "benchmarks") as workloads, imported("tools.jobs", "benchmarks") as jobs:
        workload = workloads.WORKLOADS[name]
        features, labels = (array[:ROWS] for array in workloads.data_of(workload))
        ops = get_ops("gpu")
        replica = Replica.form(jobs.job_of(workload), SoloCommunicator(), ops, device_comm=SoloCommunicator())
    replica.group_state.initialise()
    batch = Batch(ops.asarray(features), None if workload.symbols else ops.asarray(labels))
    for number in range(2):
        counts.clear()
        feed = {replica.net.input_layers[0]: batch}
        replica.train_step(feed, Step(Phase.kTrain, number, total_rows=ROWS))
    assert counts["waits"] == 1
    assert counts["launches"] <= BUDGETS[name]
