"""The user's own code on workers that live longer than a run, and that cannot import the test that defines it."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask import ClusterTopology, Job, layers, train, updaters
from singa_dask.errors import SingaError
from singa_dask.layers import Layer
from singa_dask.training import checkpoint as checkpoints
from singa_dask.updaters import Updater


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SINGA_DASK_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def shifted(by: float) -> type[Layer]:
    """A layer y = x + by; `by` is in its closure only. A parameter counts how often it was seen."""

    class Shift(Layer):
        def setup(self, *src):
            self.seen = self.declare("seen", (1,), 1, 1, value=by)
            return src[0]

        def forward(self, ctx, *x):
            return x[0] + x[0].dtype.type(by)

        def backward(self, ctx, dy):
            self.seen.claim()
            self.seen.grad[...] = -by
            return dy

    return Shift


def adding(times: float) -> type[Updater]:
    class Add(Updater):
        def apply(self, step, lr, weight_decay, w, g, *states):
            w -= np.float32(times) * g

    return Add


def job(own: Layer, updater: Updater, cluster: ClusterTopology) -> Job:
    net = [
        layers.RecordInput(path="dataset:digits/train", batchsize=30, std_value=16),
        layers.InnerProduct(num_output=10),
        own,
        layers.SoftmaxLoss(),
    ]
    return Job(name="own", layers=net, updater=updater, cluster=cluster, train_steps=4)


def seen(workspace) -> float:
    saved = checkpoints.load(checkpoints.path_of(workspace / "checkpoint", 4))
    return float(np.asarray(saved.parameters["shift1_seen"])[0])


@pytest.mark.parametrize(
    "cluster", [ClusterTopology.allreduce(1), ClusterTopology.sandblaster(1, 2)], ids=["beside", "apart"]
)
def test_each_run_on_the_same_workers_has_its_own_definition(cluster3, workers3, tmp_path, cluster):
    for i, (by, times) in enumerate([(2.0, 1.0), (3.0, 1.0), (3.0, 2.0)]):
        one = job(shifted(by)(), adding(times)(lr=1.0), cluster)
        train(one, cluster3, workspace=tmp_path / str(i))
        assert seen(tmp_path / str(i)) == pytest.approx(by + 4 * by * times)


def test_an_error_in_code_of_ones_own_comes_back_by_its_name(cluster3, workers3, tmp_path):
    class Wrong(Exception):
        pass

    class Failing(Layer):
        def setup(self, *src):
            return src[0]

        def forward(self, ctx, *x):
            raise Wrong("of the layer's own")

    with pytest.raises(SingaError, match=r"Wrong.*of the layer's own"):
        train(job(Failing(), updaters.SGD(lr=0.1), ClusterTopology.allreduce(2)), cluster3, workspace=tmp_path / "a")
