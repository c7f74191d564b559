"""What a model does with the arrays that it is called on: targets."""

from __future__ import annotations

import numpy as np
import pytest

from singa_dask.comm import SoloCommunicator, run_threads
from singa_dask.distopt import DistOpt, Model
from singa_dask.errors import DataError
from singa_dask.layers import EuclideanLoss, InnerProduct, RecordInput, SoftmaxLoss
from singa_dask.layers.partition import even_bounds
from singa_dask.updaters import SGD

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
SLOPES = RNG.normal(size=(3, 2))
Y = X @ SLOPES + 0.5


def linear(partition_dim=0, target=2, **store):
    layers = [
        RecordInput("data", shape=[3], target_shape=[target], **store),
        InnerProduct("out", num_output=target, param=[{"init": {"type": "kUniform", "low": -0.5, "high": 0.5}}]),
        EuclideanLoss("loss"),
    ]
    return Model(layers, dtype=np.float64, partition_dim=partition_dim)


def fit(comm, model, x, y, steps=300, lr=0.3):
    bounds = even_bounds(len(x), comm.size)
    own = slice(bounds[comm.rank], bounds[comm.rank + 1])
    opt = DistOpt(SGD(lr=lr), model, comm)
    for _ in range(steps):
        opt.backward_and_update(model(x[own], y[own]))
    return model


def test_a_model_learns_targets():
    model = fit(SoloCommunicator(), linear(), X, Y)
    np.testing.assert_allclose(model.predict(X), Y, atol=1e-6)
    assert model.evaluate(X, Y)["loss"] < 1e-10


@pytest.mark.parametrize("dim", [0, 1])
def test_ranks_learn_targets_as_one_does(dim):
    def ranks(comm):
        model = fit(comm, linear(dim), X, Y, steps=5)
        return model.state_dict()

    alone = fit(SoloCommunicator(), linear(), X, Y, steps=5).state_dict()
    for state in run_threads(3, ranks):
        for name, array in alone.items():
            np.testing.assert_allclose(state[name], array, rtol=1e-10)


@pytest.mark.parametrize("y", [RNG.normal(size=(4, 3)), np.arange(4)])
def test_targets_that_no_layer_would_read_are_refused(y):
    model = Model([RecordInput("data", shape=[3]), InnerProduct(num_output=3), EuclideanLoss("loss")])
    for call in (model, model.evaluate):
        with pytest.raises(DataError, match=r"'loss' takes the samples of 'data' as its target.*target_shape.*\[1\]"):
            call(X[:4], y)
    assert float(model(X[:4])) > 0


def test_numbers_are_not_taken_for_classes():
    model = Model([RecordInput("data", shape=[3]), InnerProduct(num_output=3), SoftmaxLoss("loss")])
    with pytest.raises(DataError, match=r"must be whole numbers.*target_shape.*EuclideanLoss"):
        model(X[:4], Y[:4, 0])
