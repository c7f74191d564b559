"""Predictions of Dask collections on the processes of a cluster."""

import os
import time

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from singa_dask import Model, layers

X = np.random.default_rng(5).normal(size=(600, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    net = [
        layers.RecordInput(shape=[6]),
        layers.InnerProduct(num_output=5),
        layers.ReLU(),
        layers.InnerProduct(num_output=3),
    ]
    return Model([*net, layers.SoftmaxLoss()], seed=4)


def test_collections_are_predicted_on_the_workers(cluster3, workers3, model):
    expected = model.predict(X)
    np.testing.assert_allclose(model.predict(da.from_array(X, chunks=(50, 4))).compute(), expected, rtol=1e-5)
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=5)
    np.testing.assert_allclose(model.predict(frame).compute(), expected, rtol=1e-5)
    # The model itself may be sent, too.
    mapped = da.from_array(X, chunks=(50, 6)).map_blocks(model.predict, dtype=np.float32, chunks=(50, 3))
    np.testing.assert_allclose(mapped.compute(), expected, rtol=1e-5)


def test_a_model_reaches_every_worker_once(cluster3, workers3, tmp_path):
    class Counting(layers.Layer):
        def setup(self, *src):
            with open(tmp_path / str(os.getpid()), "a") as file:
                file.write("set up\n")
            return self.sources(src)[0]

        def forward(self, ctx, *x):
            time.sleep(0.01)  # no worker can do without the others
            return x[0]

    net = [layers.RecordInput(shape=[6]), layers.InnerProduct(num_output=3), Counting(), layers.SoftmaxLoss()]
    model = Model(net, seed=4)
    (tmp_path / str(os.getpid())).unlink()
    found = model.predict(da.from_array(X, chunks=(10, 6))).compute()
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-5)
    counts = {
        path.name: path.read_text().count("set up") for path in tmp_path.iterdir() if path.name != str(os.getpid())
    }
    assert len(counts) == 3, "all workers predict"
    # A training net, a test net, one for the thread that predicts, and the layer alone, which is tried on a few rows;
    # not one for each of the 60 blocks.
    assert max(counts.values()) <= 4, counts
