"""Estimators on Dask collections as users of other libraries have them: empty partitions, rows that change from one
computation to the next, sequences."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from singa_dask import Classifier, Regressor, layers
from singa_dask.errors import DataError

DRAW = np.random.default_rng(0)


def table(rows=200):
    x = DRAW.normal(size=rows)
    return pd.DataFrame({"x": np.arange(rows) / 10, "a": x, "label": (x > 0).astype(int)})


def test_partitions_without_rows():
    """All but one of eight are empty, and then all but none."""
    frame = dd.from_pandas(table(), npartitions=8)
    few = frame[frame["x"] < 2.5]
    x, y = few[["x", "a"]], few["label"]
    assert [*x.map_partitions(len).compute()].count(0) >= 6
    classifier = Classifier(epochs=150, learning_rate=0.05, random_state=0).fit(x, y)
    assert len(classifier.predict(x).compute()) == 25
    assert (classifier.predict(x).compute() == y.compute()).mean() > 0.9
    none = frame[frame["x"] < 0]
    assert len(classifier.predict(none[["x", "a"]]).compute()) == 0
    with pytest.raises(DataError, match=r"X: holds no samples\."):
        Classifier(epochs=1).fit(none[["x", "a"]], none["label"])


def _some(part):
    return part[np.random.default_rng().random(len(part)) < 0.7]


def test_features_and_targets_of_one_frame_are_of_the_same_rows_though_each_computation_draws_others():
    frame = dd.from_pandas(table(), npartitions=4).map_partitions(_some)
    x, y = frame[["a"]], 3 * frame["a"] + 1
    regressor = Regressor(epochs=60, learning_rate=0.05, random_state=0).fit(x, y)
    grid = np.linspace(-1, 1, 9)
    predicted = regressor.predict(pd.DataFrame({"a": grid}))
    np.testing.assert_allclose(predicted, 3 * grid + 1, atol=1)  # of mixed rows it would be 1 everywhere


def test_sequences_are_samples():
    x = da.from_array(DRAW.normal(size=(300, 6, 2)).astype(np.float32), chunks=(64, 6, 2))
    y = x[:, :, 0].mean(axis=1)
    net = [layers.GRU(dim_hidden=8), layers.InnerProduct(num_output=1)]
    regressor = Regressor(net, epochs=30, learning_rate=0.02, random_state=0).fit(x, y)
    assert regressor.model_.state_dict()["gru1_z_hx"].shape[-1] == 2, "features of one time step"
    assert np.corrcoef(regressor.predict(x).compute().ravel(), y.compute())[0, 1] > 0.9


def test_partitions_with_other_rows_than_those_of_x_are_refused():
    frame = table()
    x, y = dd.from_pandas(frame[["x", "a"]], npartitions=2), frame.label.sample(frac=1, random_state=0)
    told = r"y: partition \d has the label \d+ where X has \d+, and rows .* repartition\(divisions=\)"
    with pytest.raises(Exception, match=told):
        Classifier(epochs=1).fit(x, dd.from_pandas(y, npartitions=2, sort=False))
