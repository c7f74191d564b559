"""Layers whose features are divided over workers compute what the layer on its own computes."""

import numpy as np
import pytest
from support.split_layers import SplitLayer

from singa_dask.layers import GRU, LRN, LSTM, RNN, Embedding, LastStep, Softmax, SoftmaxLoss

SIZES = (2, 3)
CELLS = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}


def normal(*shape, seed=5):
    return np.random.default_rng(seed).standard_normal(shape)


def integers(limit, *shape, seed=6):
    return np.random.default_rng(seed).integers(0, limit, shape)


def one_hot(symbols, size):
    return np.eye(size)[symbols]


def loss(rows, **conf):
    return SplitLayer(
        SoftmaxLoss("loss", ["x", "data"], **conf), ((10,), (1,)), [normal(rows, 10), integers(10, rows)], rows
    )


def images(layer, *shape, rows=2):
    return SplitLayer(layer, (shape,), [normal(rows, *shape)], rows)


def recurrent(cls, x, *state, units=5, steps=3, rows=2, **conf):
    given = [normal(rows, units, seed=8)] if state else []
    sources = ["x", "before"] if state else ["x"]
    layer = cls("cell", sources, dim_hidden=units, unroll_len=steps, **conf)
    return SplitLayer(layer, (x.shape[1:], *((units,) for _ in state)), [x, *given], rows)


CASES = {
    "Softmax": lambda: images(Softmax("s", "x"), 10, rows=4),
    "Softmax of images": lambda: images(Softmax("s", "x"), 2, 3, 5),
    "SoftmaxLoss": lambda: loss(5, scale=3),
    "SoftmaxLoss, top 3": lambda: loss(40, topk=3),
    "LRN": lambda: images(LRN("n", "x", local_size=3, alpha=0.5), 2, 2, 7),
    "LRN with neighbours of neighbours": lambda: images(LRN("n", "x", local_size=7, alpha=2, knorm=2), 1, 2, 5),
    "LRN of another power": lambda: images(LRN("n", "x", beta=0.5), 2, 1, 4),
    "Embedding": lambda: SplitLayer(Embedding("e", "x", vocab_size=6, feature_dim=5), ((1,),), [integers(6, 9, 1)], 9),
    "LastStep": lambda: SplitLayer(LastStep("last", "x", unroll_len=3), ((5,),), [normal(6, 5)], 2),
    **{name: lambda cls=cls: recurrent(cls, normal(6, 4)) for name, cls in CELLS.items()},
    **{
        f"{name} of symbols": lambda cls=cls: recurrent(cls, one_hot(integers(4, 6), 4), units=4)
        for name, cls in CELLS.items()
    },
    **{
        f"{name} from a given state": lambda cls=cls: recurrent(cls, normal(6, 2, 2), "given")
        for name, cls in CELLS.items()
    },
    "one step from a given state, without bias": lambda: recurrent(
        GRU, normal(2, 4), "given", steps=1, bias_term=False
    ),
}
DIFFERENTIABLE = [name for name in CASES if name not in ("Embedding",)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_layer_on_its_own(name, size):
    case = CASES[name]()
    serial, split = case.run(1), case.run(size)
    np.testing.assert_allclose(split.y, serial.y, rtol=1e-11, atol=1e-13)
    for ours, theirs in zip(split.dx, serial.dx, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip([*split.grads, *split.states], [*serial.grads, *serial.states], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)
    for metrics in split.metrics:
        assert metrics == pytest.approx(serial.metrics[0], rel=1e-12)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_finite_differences(name):
    case = CASES[name]()
    results = case.run(3)
    inputs = [(x, dx) for x, dx in zip(case.inputs, results.dx, strict=True) if dx is not None]
    assert inputs
    for array, gradient in [*inputs, *zip(case.values, results.grads, strict=True)]:
        for index in np.unique(np.linspace(0, array.size - 1, 5).astype(int)):
            expected = case.difference(array, index, 3)
            assert gradient.reshape(-1)[index] == pytest.approx(expected, rel=1e-6, abs=1e-8), index
