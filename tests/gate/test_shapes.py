"""Samples of another shape with as many values are refused at every way in."""

from __future__ import annotations

import dask.array as da
import h5py
import numpy as np
import pytest

from singa_dask import Model, Regressor, layers
from singa_dask.errors import DataError
from singa_dask.inference.run import predict_blocks
from singa_dask.inference.sources import blocks_of

N, T, F, H = 12, 6, 4, 2
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(N, T, F)).astype(np.float32)
VIDEO = DRAW.normal(size=(N, T, 3, 5, 3)).astype(np.float32)  # steps of images (H, W, C) with H = C
OUT = [layers.InnerProduct(num_output=2 * H), layers.EuclideanLoss()]
TARGETS = {"horizon": H, "target_shape": [2]}


def model(*hidden, **store):
    return Model([layers.RecordInput(batchsize=4, **{**TARGETS, **store}), *hidden, *OUT], seed=0)


# The net, its samples, other forms of these, and other shapes.
OTHERS = [(T // 2, 2 * F), (2, T // 2, F), (1, T, F), (T, F, 1)]
NETS = {
    "windows": (lambda: model(sequence=T, shape=[F]), X, [(T * F,), (T, F, 1)], [(F, T), *OTHERS[:3]]),
    "windows, step by step": (
        lambda: model(layers.LSTM(dim_hidden=3), sequence=T, shape=[F]),
        X,
        [(T * F,), (T, 2, F // 2)],
        [(F, T), *OTHERS[:3]],
    ),
    "windows of one value": (
        lambda: model(sequence=T, shape=[1]),
        X[..., 0],
        [(T, 1)],
        [(2, T // 2), (1, T), (T // 2, 2)],
    ),
    "windows of images": (
        lambda: model(sequence=T, shape=[3, 3, 5]),
        VIDEO,
        [],
        [(3, T, 3, 5), (T, 5, 3, 3), (T // 2, 6, 5, 3)],
    ),
    "sequences": (
        lambda: Model(
            [layers.RecordInput(time_steps=T, shape=[F], target_shape=[2 * H]), layers.GRU(dim_hidden=3), *OUT]
        ),
        X,
        [(T * F,)],
        [(F, T), *OTHERS[:3]],
    ),
    "images": (
        lambda: Model([layers.RecordInput(shape=[F, 2, 3], target_shape=[2 * H]), *OUT]),
        X.reshape(N, 2, 3, F),
        [],
        [(3, 2, F), (2, F, 3), (2 * 3, F), (F, 3, 2)],
    ),
}
ENTRIES = {
    "predict": lambda net, x, y: net.predict(x),
    "predict of a Dask array": lambda net, x, y: net.predict(da.from_array(x, chunks=(5, *x.shape[1:]))).compute(),
    "evaluate": lambda net, x, y: net.evaluate(x, y)["loss"],
    "call": lambda net, x, y: net(x, y).loss,
}


@pytest.mark.parametrize("name", NETS)
def test_the_shape_of_samples(name):
    make, x, same, others = NETS[name]
    net, y = make(), np.zeros((N, 2 * H))
    for entry, use in ENTRIES.items():
        right = use(net, x, y)
        for shape in same:
            np.testing.assert_array_equal(use(net, x.reshape(N, *shape), y), right, err_msg=f"{entry} {shape}")
        for shape in others:
            with pytest.raises(DataError, match=r"do not fit store_conf\.shape"):
                use(net, x.reshape(N, *shape), y)


def test_the_shape_of_targets():
    net, y = model(sequence=T, shape=[F]), DRAW.normal(size=(N, H, 2))
    assert net.evaluate(X, y.reshape(N, -1)) == net.evaluate(X, y)
    single = model(sequence=T, shape=[F], target_shape=[1], horizon=2 * H)
    assert single.evaluate(X, y.reshape(N, -1, 1)) == single.evaluate(X, y.reshape(N, -1))
    for use, shape in ((net, (1, 2 * H)), (net, (2 * H, 1)), (single, (H, 2))):
        with pytest.raises(DataError, match=r"targets of shape .* do not fit"):
            use.evaluate(X, y.reshape(N, *shape))


def test_a_net_of_vectors_flattens_the_shape_of_training_alone(tmp_path):
    net = [layers.RecordInput(shape=[T * F]), layers.InnerProduct(num_output=1)]
    model = Regressor(net, epochs=1, random_state=0).fit(X, X[:, 0, 0]).model_
    right = model.predict(X)
    np.testing.assert_array_equal(model.predict(X.reshape(N, -1)), right)
    other = X.transpose(0, 2, 1).copy()
    for use in ENTRIES.values():
        with pytest.raises(DataError, match=r"have the shape \(4, 6\), and those of the training data \(6, 4\)"):
            use(model, other, X[:, 0, 0])
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = other
    with pytest.raises(DataError, match=r"the shape \(4, 6\)"):
        predict_blocks(model, blocks_of(model, str(tmp_path / "other.h5"), ["x"]), tmp_path / "out.csv")
